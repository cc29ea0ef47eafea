"""Whole open-vocabulary models at their real size: a training step and a prediction, time and
memory.

The configs are those of the paper's trainings (segmentation, detection, panoptic segmentation);
weights are random, images noise with a few squares of made-up classes at the configs' own size. A
step is what the engine does with a batch: preprocessing, losses, backward, clipping, optimiser.
Models of one task are timed in turns, in one process; medians count.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import hypvision
from bench.common import MIB, add_run_arguments, in_turns, peak_bytes, report, start
from hypvision.io.errors import HypvisionError

INTRODUCTION = (
    "\n## Open-vocabulary models\n\n<!-- open-vocabulary:begin -->\n<!-- open-vocabulary:end -->\n"
)
MARKS = ("<!-- open-vocabulary:begin -->", "<!-- open-vocabulary:end -->")
_NAMES = [
    "frozen-vitb16_4xb1-80k_coco-stuff164k",
    "hyperclip-vitb16_4xb1-80k_coco-stuff164k",
    "catseg-vitb16_4xb1-80k_coco-stuff164k",
    "frozen-det-vitb16_8xb8-3e_coco48-17",
    "hyperclip-det-vitb16_8xb8-3e_coco48-17",
    "frozen-panoptic-vitb16_8xb2-50e_coco116-17",
    "hyperclip-panoptic-vitb16_8xb2-50e_coco116-17",
]
DEFAULT = [Path(__file__).parents[2] / f"configs/hyperclip/{name}.py" for name in _NAMES]
# Type of the model -> scope, side of the images that its configs train on.
TASKS = {
    "HyperCLIPSegmentor": ("mmseg", 384),
    "HyperCLIPDetector": ("mmdet", 640),
    "HyperCLIPPanoptic": ("mmdet", 640),
}
CLASSES = tuple(f"object {number}" for number in range(12))
OBJECTS = 3  # in an image


def task_of(config: Path) -> str:
    """The type of a config's model."""
    from hypvision.engine.config import load_config  # the other benchmarks do without mmengine

    found = load_config(config).model.get("type")
    if found not in TASKS:
        raise HypvisionError(
            f"'{config}' is no open-vocabulary config: model.type must be {', '.join(TASKS)}."
        )
    return found


def samples(scope: str, batch: int, size: int) -> dict[str, list[Any]]:
    """Noise with squares of made-up classes, as the data sets of mmseg and mmdet give a batch:
    ``inputs``, uint8 (3, size, size), and ``data_samples`` with labels, or with boxes and masks."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData, PixelData
    from mmseg.structures import SegDataSample

    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[Any]] = dict(inputs=[], data_samples=[])
    shape = (size, size)
    metainfo = dict(img_id=0, img_shape=shape, ori_shape=shape, scale_factor=(1.0, 1.0))
    for _ in range(batch):
        pixels = torch.randint(0, 256, (3, *shape), generator=generator, dtype=torch.uint8)
        corners = torch.randint(0, size - size // 4, (OBJECTS, 2), generator=generator)
        labels = torch.randint(0, len(CLASSES), (OBJECTS,), generator=generator)
        masks = torch.zeros(OBJECTS, *shape, dtype=torch.uint8)
        label_map = torch.full(shape, 255)
        for number, (left, top) in enumerate(corners.tolist()):
            window = (slice(top, top + size // 4), slice(left, left + size // 4))
            masks[number][window] = 1
            label_map[window] = labels[number]
        if scope == "mmseg":
            sample = SegDataSample(metainfo=metainfo, gt_sem_seg=PixelData(data=label_map[None]))
        else:
            boxes = torch.cat([corners, corners + size // 4], 1).float()
            masks = BitmapMasks(masks.numpy(), *shape)
            truth = InstanceData(bboxes=boxes, labels=labels, masks=masks)
            ignored = InstanceData(bboxes=boxes[:0], labels=labels[:0])
            sample = DetDataSample(metainfo=metainfo, gt_instances=truth, ignored_instances=ignored)
        found["inputs"].append(pixels)
        found["data_samples"].append(sample)
    return found


class Case:
    """A model from a config, with a batch to train on and one to look at.

    Args:
        config: path of the config.
        batch: images a training step.
        size: their side in pixels; default: the config's.
        clip: another CLIP, by name; default: the config's.
        device: ``"cpu"`` or ``"cuda"``.
    """

    def __init__(self, config: Path, batch: int, size: int | None, clip: str | None, device: str):
        from mmengine.optim import build_optim_wrapper
        from mmengine.registry import MODELS, DefaultScope
        from mmengine.utils import import_modules_from_strings

        from hypvision.engine.config import load_config

        loaded = load_config(config)
        self.name = config.stem
        scope, default = TASKS[task_of(config)]
        import_modules_from_strings(loaded.custom_imports["imports"])
        loaded.model.clip.pretrained = None
        if clip:
            loaded.model.clip = dict(name=clip)
        self.size = size or default
        with DefaultScope.overwrite_default_scope(scope):
            self.model = MODELS.build(loaded.model).to(device).train()
            self.wrapper = build_optim_wrapper(self.model, loaded.optim_wrapper)
        for phase, fixed in self.model.fixed.items():  # as DatasetClassesHook does
            if not fixed:
                setattr(self.model, f"{phase}_classes", CLASSES)
        self.batch = samples(scope, batch, self.size)

    def step(self) -> None:
        """A training step."""
        self.model.train()
        self.model.train_step(self.batch, self.wrapper)

    def predict(self) -> None:
        """The classes of one image found, with texts that are encoded already."""
        self.model.eval()
        with torch.no_grad():
            self.model.test_step({key: value[:1] for key, value in self.batch.items()})


def rows(configs: list[Path], args: argparse.Namespace, bar: tqdm) -> list[str]:
    """A row for each config of one task."""
    cases = [Case(config, args.batch, args.size, args.clip, args.device) for config in configs]
    steps, looks = (
        [
            *in_turns(
                {case.name: getattr(case, name) for case in cases}, args.repeats, args.device, bar
            ).values()
        ]
        for name in ("step", "predict")
    )
    found = []
    for case, step, look in zip(cases, steps, looks):
        peak = peak_bytes(case.step, args.device) / MIB
        bar.update()
        count, of_clip = (
            sum(
                p.numel()
                for name, p in case.model.named_parameters()
                if p.requires_grad and name.startswith(prefix)
            )
            for prefix in ("", "clip.")
        )
        found.append(
            f"| {case.name} | {case.size} | {count / 1e6:.1f} M | {of_clip / 1e6:.1f} M | "
            f"{step:.2f} s | {step / steps[0]:.2f}x | {peak:.0f} | {look:.2f} s |"
        )
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--configs",
        nargs="+",
        type=Path,
        metavar="FILE",
        default=DEFAULT,
        help="default: seven with ViT-B/16",
    )
    parser.add_argument("--batch", type=int, default=1, help="images a training step (default: 1)")
    parser.add_argument(
        "--size", type=int, help="side of the images (default: 384 for segmentation, else 640)"
    )
    parser.add_argument(
        "--clip", metavar="NAME", help="another CLIP than the configs' (random weights)"
    )
    add_run_arguments(parser, repeats=3)


def run(args: argparse.Namespace) -> None:
    start(args, batch=1, size=1)
    from mmengine.logging import MMLogger

    MMLogger.get_instance("benchmark").setLevel("ERROR")  # else a line for each parameter
    groups: dict[str, list[Path]] = {}
    for config in args.configs:
        groups.setdefault(task_of(config), []).append(config)
    lines = [
        "| config | pixels | trained parameters | of CLIP | training step | / first | peak MiB | "
        "one image |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    with tqdm(total=len(args.configs) * (2 * args.repeats + 3), unit="call") as bar:
        for configs in groups.values():
            lines += rows(configs, args, bar)
    facts = (
        f"hypvision {hypvision.__version__}. Medians of {args.repeats}, random weights, float32, "
        f"{args.batch} image{'s' if args.batch > 1 else ''} a step; `/ first`: to the first row of "
        "the task."
    )
    report(args, ["batch", "configs", "clip", "size"], facts, "\n".join(lines), MARKS, INTRODUCTION)
