"""Make the config for a folder of data (``hypvision train FOLDER``). Folders with boxes are handled
by :mod:`hypvision.tasks.own_boxes`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config

from hypvision.data.image_folder import ImageFolderDataset
from hypvision.data.multi_label import MultiLabelDataset, read_table
from hypvision.data.tables import (
    ImageTableDataset,
    has_several_labels,
    read_cells,
    read_labels_of,
    table_classes,
)
from hypvision.data.usage import PARTS, Usage, class_names
from hypvision.engine.config import Run, load_config
from hypvision.io import HypvisionError, StrPath, ensure
from hypvision.io.files import write_text
from hypvision.io.shipped import config_folder, find_config

from .own_boxes import (
    Batches,
    boxes_config,
    choose_boxes,
    described_boxes,
    refuse_other_boxes,
    set_epochs,
)
from .probe import every_fifth

# names of the validation part; the leftmost that exists is used
_VAL = (*PARTS["val"], *PARTS["test"])
_TABLES = (
    "train.csv", "train.tsv", "train.jsonl", "metadata.csv", "metadata.jsonl", "labels.csv",
    "_classes.csv",
)  # fmt: skip

_KINDS = {
    "ImageTableDataset": "a table",
    "MultiLabelDataset": "a table with several labels an image",
}
_MAPS = {"masks", "labels", "annotations"}  # names of folders of label maps, beside images


# The last line of a config that hypvision wrote begins so.
_SIGN = b"# If you edit this file, hypvision never replaces it. Sum of what it wrote: "


class Choices(NamedTuple):
    """The settings of the config that a user may choose; None: the value of the config is used."""

    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    image_size: int | None = None


_NONE = Choices()


def config_of(
    source: StrPath | Config, choices: Choices = _NONE, processes: int = 1
) -> StrPath | Config:
    """Return the config for a folder, with the user's choices; return any other source unchanged.
    A training on few images gets a length in which so many ``processes`` take enough steps.

    Raises:
        HypvisionError: something was chosen for a config, which has its own settings; or a folder
            has the name of a shipped config.
    """
    if isinstance(source, Config) or not _is_data(source):
        # Epochs are allowed for every config, since --epochs moves its schedule
        # (hypvision.engine.lengths).
        chosen = choices._replace(epochs=None)._asdict()
        given = [name for name, value in chosen.items() if value is not None]
        if given:
            raise HypvisionError(
                f"--{given[0].replace('_', '-')} is for a folder of images; '{source}' is a "
                "config, which has its own. Change the config by --cfg-options."
            )
        return source
    folder = Path(source).expanduser()
    batches = Batches(choices.batch_size, processes)
    config = boxes_config(folder, batches) or folder_config(folder)
    _choose(config, choices)
    return config


def config_of_weights(source: StrPath, weights: StrPath) -> StrPath | Config:
    """Return the config for a folder, as :func:`config_of` does; where a training on this folder
    has left its config beside the weights, this, which has the size of its images."""
    config = config_of(source)
    beside = Path(weights).expanduser().parent / "config.py"
    if not isinstance(config, Config) or not beside.is_file():
        return config
    parts = [dict(each.dataset("train")) for each in (config, load_config(beside))]
    for part in parts:
        part.pop("transform", part.pop("pipeline", None))
    return beside if parts[0] == parts[1] else config


def _is_data(source: StrPath) -> bool:
    """Return whether the source is a folder, or YOLO's ``data.yaml``. A folder ``photos`` is meant
    before the shipped config ``demo/photos``.

    Raises:
        HypvisionError: the source is an archive, or both a folder ``demo/photos`` (or that of a
            training) and the full name of a shipped config.
    """
    path = Path(source).expanduser()
    if path.suffix.lower() in (".zip", ".tar", ".gz", ".tgz", ".rar", ".7z") and path.is_file():
        raise HypvisionError(f"'{source}' is an archive. Unpack it, and give its folder.")
    yaml = path.suffix in (".yaml", ".yml") and path.is_file()
    config = find_config(source)
    # A training's folder has its config in it, and may have that config's name.
    is_work_dir = (path / f"{path.name}.py").is_file()
    full = config is not None and (len(Path(source).parts) > 1 or is_work_dir)
    if path.is_dir() and full and not str(source).startswith((".", "/", "~")):
        raise HypvisionError(
            f"'{source}' is a folder here, and also the name of a shipped config. Write "
            f"'./{source}' for the folder, or '{config}' for the config."
        )
    return yaml or path.is_dir()


def save_config(config: Config, work_dir: str | None) -> Path:
    """Write the config for a folder into the work dir, where it can be tested, changed and trained
    with, and return its path.

    Raises:
        HypvisionError: the config in the work dir was edited, as its last line shows.
    """
    path = Path(work_dir or config.work_dir, "config.py")
    content = path.read_bytes() if path.is_file() else _signed(b"")
    ensure(
        content == _signed(content.rpartition(_SIGN)[0]),
        f"'{path}' was edited, and is not replaced by the config for the folder. Train with it: "
        f"hypvision train {path}. Or give another --work-dir, or delete the file.",
    )
    write_text(path, _signed(Run.of(config).pretty_text.encode()).decode())
    return path


def _signed(content: bytes) -> bytes:
    """Return a config with the sum of its text in the last line, by which :func:`save_config`
    recognises an unedited one."""
    return content + _SIGN + hashlib.sha256(content).hexdigest().encode() + b"\n"


def _choose(config: Config, choices: Choices) -> None:
    parts = [config[f"{part}_dataloader"] for part in PARTS]
    if config.scope == "mmdet":
        parts = parts[:1]  # a detector is measured image by image
        choose_boxes(config, choices.image_size)
    elif choices.image_size is not None:
        for part in parts:
            part.dataset.transform.input_size = choices.image_size
    for part in parts:
        part.batch_size = choices.batch_size or part.batch_size
    config.optim_wrapper.optimizer.lr = choices.lr or config.optim_wrapper.optimizer.lr
    if choices.epochs is not None:
        set_epochs(config, choices.epochs)
        # A warm-up would take the whole training of one epoch.
        if choices.epochs == 1:
            config.param_scheduler = [dict(config.param_scheduler[1], begin=0)]


def folder_config(folder: Path) -> Config:
    """Return the config for a folder of class folders or with a table, ``_base_/own_photos.py``;
    for several labels per image ``_base_/own_labels.py``.

    Args:
        folder: folder with ``{train,val}/CLASS/*`` (``valid``, ``validation`` or ``test`` for
            ``val``); with ``CLASS/*``, where every fifth image of a class is for validation; or
            with a table of one label or several per image, ``train.csv`` (and ``val.csv``),
            ``metadata.csv``, ``labels.csv``, or ``train/_classes.csv`` and the like
            (:mod:`hypvision.data.tables`).

    Raises:
        HypvisionError: there are fewer than two classes, or no class has an image for validation.
    """
    table = _table(folder, "train")
    several = table is not None and has_several_labels(table)
    recipe = "own_labels.py" if several else "own_photos.py"
    config = load_config(config_folder() / "_base_" / recipe)
    config.work_dir = str(Path("work_dirs", folder.resolve().name))
    if table is not None:
        return _table_config(config, folder, table, several)
    refuse_other_boxes(folder)
    train = folder / "train"
    for place in (folder, train):
        _refuse_label_maps(place)
    val = next((folder / name for name in _VAL if (folder / name).is_dir()), folder / "val")
    datasets = [config.dataset(part) for part in PARTS]
    places = (train, val, val)
    indices: tuple[list[int] | None, ...] = (None, None, None)
    if not (train.is_dir() and val.is_dir()):
        images = ImageFolderDataset(str(folder), dict(datasets[1].transform))
        places = (folder, folder, folder)
        indices = _divided(images, folder)
    for dataset, place, kept in zip(datasets, places, indices):
        dataset.root = str(place)
        dataset.indices = kept
    classes = class_names(places[0], Usage(places[0]))
    ensure(
        len(classes) >= 2,
        f"The folder '{folder}' has {len(classes)} class folders. Expected: a folder for each "
        f"class with its images, such as '{folder}/cat/1.jpg' and '{folder}/dog/1.jpg', or "
        f"these below '{folder}/train' and '{folder}/val'; or a table, '{folder}/train.csv'. "
        "Boxes of VOC, LabelMe, CreateML or a table: hypvision data convert.",
    )
    config.model.backbone.num_classes = len(classes)
    return config


def _divided(images: Any, source: Path) -> tuple[list[int], list[int], list[int]]:
    """Return the numbers of the images for training, for validation and for the test, which are the
    same as those for validation: every fifth of each class."""
    apart = every_fifth(torch.from_numpy(images.labels))
    ensure(
        apart.any(),
        f"No class in '{source}' has two images, one to learn from and one to validate with. Add "
        "images, or give a folder val (or a table val.csv) with others of these classes.",
    )
    kept, held_out = (which.nonzero().flatten().tolist() for which in (~apart, apart))
    return kept, held_out, held_out


def _refuse_label_maps(place: Path) -> None:
    """Raise an error for the two folders of a segmentation before they are taken for classes."""
    names = {path.name for path in place.iterdir() if path.is_dir()} if place.is_dir() else set()
    maps = names & _MAPS
    if maps and names - maps == {"images"}:
        raise HypvisionError(
            f"'{place}' has 'images' and '{min(maps)}', so it seems to hold label maps, not "
            "classes. They need a config of five lines that names their classes, with _base_ = "
            "['hypvision::_base_/own_label_maps.py']: docs/own-data.md, 'Semantic segmentation'."
        )


def _table(folder: Path, part: str) -> Path | None:
    """Return the table of a part, which lies beside the folders or in the part's folder; None if
    there is none."""
    own = [name.replace("train", part) for name in _TABLES if part == "train" or "train" in name]
    inside = [f"{part}/{name}" for name in _TABLES if "train" not in name]
    return next((folder / name for name in (*own, *inside) if (folder / name).is_file()), None)


def _labelled(folder: Path, part: str, table: Path) -> Path | None:
    """Return the table of a part for validation; None if there is none, or if it is a test's that
    lacks columns of the training table, as Kaggle's without labels."""
    own = _table(folder, part)
    if own is None or not part.startswith("test"):
        return own
    wanted, given = (set(read_cells(path, "").head) for path in (table, own))
    return own if wanted <= given else None


def _table_config(config: Config, folder: Path, table: Path, several: bool) -> Config:
    """Change the config to a table with one label or ``several`` per image, and return it."""
    kind = MultiLabelDataset if several else ImageTableDataset
    classes = read_table(table).names if several else table_classes(read_labels_of(table).values())
    parts = [config.dataset(part) for part in PARTS]
    held_out = next(filter(None, (_labelled(folder, part, table) for part in _VAL)), None)
    tested = held_out or table
    for dataset, source in zip(parts, (table, tested, tested)):
        dataset.type = kind.__name__
        dataset.ann_file = str(source)
        dataset.root = str(source.parent)
        dataset.classes = classes
    if held_out is None:
        images = kind(**{k: v for k, v in parts[1].items() if k != "type"})
        for dataset, indices in zip(parts, _divided(images, table)):
            dataset.indices = indices
    config.model.backbone.num_classes = len(parts[0].classes)
    return config


def described(config: Config) -> str:
    """Return a line that says what was found in a folder."""
    if config.scope == "mmdet":
        return described_boxes(config)
    data = [config.dataset(part) for part in ("train", "val")]
    kind = _KINDS.get(data[0].type, "class folders")
    places = [str(one.get("ann_file") or one.root) for one in data]
    of_class = "" if data[0].type == "MultiLabelDataset" else " of a class"
    held_out = f"every fifth image{of_class}" if data[1].get("indices") else f"'{places[1]}'"
    return (
        f"found: {kind}, '{places[0]}', {config.model.backbone.num_classes} classes; validation: "
        f"{held_out}"
    )
