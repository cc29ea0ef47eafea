#!/usr/bin/env python
"""Does a clustering backbone cluster? ``python studies/hcformer_diagnosis.py CONFIG [WEIGHTS]``.

Prints a line for each block of the network of a config, with trained weights or as a training
starts:

- ``excess``, ``entropy``, ``spread``, ``content`` of the patch-level assignments, and ``window`` =
  the excess of the window level (:func:`sharpness`: excess 0 and entropy 1 are uniform);
- ``alpha`` the two temperatures, ``bias`` and ``scale`` root mean squares of position bias and
  layer scales;
- ``mixer`` and ``mlp``: root mean square of what the branch adds over that of what it is added to;
- ``grad`` (classifiers): norm of the loss's gradient at the weights of the similarity features,
  which place the centres, over that at the weights of the values, where a mixer adds something; and
  of the temperature's gradient, absolute.

Of a segmenter also the purity of the clusters on the masks of the data, beside that of equally many
grid cells (``grid``; ``error``: standard error of the difference over images) and of the same
network's clusters with the temperatures at 0, which see places alone (``place``). ``--ablate``
(classifiers): top-1 on all validation data with the mixers' share taken away, or what they see;
nothing is trained again. ``--merge`` (classifiers): top-1 with MLPs that compute one token for each
cluster instead of each pixel, beside as many cells of a grid. ``--draw FILE`` paints the
assignments of the last block of each stage for some images, ``--json FILE`` keeps numbers.
"""

import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypvision.inference.progress import progress
from hypvision.io.errors import HypvisionError, guard
from hypvision.io.files import check_output, write_json
from hypvision.nn import ClusterAssignment
from hypvision.viz.clusters import cluster_map, enlarge


class Sharpness(NamedTuple):
    """How sharp soft assignments to M centres are, on average over points.

    ``excess``: (largest weight - 1/M) / (1 - 1/M), 0 for uniform and 1 for hard assignments.
    ``entropy``: over log M, 1
    for uniform. ``spread``: standard deviation of the logits over the centres. ``content``: the
    share of the logits' variance that differs from image to image; the rest depends on the place
    alone.
    """

    excess: float
    entropy: float
    spread: float
    content: float


def sharpness(assignment: Tensor) -> Sharpness:
    """Sharpness of the assignments ``(B, e, M, ...)`` that sum to 1 over M.

    Raises:
        ValueError: a single centre, to which everything is assigned.
    """
    count = assignment.shape[2]
    if count < 2:
        raise ValueError(f"Sharpness needs at least two centres (M >= 2), got {count}.")
    assignment = assignment.double()
    largest = assignment.amax(2).mean().item()
    logits = assignment.clamp(min=1e-30).log()
    entropy = -(assignment * logits).sum(2).mean().item() / math.log(count)
    logits = logits - logits.mean(2, keepdim=True)
    variance = logits.square().mean().item()
    content = (
        (logits - logits.mean(0, keepdim=True)).square().mean().item() / variance
        if variance
        else 0.0
    )
    return Sharpness((largest - 1 / count) / (1 - 1 / count), entropy, math.sqrt(variance), content)


def purity(labels: np.ndarray, classes: np.ndarray, ignore: int = 255) -> float:
    """Share of the pixels that belong to the most frequent class of their cluster, by cluster and
    class of each pixel, integers >= 0 of one shape; pixels of the class ``ignore`` do not count.
    """
    if labels.shape != classes.shape:
        raise ValueError(
            f"labels and classes must have the same shape, got {labels.shape} and {classes.shape}."
        )
    keep = classes != ignore
    if not keep.any():
        raise ValueError(
            "All pixels have the ignored label, so there is no class to compare the clusters with."
        )
    labels = labels[keep].astype(np.int64)
    classes = classes[keep].astype(np.int64)
    width = int(classes.max()) + 1
    votes = np.bincount(labels * width + classes, minlength=(int(labels.max()) + 1) * width)
    return float(votes.reshape(-1, width).max(1).sum() / votes.sum())


def grid_labels(window_index: Tensor, prop: int) -> np.ndarray:
    """A grid to compare clusters with: each window of a map ``(H, W)`` cut into ``prop x prop``
    nearly equal cells."""

    def cells_along(index: Tensor) -> np.ndarray:
        """For the window number of each place of an axis: which of ``prop`` cells along its window
        it lies in."""
        _, lengths = torch.unique_consecutive(index, return_counts=True)
        return np.concatenate([np.arange(n) * prop // n for n in lengths.tolist()])

    rows, columns = (cells_along(index) for index in (window_index[:, 0], window_index[0, :]))
    return window_index.cpu().numpy() * prop**2 + rows[:, None] * prop + columns


def cluster_purity(
    assignment: ClusterAssignment, classes: np.ndarray, index: int = 0, ignore: int = 255
) -> tuple[float, float]:
    """Purity of the arg-max clusters of the patch level of a block (mean over heads), and that of
    as many cells of a grid, by the class of each pixel ``(H', W')`` of image ``index`` of the
    batch, to which maps are enlarged by repeating; pixels of the class ``ignore`` do not count."""
    heads = assignment.patch.shape[1]
    prop = math.isqrt(assignment.patch.shape[2])
    maps = (
        enlarge(cluster_map(assignment, head, index=index), classes.shape) for head in range(heads)
    )
    found = [purity(labels, classes, ignore) for labels in maps]
    cells = enlarge(grid_labels(assignment.window_index, prop), classes.shape)
    return float(np.mean(found)), purity(cells, classes, ignore)


def build(config, weights: str | None):
    """The model of a config and its clustering network."""
    from mmengine.registry import MODELS
    from mmengine.runner import load_checkpoint

    torch.manual_seed(config.get("randomness", {}).get("seed", 0))
    model = MODELS.build(config.model)
    if weights is not None:
        load_checkpoint(model, weights, map_location="cpu", strict=True)
    network = getattr(model.backbone, "timm_model", model.backbone)
    network = getattr(
        network, "model", network
    )  # timm wraps a network that gives the maps of its stages
    if not hasattr(network, "forward_assignments"):
        raise HypvisionError(
            f"'{config.filename}' trains a {type(network).__name__}, which does not cluster."
        )
    return model.eval(), network


def rms(x: torch.Tensor) -> float:
    """Root mean square."""
    return x.detach().float().square().mean().sqrt().item()


def blocks_of(network):
    """(stage, block, module) of every block."""
    return [
        (i, j, block)
        for i, stage in enumerate(network.stages)
        for j, block in enumerate(stage.blocks)
    ]


# What of a block at 0 leaves the mixer out; assignments by place alone; uniform ones.
MIXER = ("layer_scale1",)
CONTENT = ("mixer.alpha", "mixer.window_alpha")
ASSIGNMENT = (*CONTENT, "mixer.bias", "mixer.window_bias", "mixer.locality")


@contextmanager
def without(blocks: Iterable[torch.nn.Module], names: tuple[str, ...]) -> Iterator[None]:
    """These parameters of the blocks at 0, as far as a block has them, and as they were
    afterwards."""
    chosen = [p for block in blocks for name, p in block.named_parameters() if name in names]
    kept = [p.detach().clone() for p in chosen]
    try:
        with torch.no_grad():
            for p in chosen:
                p.zero_()
        yield
    finally:
        with torch.no_grad():
            for p, value in zip(chosen, kept):
                p.copy_(value)


def ablations(model, network, dataset) -> list[dict[str, float]]:
    """Top-1 in percent as trained, and with the mixers of a stage or all, or what their assignments
    see, taken away."""
    stages = [list(stage.blocks) for stage in network.stages]
    blocks = [block for stage in stages for block in stage]
    variants = {"nothing": ([], MIXER), "all mixers": (blocks, MIXER)}
    variants |= {f"mixers of stage {i}": (stage, MIXER) for i, stage in enumerate(stages)}
    variants |= {"content": (blocks, CONTENT), "assignments (uniform)": (blocks, ASSIGNMENT)}
    right = dict.fromkeys(variants, 0)
    loader = torch.utils.data.DataLoader(dataset, batch_size=128)
    for batch in progress(loader, len(loader), "step"):
        for name, (chosen, parameters) in variants.items():
            with without(chosen, parameters), torch.no_grad():
                right[name] += (model(batch["inputs"]).argmax(1) == batch["label"]).sum().item()
    return [{"without": name, "top1": 100 * count / len(dataset)} for name, count in right.items()]


def regions(assignment: ClusterAssignment, by: str) -> Tensor:
    """The number of the region that each pixel lies in, ``(B, H, W)``: its arg-max cluster (mean of
    the heads), as many cells of a grid, or whole windows."""
    batch, _, centers, *size = assignment.patch.shape
    if by == "clusters":
        return assignment.window_index * centers + assignment.patch.mean(1).argmax(1)
    prop = math.isqrt(centers) if by == "grid" else 1
    return torch.from_numpy(grid_labels(assignment.window_index, prop)).expand(batch, *size)


@contextmanager
def merged(blocks: Iterable[torch.nn.Module], by: str, seen: list[float]) -> Iterator[None]:
    """MLPs that compute the mean of each region and give the result to its pixels; ``seen`` gets
    the number of regions over that of pixels at every call."""
    handles = []
    for block in blocks:
        place: dict[str, Any] = {}

        def remember(mixer, args, place=place):
            labels = regions(mixer.assignments(args[0]), by)
            place["map"] = labels.shape[1:]
            place["labels"] = labels.flatten(1).unsqueeze(2).expand(-1, -1, args[0].shape[3])
            seen.append(sum(len(row.unique()) for row in labels) / labels.numel())

        def before(mlp, args, place=place):
            pixels = args[0].flatten(1, 2)
            labels = place["labels"]
            means = pixels.new_zeros(len(pixels), int(labels.max()) + 1, pixels.shape[2])
            return means.scatter_reduce(1, labels, pixels, "mean", include_self=False)

        def after(mlp, args, out, place=place):
            return out.gather(1, place["labels"]).unflatten(1, place["map"])

        handles += [
            block.mixer.register_forward_pre_hook(remember),
            block.mlp.register_forward_pre_hook(before),
        ]
        handles.append(block.mlp.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def merges(model, network, dataset) -> list[dict[str, float]]:
    """Top-1 in percent with one token for each region in the MLPs of the stages that have several
    centres a window."""
    blocks = [block for *_, block in blocks_of(network) if block.mixer.prop > 1]
    seen: dict[str, list[float]] = {by: [] for by in ("pixels", "clusters", "grid", "windows")}
    right = dict.fromkeys(seen, 0)
    loader = torch.utils.data.DataLoader(dataset, batch_size=128)
    for batch in progress(loader, len(loader), "step"):
        for by, shares in seen.items():
            with merged(blocks if by != "pixels" else [], by, shares), torch.no_grad():
                right[by] += (model(batch["inputs"]).argmax(1) == batch["label"]).sum().item()
    shares = {by: sum(values) / len(values) if values else 1.0 for by, values in seen.items()}
    return [
        {"one token for": by, "tokens": shares[by], "top1": 100 * right[by] / len(dataset)}
        for by in seen
    ]


def branches(network, inputs: torch.Tensor) -> list[dict[str, float]]:
    """For each block how much mixer and MLP add to the map."""
    found = []
    handles = []
    for *_, block in blocks_of(network):
        row: dict[str, float] = {}
        found.append(row)
        for norm, branch, name in (
            (block.norm1, block.mixer, "mixer"),
            (block.norm2, block.mlp, "mlp"),
        ):

            def before(module, args, row=row, name=name):
                row[name] = rms(args[0])

            def after(module, args, out, row=row, name=name):
                row[name] = rms(out) / row[name]

            handles += [norm.register_forward_pre_hook(before), branch.register_forward_hook(after)]
    with torch.no_grad():
        network.forward_features(inputs)
    for handle in handles:
        handle.remove()
    return found


def gradients(model, network, inputs: torch.Tensor, labels: torch.Tensor) -> list[dict[str, float]]:
    """For each block what of the loss's gradient reaches the features that place the centres, and
    the temperature."""
    model.zero_grad()
    model(inputs, labels, mode="loss")["loss"].backward()
    rows = []
    for *_, block in blocks_of(network):
        mixer = block.mixer
        feature, value = (p.weight.grad.norm().item() for p in (mixer.feature, mixer.value))
        rows.append({"grad": feature / value} if value else {})
        rows[-1]["grad_alpha"] = mixer.alpha.grad.abs().item()
    model.zero_grad()
    return rows


def diagnose(
    model, network, inputs: torch.Tensor, labels: torch.Tensor | None
) -> list[dict[str, float]]:
    """A row for each block."""
    rows = []
    added = branches(network, inputs)
    slopes = (
        gradients(model, network, inputs, labels) if labels is not None else [{} for _ in added]
    )
    for (i, j, block), entry, extra, slope in zip(
        blocks_of(network), network.forward_assignments(inputs), added, slopes
    ):
        mixer = block.mixer
        window = entry.assignment.window
        row = {"stage": i, "block": j, "M": mixer.prop**2}
        if mixer.prop > 1:
            row |= sharpness(entry.assignment.patch)._asdict()
        if window is not None and window.shape[2] > 1:
            row["window"] = sharpness(window).excess
        row["alpha"] = mixer.alpha.item()
        if mixer.window_alpha is not None:
            row["window_alpha"] = mixer.window_alpha.item()
        row |= {
            "bias": rms(mixer.bias),
            "scale1": rms(block.layer_scale1),
            "scale2": rms(block.layer_scale2),
        }
        rows.append(row | extra | slope)
    return rows


def purities(model, network, dataset, count: int) -> list[dict[str, float]]:
    """For the last block of each stage the mean purity over ``count`` images, that of the grid, and
    by place alone."""
    found: dict[int, list[tuple[float, ...]]] = {}
    blocks = [block for *_, block in blocks_of(network)]
    for index in progress(spread(len(dataset), count), count, "image"):
        sample = dataset[index]
        inputs = model.data_preprocessor(
            dict(inputs=[sample["inputs"]], data_samples=[sample["data_samples"]])
        )
        classes = sample["data_samples"].gt_sem_seg.data[0].numpy()
        last = {
            entry.stage: entry.assignment for entry in network.forward_assignments(inputs["inputs"])
        }
        with without(blocks, CONTENT):
            places = {
                entry.stage: entry.assignment
                for entry in network.forward_assignments(inputs["inputs"])
            }
        for stage, assignment in last.items():
            if assignment.patch.shape[2] > 1:
                place, _ = cluster_purity(places[stage], classes)
                found.setdefault(stage, []).append((*cluster_purity(assignment, classes), place))
    rows = []
    for stage, values in found.items():
        own, grid, place = torch.tensor(values).T
        row = {
            "stage": stage,
            "purity": own.mean().item(),
            "grid": grid.mean().item(),
            "place": place.mean().item(),
        }
        if len(values) > 1:
            row["error"] = (own - grid).std().item() / len(values) ** 0.5
        rows.append(row)
    return rows


def spread(length: int, count: int) -> list[int]:
    """``count`` numbers spread evenly over a data set, which lies in the order of its classes."""
    count = min(length, count)
    return [i * length // count for i in range(count)]


def table(rows: list[dict[str, float]]) -> str:
    """Columns of equal width."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names] + [[_cell(row.get(name, "")) for name in names] for row in rows]
    return "\n".join(
        "  ".join(f"{cell:>{max(len(names[i]), 7)}}" for i, cell in enumerate(line))
        for line in cells
    )


def _cell(value) -> str:
    if isinstance(value, float):
        return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"
    return str(value)


def draw(network, images, inputs: torch.Tensor, path: Path) -> None:
    """One column an image, one row a stage: the clusters of head 0 of its last block."""
    from PIL import Image

    from hypvision.viz.clusters import cluster_map, draw_regions
    from hypvision.viz.sheet import save_image

    side = 192
    last = {entry.stage: entry.assignment for entry in network.forward_assignments(inputs)}
    sheet = Image.new("RGB", (side * len(images), side * (1 + len(last))), "white")
    for column, image in enumerate(images):
        image = image.resize((side, side), Image.Resampling.NEAREST)
        sheet.paste(image, (column * side, 0))
        for row, (_, assignment) in enumerate(sorted(last.items()), start=1):
            labels = cluster_map(assignment, 0, index=column)
            sheet.paste(
                draw_regions(image, labels, alpha=0.7, outlines=False), (column * side, row * side)
            )
    save_image(sheet, path)


def run(args: Namespace) -> None:
    from mmengine.registry import DATASETS, init_default_scope

    import hypvision.data.image_folder
    import hypvision.openmmlab
    import hypvision.tasks
    from hypvision.engine.config import load_config, parse_options

    config = load_config(args.config, parse_options(args.cfg_options))
    init_default_scope(config.get("default_scope", "mmengine"))
    segmenter = config.get("default_scope") == "mmseg"
    if args.images < 1:
        raise HypvisionError(f"--images {args.images}: give at least 1.")
    for option in ("ablate", "merge"):
        if getattr(args, option) and segmenter:
            raise HypvisionError(
                f"--{option} measures top-1, which a segmenter does not have: give a classifier's "
                "config."
            )
    if args.draw and segmenter:
        raise HypvisionError(
            "--draw paints for classifiers; use 'hypvision explain' for images of a segmenter."
        )
    for path in filter(None, (args.draw, args.json)):
        check_output(path)
    if segmenter:
        import hypvision.openmmlab.datasets.segmentation  # noqa: F401 - registers its data sets
    model, network = build(config, args.weights)
    dataset = DATASETS.build(dict(config.val_dataloader.dataset))
    result: dict[str, list] = {}
    if segmenter:
        chosen = [dataset[i] for i in spread(len(dataset), min(args.images, 8))]
        batch = model.data_preprocessor(
            dict(
                inputs=[s["inputs"] for s in chosen],
                data_samples=[s["data_samples"] for s in chosen],
            )
        )
        inputs = batch["inputs"]
        labels = None
        result["purity"] = purities(model, network, dataset, args.images)
    else:
        chosen = [dataset[i] for i in spread(len(dataset), args.images)]
        inputs = torch.stack([sample["inputs"] for sample in chosen])
        labels = torch.tensor([sample["label"] for sample in chosen])
    result["blocks"] = diagnose(model, network, inputs, labels)
    if args.ablate:
        result["ablations"] = ablations(model, network, dataset)
    if args.merge:
        result["merges"] = merges(model, network, dataset)
    for rows in result.values():
        print(table(rows), end="\n\n")
    if args.draw:
        places = spread(len(dataset), args.images)[:: max(args.images // 8, 1)][:8]
        few = torch.stack([dataset[i]["inputs"] for i in places])
        draw(network, [dataset.read(i) for i in places], few, Path(args.draw))
    if args.json:
        write_json(args.json, result)


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", metavar="CONFIG", help="config of a classifier or segmenter")
    parser.add_argument(
        "weights",
        metavar="WEIGHTS",
        nargs="?",
        help="checkpoint, or zoo:NAME; none: random weights",
    )
    parser.add_argument(
        "--images", type=int, default=256, metavar="N", help="images of the validation data"
    )
    parser.add_argument(
        "--ablate", action="store_true", help="top-1 without mixers, and without what they see"
    )
    parser.add_argument(
        "--merge", action="store_true", help="top-1 with one token for each cluster in the MLPs"
    )
    parser.add_argument("--draw", metavar="FILE", help="paint the clusters of eight images there")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.add_argument(
        "--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the config"
    )
    return guard(run, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
