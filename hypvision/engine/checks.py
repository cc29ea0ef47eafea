"""Find errors of the user before a run starts where possible, and explain the others in a
paragraph."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch.utils.data import DataLoader

from hypvision.data.image_folder import check_root
from hypvision.io import HypvisionError, Plain, StrPath, did_you_mean, explain_machine, refuse, some
from hypvision.io.shipped import shipped_configs, where_data_come_from

_logger = logging.getLogger(__name__)

LAYOUT = {
    "img_path": "the images",
    "img": "the images",
    "seg_map_path": "the label maps, one PNG for each image",
    "seg": "the label maps, one PNG for each image",
    "ann_file": "the annotation file, or the list of names",
    "sub_data_root": "the folders of the images, the annotations and the lists",
}


def close_configs(path: StrPath) -> str:
    """Return a hint that names up to three shipped configs with names like ``path``; empty if there
    are none."""
    return did_you_mean(Path(path).name.removesuffix(".py"), shipped_configs())


def datasets_of(config: Any) -> Iterator[dict]:
    """Yield every data set of a config, also those inside wrappers (RepeatDataset, ConcatDataset,
    ...)."""
    if isinstance(config, dict):
        if any(key in config for key in ("data_root", "data_prefix", "ann_file", "root")):
            yield config
        for key in ("dataset", "datasets"):
            if key in config:
                yield from datasets_of(config[key])
    elif isinstance(config, (list, tuple)):
        for item in config:
            yield from datasets_of(item)


def inner_dataset(loader: Any) -> Any:
    """Return the data set of a data loader in a config, without its wrappers; an empty dict if
    there is none."""
    dataset = loader.get("dataset", {})
    while "dataset" in dataset:
        dataset = dataset["dataset"]
    return dataset


def walk(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value in a config with its dotted key; containers come before their contents."""
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, (list, tuple))
        else ()
    )
    for key, value in items:
        yield f"{prefix}{key}", value
        yield from walk(value, f"{prefix}{key}.")


def as_list(values: Any) -> list[Any]:
    """Return a list of ``values``, which a config may give alone or as a list, such as
    evaluators."""
    return list(values) if isinstance(values, (list, tuple)) else [values]


def data_folders(config: dict) -> list[Path]:
    """Return the folders of images and label maps that a config names."""
    found: dict[Path, None] = {}
    for phase in ("train", "val", "test"):
        for dataset in datasets_of(config.get(f"{phase}_dataloader")):
            found.update(dict.fromkeys(_folders_of(dataset)))
    return list(found)


def _folders_of(dataset: dict) -> list[Path]:
    root = str(dataset.get("data_root") or dataset.get("root") or "")
    prefixes = dataset.get("data_prefix")
    values = prefixes.values() if isinstance(prefixes, dict) else ()
    parts = [part for part in values if isinstance(part, str)] or [""]
    if not any([root, *parts]) or any(map(_is_remote, [root, *parts])):
        return []
    return [Path(root, part).expanduser().resolve() for part in parts]


def check_data(config: dict, phases: tuple[str, ...] = ("train", "val", "test")) -> None:
    """Check that the files and folders that data sets and metrics of ``phases`` name exist, before
    anything is built.

    Without this check mmseg and mmdet would fail later, far from the cause. hypvision's data sets
    make further checks when they are built.
    """
    for phase in phases:
        loader = config.get(f"{phase}_dataloader")
        if isinstance(loader, dict) and loader and not loader.get("dataset"):
            raise HypvisionError(
                f"{phase}_dataloader names no data. Give it a dataset, such as dict(type=..., "
                "root=...)."
            )
        for dataset in datasets_of(loader):
            if dataset.get("type") == "ImageFolderDataset":
                check_root(dataset["root"])
            elif dataset.get("type") != "CIFARDataset":
                _check_dataset(dataset, phase)
        for evaluator in as_list(config.get(f"{phase}_evaluator") or []):
            _check_evaluator(evaluator, phase, config)


def _check_evaluator(evaluator: dict, phase: str, config: dict) -> None:
    """Check that the annotation files of a metric exist; a config can forget to move them with its
    data."""
    for key in ("ann_file", "seg_prefix"):
        value = evaluator.get(key)
        if not isinstance(value, str) or _is_remote(value) or Path(value).expanduser().exists():
            continue
        own = [
            str(Path(str(dataset.get("data_root") or ""), dataset["ann_file"]))
            for dataset in datasets_of(config.get(f"{phase}_dataloader"))
            if dataset.get("ann_file")
        ]
        hint = f" The {phase} data have '{own[0]}'." if own and key == "ann_file" else ""
        raise HypvisionError(
            f"The metric {evaluator.get('type')} of {phase}_evaluator reads '{value}', which does "
            f"not exist.{hint} Set {phase}_evaluator.{key} in the config or with --cfg-options."
        )


def _is_remote(address: str) -> bool:
    return address.startswith(("s3://", "http://", "https://", "petrel:"))


def _places_of(dataset: dict, root: str) -> dict[str, Path]:
    """Return the files and folders that a data set names, by their keys."""
    parts = {**(dataset.get("data_prefix") or {}), "ann_file": dataset.get("ann_file") or None}
    return {
        key: Path(root, part).expanduser() for key, part in parts.items() if isinstance(part, str)
    }


def _check_dataset(dataset: dict, phase: str) -> None:
    root = str(dataset.get("data_root") or "")
    if _is_remote(root):
        return
    places = _places_of(dataset, root)
    gone = [str(place) for place in places.values() if not place.exists()]
    if not Path(root).expanduser().exists():
        gone = [root]
    empty = list(map(str, filter(_is_empty, places.values())))
    layout = "; ".join(f"'{place}': {LAYOUT.get(key, key)}" for key, place in places.items())
    data = f"the {phase} data ({dataset.get('type')})"
    if gone or empty:
        wrong = f"{some(gone)} of {data} does not exist. Expected: {layout or root}."
        if not gone:
            wrong = f"The folder {some(empty)} of {data} is empty."
        raise HypvisionError(f"{wrong} {where_data_come_from(root)}")


def _is_empty(place: Path) -> bool:
    return place.is_dir() and not any(path.is_file() for path in place.rglob("*"))


def check_schedule(schedule: tuple[str, int, list[Plain]]) -> None:
    """Warn if the decaying learning rate of a :class:`~hypvision.engine.config.Schedule` ends long
    before or after the training."""
    key, length, parts = schedule
    # A cosine with T_max, half of its period, ends there and rises again afterwards.
    ends = [
        part.get("begin", 0) + part["T_max"] if part.get("T_max") else part.get("end", length)
        for part in parts
    ]
    end = max(ends, default=length)
    if (
        not parts
        or not str(parts[-1].get("type")).startswith(("Cosine", "Poly"))
        or 0.9 * length <= end <= length
    ):
        return
    rate = (
        "stays at its last value from there on"
        if end < length
        else "has not fallen to its last value by then"
    )
    last = parts[-1]
    begin = last.get("begin", 0)
    advice = f"Set 'end' of the last param_scheduler in the config to {length}"
    if begin >= length:
        advice = (
            f"The warm-up before it ends at {begin}: give the length by --epochs, which moves both"
        )
    elif last.get("T_max"):
        advice += f", and its T_max to {length - begin}"
        rate = "rises again from there on" if end < min(length, last.get("end", length)) else rate
    _logger.warning(
        "The schedule ends at %s, the training at %s=%s: the learning rate %s. %s.",
        end,
        key,
        length,
        rate,
        advice,
    )


def check_channels(model: Any) -> None:
    """Check that the neck or head of a segmenter or detector expects the channels that its backbone
    returns."""
    backbone = getattr(model, "backbone", None)
    given = getattr(backbone, "out_channels", None)
    name = "decode_head" if getattr(model, "neck", None) is None else "neck"
    part = getattr(model, name, None)
    expected = getattr(part, "in_channels", None)
    index = getattr(part, "in_index", None)
    if not isinstance(given, list) or not isinstance(expected, (list, tuple)):
        return
    if isinstance(index, (list, tuple)) and max(index) < len(given):
        given = [given[i] for i in index]
    network = getattr(backbone, "model_name", type(backbone).__name__)
    refuse(
        (
            list(expected) != given,
            f"model.{name} ({type(part).__name__}) of the config expects maps of {list(expected)} "
            f"channels, but the backbone '{network}' returns {given}. Set "
            f"model.{name}.in_channels={given}.",
        )
    )


# Errors of libraries that come from a mistake in a config or its data: the class of the error, a
# pattern of its text, and the message for the user.
_MISTAKES: tuple[tuple[type[Exception], str, str], ...] = (
    (KeyError, r"(.*registry.*?)(?: Please check.*)?$",
     "The config names something unknown: {0} Correct the 'type', or import the module that "
     "registers it in custom_imports."),
    (KeyError, r"^(\S+).* is not in results$",
     "The evaluator measures '{0}', which this model does not predict: masks need a model with a "
     "mask head. Set metric='bbox' in val_evaluator and test_evaluator."),
    (ValueError, "need at least one array to concatenate",
     "A data set found no samples: its folder or its list (ann_file) holds none, no file has the "
     "ending that img_suffix asks for, or filter_cfg leaves all of them out. Check these (see "
     "docs/data.md)."),
    (AssertionError, r"failed to load image: *(.*)",
     "The image '{0}' cannot be read. Replace the file by an intact copy, or remove it from the "
     "data."),
    (ValueError, r"Expected more than 1 value per channel when training",
     "A batch norm has no statistics of one image whose map is one pixel. Take batches of 2 images "
     "or more (--cfg-options train_dataloader.batch_size=...), and train_dataloader.drop_last=True "
     "where the last one is smaller; or keep the norms as they are: model.freeze_bn=True of a "
     "classifier, norm_eval=True of a backbone."),
    (IndexError, r"Target (-?\d+) is out of bounds",
     "The data has the label {0}, which is out of range for the classes of the model. Correct the "
     "label files, or num_classes and ignore_index in the config."),
    (AssertionError, "`epoch_length` must be a positive integer, but got 0",
     "The training data are fewer than one batch, and drop_last leaves them out. Use a smaller "
     "batch (--cfg-options train_dataloader.batch_size=...), or train_dataloader.drop_last=False."),
)  # fmt: skip


def explain(error: BaseException) -> str | None:
    """Return the message for an exception that the user can fix; None for a bug.

    Exceptions from a data loader's worker have a traceback as message; its last line is used.
    """
    text = " ".join(_told(error).split())
    if isinstance(error, HypvisionError):
        return text
    message = explain_machine(error)
    if message is not None:
        return message
    for kind, pattern, told in _MISTAKES:
        match = re.search(pattern, text)
        if match and isinstance(error, kind):
            return told.format(*match.groups())
    if type(error).__name__ == "OutOfMemoryError":
        return (
            f"The GPU has no memory left ({text.partition('.')[0]}). Use a smaller batch "
            "(--cfg-options train_dataloader.batch_size=...), --amp, or more GPUs."
        )
    if isinstance(error, (TypeError, ValueError, KeyError, AttributeError, AssertionError)):
        return _explain_building(error, text)
    return None


def _told(error: BaseException) -> str:
    """Return the text of an exception, without the traceback that a data loader's worker puts into
    it."""
    text = str(error)
    if "in DataLoader worker process" in text:
        return re.split(r"\n[\w.]*(?:Error|Exception)[\w.]*: ", text)[-1].strip()
    if isinstance(error, KeyError):
        return str(error.args[0]) if error.args else ""
    return text


def _explain_building(error: Exception, text: str) -> str | None:
    """Return the message for an error that a constructor raised while a config was being built;
    None for errors elsewhere."""
    inside, names, target = _being_built(error)
    if not inside:
        return None
    unknown = re.search(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'", text)
    lacking = re.search(r"([\w.]+)\(\) missing \d+ required [\w-]+ arguments?: (.+)", text)
    if unknown:
        return _unknown_argument(unknown[1].removesuffix(".__init__"), unknown[2], target, names)
    if lacking:
        return (
            f"The config lacks what {lacking[1].removesuffix('.__init__')} needs: {lacking[2]}. "
            "Add it to the config, or give it with --cfg-options."
        )
    of = f" of {target.__name__}" if inspect.isclass(target) else ""
    wrong = f"does not fit: {type(error).__name__}, {text}"
    if isinstance(error, ValueError):
        wrong = f"is out of range: {text}"
    return (
        f"The config has a value{of} that {wrong.rstrip('.')}. Correct it in the config or in "
        "--cfg-options."
    )


def _being_built(error: Exception) -> tuple[bool, Plain, Any]:
    """Return whether an error came up while a config was built or its data were checked, the names
    that the builder knows, and the class that it was building."""
    inside = False
    names: Plain = {}
    target = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        inside = inside or code is check_data.__code__
        builds = code.co_name.startswith(("build_", "from_cfg"))
        if builds and "mmengine" in Path(code.co_filename).parts:
            inside = True
            names = trace.tb_frame.f_globals
            target = trace.tb_frame.f_locals.get("obj_cls", target)
        trace = trace.tb_next
    return inside, names, target


def _unknown_argument(owner: str, key: str, target: Any, names: Plain) -> str:
    """Return the message for an unknown argument ``key`` of ``owner``, a class or a method that the
    constructor passes its arguments to."""
    kind = names.get(owner)
    parent, _, method = owner.partition(".")
    if inspect.isclass(target) and parent in [base.__name__ for base in target.__mro__]:
        # The owner is the class that the config names, or one of its base classes.
        kind = target
        owner = target.__name__
    known: list[str] = []
    if owner == "DataLoader":
        known = list(inspect.signature(DataLoader).parameters)
    elif inspect.isclass(kind):
        takers = [*kind.__mro__, getattr(kind, method, kind)]
        found = [name for taker in takers for name in inspect.signature(taker).parameters]
        known = [name for name in found if name not in ("args", "kwargs", "options", "self")]
    return (
        f"The config gives {owner} an argument '{key}', which it does not have."
        f"{did_you_mean(key, known, cutoff=0.6)} Correct the key in the config or in --cfg-options."
    )


@contextmanager
def readable_errors() -> Iterator[None]:
    """Context or decorator that turns exceptions that :func:`explain` can explain into a
    :class:`HypvisionError`."""
    # On a full disk, logging would print a traceback for every line; the error that ends the
    # command names the cause once.
    with patch.object(logging, "raiseExceptions", False):
        try:
            yield
        except Exception as error:
            paragraph = explain(error)
            if paragraph is None:
                raise
            raise HypvisionError(paragraph) from error
