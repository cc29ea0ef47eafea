"""Make the config for a folder of data (``hypvision train FOLDER``). Folders with boxes are handled
by :mod:`hypvision.tasks.own_boxes`."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS

from hypvision.data.multi_label import MultiLabelDataset, read_table
from hypvision.data.tables import (
    ImageTableDataset,
    has_several_labels,
    part_columns,
    read_cells,
    read_labels_of,
    read_part,
    table_classes,
    table_parts,
)
from hypvision.data.usage import PARTS, Usage, class_names, entries_of, part_of
from hypvision.engine.config import Run, load_config
from hypvision.io import HypvisionError, Plain, StrPath, ensure
from hypvision.io.files import write_text
from hypvision.io.images import is_hidden
from hypvision.io.shipped import config_folder, find_config

from .own_boxes import (
    Batches,
    boxes_config,
    choose_boxes,
    described_boxes,
    nearest,
    refuse_other_boxes,
    set_epochs,
    told,
)
from .probe import every_fifth

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


_ROOT = "%data_root%"  # stands for the folder of the data until the text of a config is written


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
    folder = folder if folder.name else folder.resolve()  # paths below '.' do not begin with it
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
    write_text(path, _signed(_text_of(config).encode()).decode())
    return path


def _text_of(config: Config) -> str:
    """Return the text of a config in which the paths of the data begin with its ``data_root``, so
    that all of them follow this line."""
    run = Run.of(config)
    run.move_data(run.data_root, _ROOT)
    text = re.sub(rf"(['\"]){_ROOT}\1", "data_root", run.pretty_text)
    return re.sub(rf"(['\"]){_ROOT}/", r"data_root + \1/", text)


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
        folder: folder with ``{train,val,test}/CLASS/*``, or other names of
            :data:`~hypvision.data.usage.PARTS` in letters of any size, of which one of ``val`` and
            ``test`` stands for both; with ``CLASS/*``, where every fifth image of a class is for
            validation; or with a table of one label or several per image, ``train.csv`` (and
            ``val.csv``, ``test.csv``), ``metadata.csv``, ``labels.csv``, or ``train/_classes.csv``
            and the like (:mod:`hypvision.data.tables`), of which a column ``split`` may divide the
            rows.

    Raises:
        HypvisionError: there are fewer than two classes, or no class has an image for validation.
    """
    listing = _listing(folder)
    table = _table(listing, "train")
    if table is not None:
        return _table_config(folder, table, listing)
    refuse_other_boxes(folder)
    config = _recipe("own_photos.py", folder)
    places = _class_folders(folder, listing)
    train = places["train"]
    for place in (folder, train):
        _refuse_label_maps(place)
    _set_parts(config, {part: dict(root=str(place)) for part, place in places.items()}, folder)
    classes = class_names(train, Usage(train))
    ensure(
        len(classes) >= 2,
        f"The folder '{folder}' has {len(classes)} class folders. Expected: a folder for each "
        f"class with its images, such as '{folder}/cat/1.jpg' and '{folder}/dog/1.jpg', or "
        f"these below '{folder}/train' and '{folder}/val'; or a table, '{folder}/train.csv'. "
        "Boxes of VOC, LabelMe, CreateML or a table: hypvision data convert.",
    )
    config.model.backbone.num_classes = len(classes)
    return config


def _recipe(name: str, folder: Path) -> Config:
    config = load_config(config_folder() / "_base_" / name)
    config.work_dir = str(Path("work_dirs", folder.resolve().name))
    config.data_root = str(folder)
    return config


def _listing(folder: Path) -> dict[str, Path]:
    """Return what lies in a folder, and the tables in its folders of parts, by the path in small
    letters."""
    found = entries_of(folder)
    for name, place in list(found.items()):
        for inner, path in entries_of(place).items() if part_of(name) else ():
            if path.suffix.lower() in (".csv", ".tsv", ".jsonl"):
                found[f"{name}/{inner}"] = path
    return found


def _class_folders(folder: Path, listing: dict[str, Path]) -> dict[str, Path]:
    """Return the folder with the class folders of each part; one, for the training, if they are not
    divided. A test of images without class folders, as in competitions, is left out."""
    found: dict[str, Path] = {}
    for part, names in PARTS.items():
        for name in names:
            if _is_folder(listing.get(name)):
                found.setdefault(part, listing[name])
    if not _is_divided(found, listing):
        return {"train": folder}
    if "test" in found and not any(map(_is_folder, found["test"].iterdir())):
        del found["test"]
    return found


def _is_divided(parts: dict[str, Path], listing: dict[str, Path]) -> bool:
    """Return whether folders are parts of the data: a lone 'train' among other classes is a
    class. The results of trainings, in work_dirs, are none."""
    others = [
        name
        for name, path in listing.items()
        if _is_folder(path) and not part_of(name) and name != "work_dirs"
    ]
    return "train" in parts and not (len(parts) == 1 and others)


def _is_folder(path: Path | None) -> bool:
    return path is not None and path.is_dir() and not is_hidden(path.name)


def _set_parts(config: Config, sources: dict[str, Plain], folder: Path) -> None:
    """Set the data sets of a config to the settings of each part; one of validation and test may
    stand for both. Where there are none, every fifth image of each class of the training is for
    both."""
    for part in PARTS:
        config.dataset(part).update(sources[nearest(part, sources)])
    if set(sources) != {"train"}:
        return
    settings = dict(config.dataset("val"))
    images = DATASETS.get(settings.pop("type"))(**settings)
    apart = every_fifth(torch.from_numpy(images.labels))
    ensure(
        apart.any(),
        f"No class in '{folder}' has two images, one to learn from and one to validate with. Add "
        "images, or give a folder val (or a table val.csv) with others of these classes.",
    )
    for part in PARTS:
        chosen = apart if part != "train" else ~apart
        config.dataset(part).indices = chosen.nonzero().flatten().tolist()


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


def _table(listing: dict[str, Path], part: str) -> Path | None:
    """Return the table of a part, which lies beside the folders or in the part's folder; None if
    there is none."""
    names = []
    for own in PARTS[part]:
        names += [name.replace("train", own) for name in _TABLES if "train" in name]
        names += [name for name in _TABLES if "train" not in name and own == "train"]
        names += [f"{own}/{name}" for name in _TABLES if "train" not in name]
    return next((listing[name] for name in names if name in listing), None)


def _table_config(folder: Path, table: Path, listing: dict[str, Path]) -> Config:
    """Return the config for a table with one label or several per image."""
    divided = table_parts(table)
    part = "train" if divided else None
    several = has_several_labels(table, part)
    config = _recipe("own_labels.py" if several else "own_photos.py", folder)
    kind = MultiLabelDataset if several else ImageTableDataset
    classes = (
        read_table(table, part=part).names
        if several
        else table_classes(read_labels_of(table, part=part).values())
    )
    sources = _table_sources(table, listing, divided)
    for name in PARTS:
        config.dataset(name).update(type=kind.__name__, classes=classes)
    _set_parts(config, sources, table)
    config.model.backbone.num_classes = len(classes)
    return config


def _table_sources(table: Path, listing: dict[str, Path], divided: list[str]) -> dict[str, Plain]:
    """Return the settings of each part that has data: rows of the table, where its columns divide
    it, or a table of its own."""
    sources = {name: dict(_of_table(table), part=name) for name in divided}
    sources = sources or {"train": _of_table(table)}
    for name in ("val", "test"):
        own = _table(listing, name)
        if own is not None and name not in sources and (name == "val" or _labelled(own, table)):
            sources[name] = _of_table(own)
    return sources


def _of_table(table: Path) -> Plain:
    return dict(ann_file=str(table), root=str(table.parent))


def _labelled(test: Path, table: Path) -> bool:
    """Return whether the table of a test has all columns of the training table; Kaggle's lacks that
    of the labels."""
    wanted, given = (set(read_part(path, None, "").head) for path in (table, test))
    return wanted <= given


def described(config: Config) -> str:
    """Return a line that says what was found in a folder."""
    if config.scope == "mmdet":
        return described_boxes(config)
    train, val, test = (config.dataset(part) for part in PARTS)
    kind = _KINDS.get(train.type, "class folders")
    place = str(train.get("ann_file") or train.root)
    classes = train.get("classes") or class_names(Path(train.root), Usage(train.root))
    return told(kind, place, classes, *map(_source, (val, test)))


def _source(dataset: Any) -> str:
    """Return words for the images of a part that is not for training."""
    if dataset.get("indices"):
        return f"every fifth image{' of a class' * (dataset.type != 'MultiLabelDataset')}"
    place = dataset.get("ann_file") or dataset.root
    if dataset.get("part") is None:
        return f"'{place}'"
    column = part_columns(read_cells(place, ""))[0]
    return f"its rows of '{dataset.part}' (column '{column}')"
