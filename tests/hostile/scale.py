"""Data that are far larger than usual: a COCO file of a million annotations, folders of 100,000
classes.

Time and memory grow with their number and not faster.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .table import Case, shared

GROUP = "scale"
TRIED = {
    GROUP: "a COCO file of a million annotations (checked, and one batch trained); folders of "
    "100,000 classes"
}
IMAGES, OBJECTS = 100_000, 10  # objects of an image
CLASSES = 100_000


def _copies(content: bytes, paths: Iterator[Path]) -> None:
    """Files of this content; a file system lets about 65,000 names have one file."""
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 10_000 == 0:
            path.write_bytes(content)
            first = path
        else:
            os.link(first, path)


def _picture(side: int) -> bytes:
    from PIL import Image

    encoded = io.BytesIO()
    Image.new("RGB", (side, side), (90, 120, 30)).save(encoded, "PNG")
    return encoded.getvalue()


def _coco(folder: Path) -> None:
    """Scenes of one small picture."""
    (folder / "annotations").mkdir()
    categories = [dict(id=1, name="disk"), dict(id=2, name="square")]
    for split, count in (("train2017", IMAGES), ("val2017", 4)):
        _copies(_picture(64), (folder / split / f"{number}.png" for number in range(count)))
        images = [dict(id=i, file_name=f"{i}.png", width=64, height=64) for i in range(count)]
        with open(folder / f"annotations/instances_{split}.json", "w") as file:
            file.write(
                f'{{"categories": {json.dumps(categories)}, "images": {json.dumps(images)}, '
                '"annotations": ['
            )
            for number in range(count * OBJECTS):
                x, y = number % 40, number % 37
                square = [x, y, x + 20, y, x + 20, y + 20, x, y + 20]
                about = dict(id=number, image_id=number // OBJECTS, category_id=1 + number % 2,
                iscrowd=0, area=400,
                             bbox=[x, y, 20, 20], segmentation=[square])  # fmt: skip
                file.write(("," if number else "") + json.dumps(about))
            file.write("]}")


def _config(folder: Path) -> Path:
    from helpers.engine import tiny

    data = shared("coco", _coco)
    path = tiny("detection", data, folder / "config.py")
    text = path.read_text()
    kind = dict(
        type="CocoDataset",
        metainfo=dict(classes=("disk", "square")),
        _delete_=True,
        data_root=f"{data}/",
    )
    for split in ("train", "val"):
        about = dict(
            kind,
            ann_file=f"annotations/instances_{split}2017.json",
            data_prefix=dict(img=f"{split}2017/"),
        )
        text += f"\n{split}_dataloader['dataset'] = {about!r}\n"
        pipeline = "train_pipeline" if split == "train" else "test_pipeline"
        text += f"{split}_dataloader['dataset']['pipeline'] = {{{{_base_.{pipeline}}}}}\n"
    text += "test_dataloader = val_dataloader\n"
    text += (
        "model['roi_head'] = dict(bbox_head=dict(num_classes=2), mask_head=dict(num_classes=2))\n"
    )
    path.write_text(text)
    return path


def _check(folder: Path) -> str:
    """``hypvision check``."""
    from .disk import call

    begun = time.monotonic()
    status, said = call(["check", str(_config(folder))])
    assert status == 0, said[-2000:]
    assert "1000000" in said.replace(",", "").replace(" ", "") or f"{IMAGES}" in said.replace(
        ",", ""
    ), said[-2000:]
    return f"{time.monotonic() - begun:.0f} s: {' '.join(said.split())[:150]}"


def _train(folder: Path) -> str:
    """``hypvision train`` for one batch."""
    import mmengine.runner.runner

    from .disk import call

    mmengine.runner.runner.collect_env = dict
    config = _config(folder)
    text = (
        config.read_text()
        + "train_cfg = dict(type='IterBasedTrainLoop', max_iters=1, val_interval=10, "
        "_delete_=True)\n"
    )
    config.write_text(text + "val_cfg = None\nval_dataloader = None\nval_evaluator = None\n")
    begun = time.monotonic()
    status, said = call(["train", str(config), "--work-dir", str(folder / "work")])
    assert status == 0, said[-3000:]
    return f"{time.monotonic() - begun:.0f} s"


def _folders(folder: Path) -> None:
    _copies(_picture(32), (folder / "train" / name / "a.png" for name in _names()))
    (folder / "val").symlink_to("train")


def _data(folder: Path, **options: Any) -> Any:
    from hypvision.data.image_folder import ImageFolderDataset

    data = ImageFolderDataset(
        str(shared("folders", _folders) / "train"), dict(input_size=32, crop_pct=1.0), **options
    )
    assert len(data) == CLASSES == len(data.metainfo["classes"])
    assert data[CLASSES - 1]["label"] == CLASSES - 1 or options.get("classes") is not None
    return data


def _listing(**options: Any) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        shared("folders", _folders)
        begun = time.monotonic()
        _data(folder, **options)
        return f"{time.monotonic() - begun:.1f} s"

    return run


def _names() -> list[str]:
    return [f"class {number:06d}" for number in range(CLASSES)]


def _of_names(folder: Path) -> str:
    return _listing(classes=_names()[::-1])(folder)


def _of_a_folder(folder: Path) -> str:
    return _listing(classes=str(shared("folders", _folders) / "val"))(folder)


def _renamed(folder: Path) -> str:
    return _listing(folders={name: f"new {name}" for name in _names()})(folder)


def _of_a_list(folder: Path) -> str:
    lines = (f"{name}/a.png {number}" for number, name in enumerate(_names()))
    (folder / "list.txt").write_text("\n".join(lines))
    return _listing(ann_file=str(folder / "list.txt"))(folder)


def _lacking(folder: Path) -> str:
    """Half of the classes have no folder: the sentence is short."""
    from hypvision.io.errors import HypvisionError

    shared("folders", _folders)
    begun = time.monotonic()
    try:
        _data(folder, classes=[*_names(), *(f"none {number}" for number in range(CLASSES))])
    except HypvisionError as error:
        assert len(str(error)) < 2000, f"a sentence of {len(str(error))} characters"
        return f"{time.monotonic() - begun:.1f} s: {str(error)[:150]}"
    raise AssertionError("it has classes without folders")


def _check_folders(folder: Path) -> str:
    """``hypvision check`` of a classifier of so many classes."""
    from helpers.engine import write_config

    from .disk import call

    config = write_config(folder / "config.py", shared("folders", _folders))
    config.write_text(config.read_text().replace("num_classes=3", f"num_classes={CLASSES}"))
    begun = time.monotonic()
    status, said = call(["check", str(config)])
    assert status == 0, said[-2000:]
    return f"{time.monotonic() - begun:.0f} s: {' '.join(said.split())[:150]}"


def cases() -> list[Case]:
    return [
        Case(GROUP, "a million annotations: check", _check, seconds=400, megabytes=6000),
        Case(
            GROUP, "a million annotations: a batch of training", _train, seconds=400, megabytes=6000
        ),
        Case(GROUP, "100,000 classes: folders", _listing(), seconds=300),
        Case(
            GROUP,
            "100,000 classes: folders in their natural order",
            _listing(sort="natural"),
            seconds=300,
        ),
        Case(GROUP, "100,000 classes: named", _of_names, seconds=300),
        Case(GROUP, "100,000 classes: those of another folder", _of_a_folder, seconds=300),
        Case(GROUP, "100,000 classes: renamed", _renamed, seconds=300),
        Case(GROUP, "100,000 classes: a list", _of_a_list, seconds=300),
        Case(GROUP, "100,000 classes: half of them are not there", _lacking, seconds=300),
        Case(GROUP, "100,000 classes: check", _check_folders, seconds=240, megabytes=2500),
    ]
