"""A command line of every command that works, on inputs so small that it takes a second or two.

What must hold for all commands (single faults, a full disk, Ctrl-C) is tested by a walk over
:data:`LINES`.
"""

import inspect
import json
import os
import resource
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import transformers
from helpers import fewshot
from helpers.emoji import make_emoji
from helpers.engine import make_images, write_config
from helpers.fewshot_layouts import coop
from helpers.language import make_text, small
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image
from safetensors.torch import save_file

import hypvision_cli
from hypvision.engine.config import load_config
from hypvision.helm.huggingface import HelmConfig, HelmForCausalLM
from hypvision.models.lorentz_resnet_checkpoint import hyperboliccv_to_official
from hypvision.tasks import (  # noqa: F401 - some register their models
    classification,
    few_shot,
    few_shot_benchmark,
    language,
    metric_learning,
    publishing,
)
from hypvision.tasks.few_shot_benchmark import CellSpec, Result, Settings
from hypvision.viz.video import writing_video

#: Of each command, lines whose words are separated as a shell does; run in a copy of
#: :func:`write_inputs`'s folder.
LINES = {
    "train": ["good.py --work-dir work"],
    "test": ["good.py good.pth --work-dir work --out report --save found.json --show-dir shown"],
    "plot": ["run --keys loss top1 --save curves.png"],
    "predict": [
        "photos --model good.py --weights good.pth --out out --device cpu",
        "film.mp4 --model good.py --weights good.pth --out out --device cpu",
    ],
    "explain": [
        "photos/a.png --model hcformer_nano.cifar10 --stage 2 --out out",
        "photos/a.png --clip emoji-t8 --texts words.txt --steps 5 --captions pairs --out out",
    ],
    "export": ["good.pth --format onnx --model good.py --save out.onnx"],
    "summary": ["good.py --repeats 1 --device cpu --save out.csv"],
    "check": ["good.py --all --workers 0 --out out"],
    "browse": ["good.py --part train --samples 2 --out out"],
    "configs": ["cifar10"],
    "exec": ["script.py a"],
    "zoo list": ["--write-readme out.md"],
    "zoo get": ["emoji-t8.scenes --out out"],
    "zoo verify": ["emoji-t8.scenes"],
    "zoo clean": ["--list"],
    "zoo card": ["emoji-t8.scenes --save out.md"],
    "zoo push": ["emoji-t8.scenes --out out"],
    "zoo publish": [
        "good.py good.pth --name test_vit.own --about about.yml --metrics top1 --out zoo"
    ],
    "zoo convert": ["--from hyperboliccv official.pth out.pth"],
    **{
        f"fewshot {protocol}": [
            f"{source} --method coop --datasets dtd --seeds 1 --shots 2 --root few --size 64 "
            "--clip tiny:none --steps 1 --host text_chunk=2 --out out"
        ]
        for protocol, source in (
            ("base2new", ""),
            ("shots", ""),
            ("cross", "--source dtd"),
            ("dg", "--source dtd"),
        )
    },
    "fewshot table": ["results"],
    "clip evaluate": ["--clip emoji-t8 --suite uncha --data few --sets dtd --device cpu --out out"],
    "clip segment": ["photos --classes words.txt --clip emoji-t8 --device cpu --out out"],
    "clip chains": ["chains.csv --clip emoji-t8 --steps 3 --device cpu --out out"],
    "clip make-chains": ["emoji out.csv --root emoji"],
    "clip radius": ["--clip emoji-t8 --classes words.txt --images photos --device cpu --out out"],
    "metric embed": ["photos --model test_vit --weights vit.pth --device cpu --save out.npz"],
    "metric search": [
        "photos/a.png --gallery photos --model test_vit --weights vit.pth --device cpu --save "
        "out.png"
    ],
    "metric hierarchy": [
        "--config learner.py --weights learner.pth --per-class 2 --device cpu --out out"
    ],
    "disk": ['"animal > dog, animal > cat" --steps 2 --out page.html --gif walk.gif'],
    "metric closure": ["closure.csv --steps 2 --out out"],
    "lm save": ["text.py text.pth out"],
    "lm generate": ["lm hello --tokens 2 --device cpu"],
    "lm eval": ["lm --tasks own --include tasks --limit 2 --device cpu"],
    "scaling run": ["--steps 1 --batch 4 --widths 5 8 --device cpu --out out"],
    "scaling heads": ["head.safetensors --tensor w --out out"],
    "scaling tokens": ["ids.npy --out out"],
    "scaling fit": ["losses.csv --out out"],
    "data make": ["out --emoji emoji --photos backdrops --layout coco --train 2 --val 1 --size 32"],
    "data prepare": ["voc20 voc out"],
    "data convert": ["boxes out"],
    "data shard": ["pairs out --samples 1"],
}


_TEXTS = {
    "words.txt": "a mammal\na fruit\n",
    "few/dtd/labels/test1.txt": "apple/test0.png\nbird/test0.png\n",
    "script.py": "print('ran')\n",
    "pairs/captions.csv": "image,caption\na.png,a red disk\nb.png,a ring\n",
    "closure.csv": "id1,id2\ndog,animal\ncat,animal\nwolf,dog\nwolf,animal\n",
    "chains.csv": "id,captions\n1,animal=>dog=>a small dog\n2,thing=>cup=>a red cup\n",
    "losses.csv": "family,dataset,m,loss\n"
    + "".join(f"a,c4,{m},{2 + 100 / m}\n" for m in (64, 128, 256, 512)),
    "tasks/items.jsonl": '{"a": "the sea", "b": [" is", " was"], "c": 0}\n' * 2,
    "tasks/own.yaml": "task: own\ndataset_path: json\ndataset_kwargs: {data_files: "
    "tasks/items.jsonl}\ntest_split: train\noutput_type: "
    "multiple_choice\ndoc_to_text: '{{a}}'\ndoc_to_choice: '{{b}}'\n"
    "doc_to_target: '{{c}}'\nmetric_list: [{metric: acc}]\n",
    "about.yml": "description: Tiny.\nintended_use: Tests.\ndata: Noise.\ntraining: hypvision "
    "train good.py\nlimits: [Knows nothing.]\nlicence: Apache-2.0\ntest_data: noise\n",
    "run/20260101_000000/vis_data/scalars.json": "".join(
        json.dumps(dict(loss=1 / step, lr=0.1, iter=step, epoch=1, step=step)) + "\n"
        for step in (1, 2, 3)
    )
    + '{"top1": 50.0, "step": 1}\n',
    "voc/ImageSets/Segmentation/val.txt": "x\n",
}


def write_inputs(folder: Path) -> Path:
    """What the lines read, in a new folder."""
    torch.manual_seed(0)
    for name, text in _TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    rng = np.random.default_rng(0)
    for name in (
        "photos/a.png",
        "photos/b.png",
        "pairs/images/a.png",
        "pairs/images/b.png",
        "voc/JPEGImages/x.jpg",
        "boxes/a.png",
        "backdrops/train/a.png",
        "backdrops/test/a.png",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(folder / name)
    (folder / "voc/SegmentationClassAug").mkdir()
    Image.new("L", (48, 40), 1).save(folder / "voc/SegmentationClassAug/x.png")
    corners = dict(label="cat", points=[[1, 2], [30, 20]], shape_type="rectangle")
    boxes = dict(imagePath="a.png", imageHeight=40, imageWidth=48, shapes=[corners])
    (folder / "boxes/a.json").write_text(json.dumps(boxes))
    with writing_video(folder / "film.mp4", 5) as append:
        for name in "ab":
            append(Image.open(folder / f"photos/{name}.png"))
    make_emoji(folder / "emoji", styles=("noto",))
    np.save(folder / "ids.npy", np.arange(400) ** 2 // 800)
    save_file({"w": torch.randn(20, 6)}, folder / "head.safetensors")
    make_images(folder / "images", per_class=2)
    write_config(folder / "good.py", Path("images"))
    _save(
        folder / "good.pth",
        MODELS.build(load_config(folder / "good.py").model),
        classes=["blue", "green", "red"],
    )
    torch.save(timm.create_model("test_vit").state_dict(), folder / "vit.pth")
    official = timm.create_model(
        "hcnn_resnet18", num_classes=3, layers=(1, 1, 1, 1), widths=(4, 4, 8, 8)
    )
    torch.save({"model": hyperboliccv_to_official(official.state_dict())}, folder / "official.pth")
    write_learner(folder)
    _write_language_model(folder)
    coop(folder / "few", "dtd", classes=4, train=3, val=1, test=1)
    cell = CellSpec("base2new", "coop", "dtd", 2, 1)
    result = Result(cell, dict(base=60.0, new=40.0), Settings(dict(name="tiny")), 1, 1)
    (folder / "results" / cell.key).mkdir(parents=True)
    content = dict(asdict(result), cell=cell._asdict(), settings=result.settings.shared())
    (folder / "results" / cell.key / "result.json").write_text(json.dumps(content))
    return folder


def _save(path: Path, model: torch.nn.Module, **meta) -> None:
    torch.save(dict(state_dict=model.state_dict(), meta=dict(dataset_meta=meta)), path)


def write_learner(folder: Path) -> None:
    """A metric learner, untrained: ``learner.py`` and ``learner.pth``."""

    def loader(split):
        data = dict(
            type="RetrievalFolder",
            root=f"images/{split}",
            transform=dict(input_size=32, crop_pct=1.0),
        )
        return dict(batch_size=4, num_workers=0, dataset=data)

    model = dict(
        type="MetricLearner", backbone=dict(model_name="test_vit", img_size=32),
        neck=dict(dim=8, geometry="lorentz"), num_classes=3,
        hier_loss=dict(num_proxies=6, neighbours=3, draws=3),
    )  # fmt: skip
    config = Config(
        dict(model=model, train_dataloader=loader("train"), test_dataloader=loader("val"))
    )
    config.dump(folder / "learner.py")
    _save(folder / "learner.pth", MODELS.build(config.model))


def _write_language_model(folder: Path) -> None:
    """A language model, untrained: ``text.py`` and ``text.pth``, and as a folder, ``lm``."""
    (folder / "text").mkdir()
    config = small("helm-d-tiny_books.py", make_text(folder / "text"), folder)
    config.dump(folder / "text.py")
    _save(folder / "text.pth", MODELS.build(config.model))
    HelmForCausalLM(
        HelmConfig.of("helm_d_tiny", bos_token_id=1, eos_token_id=1, pad_token_id=0)
    ).save_pretrained(folder / "lm")
    transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(folder / "lm")


def lines() -> list[list[str]]:
    """The words of every line."""
    return [[*name.split(), *shlex.split(line)] for name, every in LINES.items() for line in every]


def tiny(replace: Callable[[Any, str, Any], None]) -> None:
    """Replace what a line would spend its time on: the CLIP of few shots, processes that begin
    anew."""
    for module in (few_shot, few_shot_benchmark):
        replace(module, "create_clip", lambda **options: fewshot.bundle())
    replace(publishing, "_measure", lambda *args: {"top1": 50.0})


def call(words: list[str], place: str, longest: int | None = None, after: int | None = None) -> int:
    """Run a line in a folder, in a process of its own; returns the exit status.

    Args:
        words: of the line.
        place: the folder.
        longest: the bytes of a file after which the system refuses to write more.
        after: the calls of functions of hypvision after which Ctrl-C is pressed; at the end their
            number is printed.
    """
    os.chdir(place)
    os.environ["HYPVISION_HOME"] = str(Path(place, "home"))
    tiny(setattr)
    if longest is not None:
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (longest, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        )
    count = 0

    def press(frame, event, argument):
        nonlocal count
        code = frame.f_code
        if (
            event == "call"
            and "/hypvision/" in code.co_filename
            and not code.co_flags & inspect.CO_GENERATOR
        ):
            count += 1
            if count == after:
                raise KeyboardInterrupt

    if after is not None:
        sys.setprofile(press)
    status = hypvision_cli.main(words)
    sys.setprofile(None)
    if after is not None:
        print(f"\n{count}")
    return status
