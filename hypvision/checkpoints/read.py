"""Read checkpoints of any origin into tensors and plain values, and never run code in them.

A ``.pth`` file is a pickle, and a pickle can run code when it is loaded. PyTorch's restricted
reader builds tensors and plain values alone, but trainings save a little more: NumPy numbers and
arrays, their command line, mmengine's log history. Here their names lead to stand-ins in this
module, never to the classes themselves: NumPy's dtype takes its inner state from the file, by which
a file could make an object at an address of its choice.

The result is then checked: tensors must be dense and no larger than the file, keys must be strings
or numbers, and attributes that would hide methods are removed. Error messages name the file. The
file is opened only once and never repaired.
"""

from __future__ import annotations

import io
import math
import re
import threading
import zipfile
from argparse import Namespace
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hypvision.io import HypvisionError, Plain, StrPath, Values, explaining, refuse
from hypvision.io.files import below, why_no_file
from hypvision.io.records import ShardTable, read_record

from . import torchscript
from .kinds import Kind, kind_of
from .pickles import bounded_functions, check_pickle, open_zip
from .sources import fetch
from .storage import DAMAGED, check_format, format_problem, load_unpacked, unpack
from .types import StateDict
from .wrappers import plain_names, unwrapped

# Stand-ins for classes and functions in the pickles of trainings


def _unsupported(wrong: object, what: str) -> None:
    """Raise PyTorch's error for an unsupported object, described by ``what``, if ``wrong``."""
    if wrong:
        raise UnpicklingError(f"unsupported GLOBAL {what}")


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


class _Dtype:
    """Replace ``numpy.dtype``: the name of a plain number type, and the order of its bytes."""

    _NAMES = re.compile(r"b1|[iu][1248]|f[248]|c8|c16")

    def __init__(self, name: Any, *_: Any):
        self.name = _text(name)
        self.order: Any = "="
        _unsupported(not self._NAMES.fullmatch(self.name), f"numpy.dtype of {self.name[:40]!r}")

    def __setstate__(self, state: Any) -> None:
        # The state is (version, byte order, sub-array, names, fields, ...); plain numbers have a
        # byte order alone.
        _, order, *fields = state[:5]
        _unsupported(any(part is not None for part in fields), "numpy.dtype with fields")
        self.order = _text(order)
        _unsupported(self.order not in ("<", ">", "|", "="), "numpy.dtype of unknown byte order")

    def numpy(self) -> np.dtype:
        return np.dtype(self.name).newbyteorder(self.order)


class _Array(np.ndarray):
    """Replace ``numpy.ndarray``: an array made from bytes of the right number. It is saved again as
    a plain array."""

    def __new__(cls, *_: Any) -> _Array:
        raise UnpicklingError("unsupported GLOBAL numpy.ndarray")

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        plain = [type(part) for part in (shape, dtype, data)] == [tuple, _Dtype, bytes]
        _unsupported(self.shape != (0,) or not plain, "numpy.ndarray of objects")
        kind = dtype.numpy()
        whole = all(type(n) is int and n >= 0 for n in shape) and len(shape) <= 32
        fits = whole and math.prod(shape) * kind.itemsize == len(data)
        _unsupported(not fits, "numpy.ndarray whose shape and bytes disagree")
        # NumPy's type stub asks for numpy.bool, but NumPy itself takes an int.
        checked: Any = (1, shape, kind, fortran is True, data)
        super().__setstate__(checked)

    def __reduce__(self) -> Any:
        return np.array(self).__reduce__()


def _reconstruct(*_: Any) -> _Array:
    """Replace NumPy's ``_reconstruct``: return an empty array, whose state is set next."""
    return np.ndarray.__new__(_Array, (0,), np.uint8)


def _scalar(dtype: Any, data: Any) -> np.generic:
    """Replace ``numpy.core.multiarray.scalar``: return a number made from bytes."""
    plain = isinstance(dtype, _Dtype) and isinstance(data, bytes)
    fits = plain and len(data) == dtype.numpy().itemsize
    _unsupported(not fits, "numpy.scalar of objects")
    return np.frombuffer(data, dtype.numpy())[0]


class LogHistory:
    """Replace mmengine's ``HistoryBuffer``: the numbers that a training has logged.

    Attributes:
        log_history, count_history: one-dimensional arrays of equal length.
        max_length: largest number of values that a training keeps.
    """

    log_history: np.ndarray = np.empty(0)
    count_history: np.ndarray = np.empty(0)
    max_length: int = 1000000

    def __setstate__(self, state: Any) -> None:
        arrays = [state.get(name) for name in ("_log_history", "_count_history")]
        length = state.get("max_length", self.max_length)
        shapes = {each.shape if isinstance(each, _Array) else () for each in arrays}
        lines = len(shapes) == 1 and len(shapes.pop()) == 1
        right = lines and type(length) is int and length > 0
        _unsupported(not right, "mmengine.logging.history_buffer.HistoryBuffer with such a state")
        self.log_history, self.count_history = map(np.array, arrays)
        self.max_length = length


def _history_method(owner: Any, name: Any) -> str:
    """Replace ``getattr``, which a checkpoint may use for one purpose only: mmengine's
    HistoryBuffer pickles its own methods."""
    known = owner is LogHistory and name in ("min", "max", "current", "mean")
    _unsupported(not known, f"builtins.getattr of {str(name)[:40]!r}")
    return name


def _empty_bytes() -> bytes:
    """Replace ``bytes``, by which the content of an empty array is pickled."""
    return b""


# timm and the code of many papers save their command line as a Namespace. NumPy 2 has renamed its
# core, so both names are known.
_ALLOWED: list[Any] = [
    Namespace,
    (LogHistory, "mmengine.logging.history_buffer.HistoryBuffer"),
    (_history_method, "builtins.getattr"),
    (_empty_bytes, "builtins.bytes"),
    (_Array, "numpy.ndarray"),
    (_Dtype, "numpy.dtype"),
    *(
        (function, f"numpy.{core}.multiarray.{name}")
        for core in ("core", "_core")
        for function, name in ((_reconstruct, "_reconstruct"), (_scalar, "scalar"))
    ),
]
_allow_list = threading.Lock()


def allow_training_files() -> None:
    """Let ``torch.load(weights_only=True)``, and so timm, read checkpoints of trainings by the
    stand-ins of this module."""
    torch.serialization.add_safe_globals(_ALLOWED)


def _unpickle(path: Path, device: Any, mapped: bool) -> Any:
    script = torchscript.is_torchscript(path)
    allowed: list[Any] = list(torchscript.stand_ins(path)) if script else _ALLOWED
    mapped = mapped and not script and zipfile.is_zipfile(path)
    opened: AbstractContextManager[Any] = torchscript.opened(path) if script else nullcontext(path)
    with _allow_list, opened as file, bounded_functions():
        # Classes that other code has allowed are not allowed here.
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        try:
            with torch.serialization.safe_globals(allowed):
                content = torch.load(file, map_location=device, weights_only=True, mmap=mapped)
        finally:
            torch.serialization.add_safe_globals(before)
    is_module = isinstance(content, torchscript.ScriptModule)
    return torchscript.script_weights(content) if is_module else content


# Reading checkpoint files

_LONGEST_NAME = 1000
# Weights that many layers share may take so many times the size of the file.
_MOST_SPREAD = 64


def read(source: StrPath, device: Any = "cpu") -> Plain:
    """Return the content of a checkpoint: of a file, of the zoo, of a release or at an address.

    Args:
        source: path of a file; ``zoo:NAME``; ``hf-hub:USER/REPO`` or another release;
            ``https://HOST/FILE#sha256=HEX``. See :func:`hypvision.checkpoints.sources.fetch`.
        device: device of the tensors, as for :func:`torch.load`.
    """
    return read_file(fetch(source), device)


def read_file(
    path: StrPath, device: Any = "cpu", mapped: bool = False, single: str | None = None
) -> Plain:
    """Return the content of a checkpoint file; no code in it is run.

    Args:
        path: a safetensors file; a file of PyTorch (``.pth``, ``.pt``, ...), also a TorchScript
            archive, whose tensors are read by their names in the state dict; the index of shards,
            ``model.safetensors.index.json``; or a folder with one of these.
        device: device of the tensors, as for :func:`torch.load`.
        mapped: map the tensors into memory, so that their numbers are read from the file when they
            are used; works for files that PyTorch wrote, on the CPU.
        single: name for the tensor of a file that holds a single tensor instead of a dict; None:
            such a file raises an error.

    Returns:
        The content: dense tensors and plain values; for safetensors the flat state dict in float32
            (see :mod:`hypvision.checkpoints.storage`).

    Raises:
        HypvisionError: the file is missing, damaged, of another kind, would run code, or does not
            hold a dict.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        path = _in_folder(path)
    _check_there(path)
    if path.name.endswith(_INDEX):
        return _of_shards(path, device, mapped)
    with _explained(path):
        if _is_safetensors(path):
            place = str(device) if isinstance(device, (str, torch.device)) else "cpu"
            return _check_names(load_unpacked(path, place), path)
        content = _unpickle(path, device, mapped)
    if single is not None and isinstance(content, Tensor):
        content = {single: content}
    what = f"a {type(content).__name__}, not a dict of weights. Save model.state_dict() instead."
    refuse((not isinstance(content, dict), f"The checkpoint '{path}' holds {what}"))
    _check_content(content, path)
    return _check_names(content, path)


def _check_there(path: Path) -> None:
    if path.is_file():
        return
    endings = (".pth", ".pt", ".safetensors")
    near = sorted(file.name for file in path.parent.glob("*") if file.suffix in endings)
    hint = f" The folder has: {', '.join(near[-5:])}." if near else ""
    raise HypvisionError(f"{why_no_file(path, 'checkpoint')}{hint} Check the path.")


def _explained(path: Path) -> AbstractContextManager[None]:
    # Damaged bytes make the readers raise errors of any type.
    return explaining(partial(_refusal, path))


def _is_safetensors(path: Path) -> bool:
    """Return whether a file is safetensors; raise an error if it is neither safetensors nor a file
    of PyTorch that may be read."""
    problem = format_problem(path)
    if problem is not None:
        _check_kind(path, problem)
        _check_archive(path)
    return problem is None


_INDEX = ".index.json"
_WHOLE = (
    "model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)  # fmt: skip


def _in_folder(folder: Path) -> Path:
    """Return the path of the weights in a folder that transformers or open_clip has written."""
    for name in (f"{whole}{index}" for whole in _WHOLE for index in (_INDEX, "")):
        if (folder / name).is_file():
            return folder / name
    advice = f"a folder, which has none of {', '.join(_WHOLE)}. Check the path, and give a file."
    if (folder / ".metadata").is_file():
        advice = (
            "of torch.distributed.checkpoint, as FSDP writes it. Make it one file: python -m "
            f"torch.distributed.checkpoint.format_utils dcp_to_torch '{folder}' FILE.pth."
        )
    if (folder / "adapter_config.json").is_file():
        advice = (
            "a LoRA of peft, without the weights that it changes. Load the model that it was "
            f"trained on, and merge it: hypvision.checkpoints.lora.merge_lora(model, '{folder}'), "
            f"for a CLIP create_clip(NAME, WEIGHTS, lora='{folder}') or --clip "
            f"NAME:WEIGHTS,lora={folder}."
        )
    raise HypvisionError(f"The checkpoint '{folder}' is {advice}")


def _of_shards(index: Path, device: Any, mapped: bool) -> Plain:
    """Return the weights in all files that an index of shards names."""
    advice = "Copy the whole folder again."
    places = read_record(ShardTable, index, advice, extra=True).weight_map
    found: Plain = {}
    for name in sorted(set(places.values())):
        found |= read_file(below(index.parent, name), device, mapped)
    lacking = [name for name in places if name not in found]
    named = f"{len(lacking)} weights that it names: {', '.join(lacking[:1])}, ..."
    refuse((lacking, f"The shards of '{index}' lack {named} {advice}"))
    return found


def read_weights(path: StrPath) -> StateDict:
    """Return the float32 state dict of a safetensors file, on the CPU; files of other formats raise
    an error before they are read."""
    if Path(path).is_file():
        check_format(path)
    return read_file(path)


def check_bounds(path: Path) -> None:
    """Raise an error for a file that another library is about to read and that must not be read."""
    with _explained(path):
        _is_safetensors(path)


_UNKNOWN = Kind(
    "unknown: its first bytes are neither those of safetensors nor those of torch.save",
    "Check that the path is right and that the download is complete.",
)


def _check_kind(path: Path, problem: str) -> None:
    """Raise an error that names the kind of a file that PyTorch did not write; ``problem`` says why
    it is not safetensors."""
    kind = kind_of(path) or _UNKNOWN
    damaged = path.stat().st_size == 0 or problem == DAMAGED
    what = problem if kind is _UNKNOWN else kind.name
    refuse(
        (damaged, _damaged(path, f"it is {what}")),
        (not kind.read, f"'{path}' is not a checkpoint: it is {kind.name}. {kind.advice}"),
        (
            path.suffix == ".safetensors",
            f"The checkpoint '{path}' is not a safetensors file but {kind.name}. Rename it: its "
            "suffix must be .pth.",
        ),
    )


def _check_archive(path: Path) -> None:
    """Raise an error for an archive or pickle that unpacks to more than its size. PyTorch
    compresses only code, and code is not read."""
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            # An old file of torch.save has five pickles: a magic number, the version, the system,
            # the content, and the names of the storages.
            for _ in range(5):
                check_pickle(file, path)
        return
    with open_zip(path) as archive:
        names = [name.lower() for name in archive.namelist()]
        read = [entry for entry in archive.infolist() if entry.filename.split("/")[1:2] != ["code"]]
        unpacked = sum(entry.file_size for entry in read)
        large = "compressed or overlapping parts that unpack to more bytes than it has"
        refuse(
            # Of two parts with the same name, PyTorch may read another one than was checked here.
            (len(set(names)) < len(names), _refused(path, "two parts of the same name")),
            (unpacked > path.stat().st_size, _refused(path, large)),
        )
        for entry in read:
            if entry.filename.lower().endswith("data.pkl"):
                check_pickle(io.BytesIO(archive.read(entry)), path)


def _check_names(content: Plain, path: Path) -> Plain:
    """Return the content of a checkpoint after a check that its weights are a dict with names as in
    a state dict."""
    for part in ("state_dict", "ema_state_dict", "message_hub"):
        given = content.get(part, {})
        what = f"a {type(given).__name__}, not a dict. Save it again with "
        save = "torch.save({'state_dict': model.state_dict()}, path)."
        wrong = not isinstance(given, dict)
        refuse((wrong, f"'{part}' in the checkpoint '{path}' is {what}{save}"))
    weights = content.get("state_dict", content)
    odd = [
        name
        for name in weights
        if (len(name) > _LONGEST_NAME if isinstance(name, str) else weights is not content)
    ]
    first = next(iter(odd), "")
    what = f"a weight whose name is {first!r:.80}, not a string of up to {_LONGEST_NAME} letters"
    refuse((odd, _refused(path, what)))
    return content


_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, bytearray, np.generic, _Array, LogHistory,
    torch.dtype, torch.device,
)  # fmt: skip


def _check_content(content: Any, path: Path) -> None:
    """Raise an error for content that no training saves, and that would break the code that uses it
    or give it wrong values."""
    tensors: list[Tensor] = []
    seen: set[int] = set()
    stack: list[Any] = [content]
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor):
            tensors.append(value)
        elif id(value) not in seen and not isinstance(value, _PLAIN):
            seen.add(id(value))
            stack.extend(_inside(value, path))
    _check_tensors(tensors, path)


def _inside(value: Any, path: Path) -> Iterable[Any]:
    """Return the values in a container of one of the kinds that trainings save; raise an error for
    other objects."""
    if isinstance(value, (list, tuple, set)):
        return value
    if isinstance(value, Namespace):
        return vars(value).values()
    what = f"'{getattr(value, '__name__', type(value).__name__)}'"
    refuse((not isinstance(value, dict), _refused(path, what)))
    wrong = not all(map(_is_key, value))
    refuse((wrong, _refused(path, "a key that is neither a string nor a number")))
    # In an OrderedDict PyTorch stores the versions of modules as an attribute; all other attributes
    # are removed.
    if hasattr(value, "__dict__"):
        metadata = vars(value).pop("_metadata", None)
        vars(value).clear()
        if isinstance(metadata, dict) and all(map(_is_version, metadata.values())):
            vars(value)["_metadata"] = metadata
    return value.values()


def _check_tensors(tensors: list[Tensor], path: Path) -> None:
    size = path.stat().st_size
    for value in tensors:
        # An attribute of the tensor could hide one of its methods.
        vars(value).clear()
        problem = tensor_problem(value)
        refuse((problem, _refused(path, f"{problem}")))
    kept = [value.untyped_storage() for value in tensors]
    storages = {storage.data_ptr(): storage.nbytes() for storage in kept}
    # The numbers are counted as if no tensors shared them, since code that converts tensors makes
    # copies.
    counts = [value.numel() * value.element_size() for value in tensors]
    large = max(counts, default=0) > size or sum(storages.values()) > size
    large = large or sum(counts) > _MOST_SPREAD * size
    refuse((large, _refused(path, "a tensor with more numbers than the file has bytes for")))


_MOST_DIMENSIONS = 64  # limit for the dimensions that PyTorch's operations accept


def tensor_problem(value: Tensor) -> str | None:
    """Return why a tensor cannot be used as a weight, which completes "it contains ..."; None if it
    is dense and has numbers."""
    checks = (
        (value.is_nested or value.layout != torch.strided, "a sparse or nested tensor"),
        (value.is_meta, "a tensor without numbers (of the device 'meta')"),
        (value.is_quantized, "a quantised tensor"),
        (
            type(value) not in (Tensor, torch.nn.Parameter),
            f"a tensor of the type {type(value).__name__}",
        ),
        (value.dim() > _MOST_DIMENSIONS, f"a tensor of {value.dim():,} dimensions"),
    )
    return next((problem for wrong, problem in checks if wrong), None)


def _is_key(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return all(part is None or isinstance(part, (str, bool, int, float)) for part in parts)


def _is_version(entry: Any) -> bool:
    """Return whether a module's entry of ``_metadata`` has a form that PyTorch writes and reads."""
    return isinstance(entry, dict) and isinstance(entry.get("version", 1), int)


def _refused(path: Path, what: str) -> str:
    return (
        f"The checkpoint '{path}' was refused: it contains {what}, which is neither a weight nor a "
        "plain value, and could do harm. If you trust its source, convert it once, on a machine "
        "where that does no harm: load it with torch.load(path, weights_only=False) and save only "
        "its dense weights with torch.save({'state_dict': checkpoint['state_dict']}, new_path)."
    )


def _damaged(path: Path, reason: str) -> str:
    return (
        f"The checkpoint '{path}' is damaged: {reason}. Download or copy it again, or take an "
        "earlier one."
    )


def _refusal(path: Path, error: Exception) -> str:
    """Return the message for a checkpoint that cannot be read: it would run code, or it is
    damaged."""
    if isinstance(error, PermissionError):
        return (
            f"The checkpoint '{path}' cannot be read: {error.strerror}. Get the right to read it."
        )
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"There is not enough memory to load '{path}' ({error}). Free some, or use another "
            "device."
        )
    text = str(error)
    culprit = re.search(r"GLOBAL ([\w.]+)", text) or re.search(r"()Trying to|()Can only", text)
    if isinstance(error, UnpicklingError) and culprit:
        what = f"'{culprit[1].rstrip('.')}'" if culprit[1] else "an object"
        return _refused(path, what)
    if _is_whole(path):
        reason = (text.splitlines() or [type(error).__name__])[0].rstrip(".")
        return (
            f"The checkpoint '{path}' is whole, but cannot be read ({reason}). Save its weights "
            "again, as plain tensors and by torch.save without further arguments."
        )
    size = path.stat().st_size
    return _damaged(path, f"its {size} bytes are not a complete checkpoint")


def _is_whole(path: Path) -> bool:
    """Return whether a file is complete, as far as its format tells; a zip archive has
    checksums."""
    if zipfile.is_zipfile(path):
        with suppress(zipfile.BadZipFile, ValueError), open_zip(path) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
            return total <= _MOST_SPREAD * path.stat().st_size and archive.testzip() is None
        return False
    return format_problem(path) is None


# Taking weights out of a checkpoint

BACKBONE = re.compile(r"backbone\.(?:timm_model\.)?(?:model\.)?(.+)")


def network_weights(checkpoint: Values, part: re.Pattern[str] | None = BACKBONE) -> StateDict:
    """Return the weights of a network in a checkpoint, as float32 and without the prefixes of
    wrappers.

    Args:
        checkpoint: content of a file; the weights may lie under a key, see
            :data:`hypvision.checkpoints.wrappers.KEYS`.
        part: pattern for the names of a part, whose group is the name inside this part; if any name
            matches, only these weights are returned. The default is the network inside a
            classifier, segmenter or detector of ``hypvision train``.
    """
    weights = stored_weights(checkpoint)
    matches = [part.fullmatch(name) for name in weights] if part else []
    inside = {match[1]: weights[match[0]] for match in matches if match}
    return unpack(inside or weights)


def stored_weights(checkpoint: Values) -> StateDict:
    """Return the weights in a checkpoint as they are stored, without the prefixes of wrappers."""
    inside = unwrapped(checkpoint)
    tensors = {name: value for name, value in inside.items() if isinstance(value, Tensor)}
    for name, value in tensors.items():
        named = f"The checkpoint has a weight named {name!r}: names must be strings."
        problem = tensor_problem(value)
        refuse(
            (not isinstance(name, str), f"{named} Save model.state_dict()."),
            (problem, f"The weight '{name}' of the checkpoint is {problem}. Save dense weights."),
        )
    return {plain: tensors[name] for name, plain in plain_names(tensors).items()}
