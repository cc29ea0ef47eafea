"""The reader of checkpoints: it turns files of any origin into tensors and plain values, and never
runs code in them.

A ``.pth`` file is a pickle, and a pickle can run code when it is loaded. PyTorch's restricted
reader builds tensors and plain values; trainings save a little more: NumPy numbers and arrays,
their command line, mmengine's log history. Those names lead to stand-ins of our own here, never to
the classes themselves: NumPy's dtype takes its inner state from the file, by which a file made an
object at an address of its choice.

The result is then checked: tensors must be dense and no larger than the file, keys must be strings
or numbers, and attributes that would hide methods are removed. Error messages name the file, which
is opened only once and never repaired.
"""

from __future__ import annotations

import io
import math
import re
import threading
import zipfile
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hypvision.checkpoints import torchscript
from hypvision.checkpoints.kinds import kind_of
from hypvision.checkpoints.pickles import bounded_functions, check_pickle, open_zip
from hypvision.checkpoints.sources import fetch
from hypvision.checkpoints.storage import (
    DAMAGED,
    check_format,
    format_problem,
    load_unpacked,
    unpack,
)
from hypvision.checkpoints.wrappers import plain_names, unwrapped
from hypvision.io.errors import HypvisionError
from hypvision.io.files import below, why_no_file
from hypvision.io.records import ShardTable, read_record

# Stand-ins for what trainings pickle


class _Dtype:
    """In place of ``numpy.dtype``: a name of a plain number type, and the order of its bytes."""

    _NAMES = re.compile(r"b1|[iu][1248]|f[248]|c8|c16")

    def __init__(self, name: Any, *_: Any):
        name = name.decode("ascii", "replace") if isinstance(name, bytes) else name
        if not isinstance(name, str) or not self._NAMES.fullmatch(name):
            raise UnpicklingError(f"unsupported GLOBAL numpy.dtype of {str(name)[:40]!r}")
        self.name = name
        self.order: Literal["<", ">", "|", "="] = "="

    def __setstate__(self, state: Any) -> None:
        # The state is (version, byte order, sub-array, names, fields, ...); plain numbers have only
        # a byte order.
        if (
            not isinstance(state, tuple)
            or len(state) < 5
            or any(part is not None for part in state[2:5])
        ):
            raise UnpicklingError("unsupported GLOBAL numpy.dtype with fields")
        order: Any = (
            state[1].decode("ascii", "replace") if isinstance(state[1], bytes) else state[1]
        )
        if order not in ("<", ">", "|", "="):
            raise UnpicklingError("unsupported GLOBAL numpy.dtype with an unknown byte order")
        self.order = order

    def numpy(self) -> np.dtype:
        return np.dtype(self.name).newbyteorder(self.order)


class _Array(np.ndarray):
    """In place of ``numpy.ndarray``: numbers from bytes whose count fits. Saved again it is a plain
    array."""

    def __new__(cls, *_: Any) -> _Array:
        raise UnpicklingError("unsupported GLOBAL numpy.ndarray")

    def __setstate__(self, state: Any) -> None:
        if self.shape != (0,) or not isinstance(state, tuple) or len(state) != 5:
            raise UnpicklingError("unsupported GLOBAL numpy.ndarray with such a state")
        _, shape, dtype, fortran, data = state
        if (
            not isinstance(dtype, _Dtype)
            or not isinstance(data, bytes)
            or not isinstance(shape, tuple)
        ):
            raise UnpicklingError("unsupported GLOBAL numpy.ndarray of objects")
        kind = dtype.numpy()
        whole = all(type(n) is int and n >= 0 for n in shape) and len(shape) <= 32
        if not whole or math.prod(shape) * kind.itemsize != len(data):
            raise UnpicklingError("unsupported GLOBAL numpy.ndarray whose shape and bytes disagree")
        # NumPy's type stub asks for numpy.bool, NumPy itself for an int
        checked: Any = (1, shape, kind, fortran is True, data)
        super().__setstate__(checked)

    def __reduce__(self) -> Any:
        return np.array(self).__reduce__()


def _reconstruct(*_: Any) -> _Array:
    """In place of NumPy's function of this name: an empty array, which then gets its state."""
    return np.ndarray.__new__(_Array, (0,), np.uint8)


def _scalar(dtype: Any, data: Any) -> np.generic:
    """In place of ``numpy.core.multiarray.scalar``."""
    if (
        not isinstance(dtype, _Dtype)
        or not isinstance(data, bytes)
        or len(data) != dtype.numpy().itemsize
    ):
        raise UnpicklingError("unsupported GLOBAL numpy.scalar of objects")
    return np.frombuffer(data, dtype.numpy())[0]


class LogHistory:
    """In place of mmengine's ``HistoryBuffer``: the numbers that a training logged.

    Attributes:
        log_history, count_history: one-dimensional arrays of equal length.
        max_length: how many a training keeps.
    """

    log_history: np.ndarray = np.empty(0)
    count_history: np.ndarray = np.empty(0)
    max_length: int = 1000000

    def __setstate__(self, state: Any) -> None:
        state = state if isinstance(state, dict) else {}
        log = state.get("_log_history")
        count = state.get("_count_history")
        length = state.get("max_length", self.max_length)
        arrays = (
            isinstance(log, _Array)
            and isinstance(count, _Array)
            and log.ndim == 1
            and log.shape == count.shape
        )
        if not arrays or type(length) is not int or length < 1:
            raise UnpicklingError(
                "unsupported GLOBAL mmengine.logging.history_buffer.HistoryBuffer with such a state"
            )
        self.log_history = np.array(log)
        self.count_history = np.array(count)
        self.max_length = length


def _history_method(owner: Any, name: Any) -> str:
    """In place of ``getattr``, which a checkpoint may use for one purpose only: a HistoryBuffer
    pickles its own methods."""
    if owner is not LogHistory or name not in ("min", "max", "current", "mean"):
        raise UnpicklingError(f"unsupported GLOBAL builtins.getattr of {str(name)[:40]!r}")
    return name


def _empty_bytes() -> bytes:
    """In place of ``bytes``, as which the content of an empty array is pickled."""
    return b""


# timm and the code of many papers save their command line as a Namespace; NumPy 2 renamed its core.
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
    """Let ``torch.load(weights_only=True)``, and so timm, read checkpoints of trainings, by the
    same stand-ins."""
    torch.serialization.add_safe_globals(_ALLOWED)


def _unpickle(path: Path, device: Any, mapped: bool) -> Any:
    script = torchscript.is_torchscript(path)
    allowed: list[Any] = list(torchscript.stand_ins(path)) if script else _ALLOWED
    mapped = mapped and not script and zipfile.is_zipfile(path)
    opened: AbstractContextManager[Any] = torchscript.opened(path) if script else nullcontext(path)
    with _allow_list, opened as file, bounded_functions():
        # ignore the classes that other code has allowed
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        try:
            torch.serialization.add_safe_globals(allowed)
            content = torch.load(file, map_location=device, weights_only=True, mmap=mapped)
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)
    return (
        torchscript.script_weights(content)
        if isinstance(content, torchscript.ScriptModule)
        else content
    )


# Reading

_LONGEST_NAME = 1000
_MOST_SPREAD = 64  # times the size of the file: weights that many layers share


def read(source: str | Path, device: Any = "cpu") -> dict[str, Any]:
    """The content of a checkpoint: of a file, of the zoo, of a release or at an address.

    Args:
        source: a file; ``zoo:NAME``; ``hf-hub:USER/REPO`` or another release;
            ``https://HOST/FILE#sha256=HEX``. See :func:`hypvision.checkpoints.sources.fetch`.
        device: where the tensors go, as for :func:`torch.load`.
    """
    return read_file(fetch(source), device)


def read_file(
    path: str | Path, device: Any = "cpu", mapped: bool = False, single: str | None = None
) -> dict[str, Any]:
    """The content of a checkpoint file; no code in it is run.

    Args:
        path: safetensors, or ``.pth``, ``.pt``, ... as PyTorch writes them, TorchScript archives
            too (of which the tensors are read, by their names in the state dict); the index of
            shards, ``model.safetensors.index.json``; or the folder of either.
        device: where the tensors go, as for :func:`torch.load`.
        mapped: map the tensors into memory, so that their numbers are read from the file when they
            are used; for files that PyTorch wrote, on the CPU.
        single: the name to give to the tensor of a file that contains a single tensor instead of a
            dict; None: such a file raises an error.

    Returns:
        The content: dense tensors and plain values; for safetensors the flat state dict, in float32
        (see :mod:`hypvision.checkpoints.storage`).

    Raises:
        HypvisionError: the file is missing, damaged or of another kind, would run code, or does not
            contain a dict.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        path = _in_folder(path)
    if path.name.endswith(_INDEX) and path.is_file():
        return _of_shards(path, device, mapped)
    if not path.is_file():
        near = sorted(
            file.name
            for file in path.parent.glob("*")
            if file.suffix in (".pth", ".pt", ".safetensors")
        )
        hint = f" The folder has: {', '.join(near[-5:])}." if near else ""
        raise HypvisionError(f"{why_no_file(path, 'checkpoint')}{hint} Check the path.")
    try:
        problem = format_problem(path)
        if problem is None:
            place = str(device) if isinstance(device, (str, torch.device)) else "cpu"
            return _check_names(load_unpacked(path, place), path)
        _check_kind(path, problem)
        _check_archive(path)
        content = _unpickle(path, device, mapped)
    except HypvisionError:
        raise
    except PermissionError as error:
        raise HypvisionError(
            f"The checkpoint '{path}' cannot be read: {error.strerror}."
        ) from error
    except Exception as error:  # damaged bytes make the readers raise errors of any type
        raise _refusal(path, error) from error
    if single is not None and isinstance(content, Tensor):
        content = {single: content}
    if not isinstance(content, dict):
        raise HypvisionError(
            f"The checkpoint '{path}' holds a {type(content).__name__}, not a dict of weights. "
            "Save model.state_dict() instead."
        )
    _check_content(content, path)
    return _check_names(content, path)


_INDEX = ".index.json"
_WHOLE = (
    "model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)  # fmt: skip


def _in_folder(folder: Path) -> Path:
    """The file of weights in a folder as transformers and open_clip write it."""
    for name in (f"{whole}{index}" for whole in _WHOLE for index in (_INDEX, "")):
        if (folder / name).is_file():
            return folder / name
    if (folder / "adapter_config.json").is_file():
        raise HypvisionError(
            f"The checkpoint '{folder}' is a LoRA of peft, without the weights that it changes. "
            "Load the model that it was trained on, and merge it: "
            f"hypvision.checkpoints.lora.merge_lora(model, '{folder}'), for a CLIP "
            f"create_clip(NAME, WEIGHTS, lora='{folder}') or --clip NAME:WEIGHTS,lora={folder}."
        )
    raise HypvisionError(
        f"The checkpoint '{folder}' is a folder, which has none of {', '.join(_WHOLE)}. Check the "
        "path, and give a file."
    )


def _of_shards(index: Path, device: Any, mapped: bool) -> dict[str, Any]:
    """The weights in the files that an index names."""
    places = read_record(ShardTable, index, "Copy the whole folder again.", extra=True).weight_map
    found: dict[str, Any] = {}
    for name in sorted(set(places.values())):
        found |= read_file(below(index.parent, name), device, mapped)
    lacking = [name for name in places if name not in found]
    if lacking:
        raise HypvisionError(
            f"The shards of '{index}' lack {len(lacking)} weights that it names: {lacking[0]}, ... "
            "Copy the whole folder again."
        )
    return found


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The float32 state dict in a safetensors file, on the CPU; other formats raise an error before
    they are read."""
    if Path(path).is_file():
        check_format(path)
    return read_file(path)


def check_bounds(path: Path) -> None:
    """Raise an error for a file that another library would read, and should not."""
    try:
        problem = format_problem(path)
        if problem is not None:
            _check_kind(path, problem)
            _check_archive(path)
    except (ValueError, IndexError, zipfile.BadZipFile) as error:
        raise _refusal(path, error) from error


def _check_kind(path: Path, problem: str) -> None:
    """Raise an error that names the kind of a file that PyTorch did not write; ``problem``: why it
    is not safetensors."""
    kind = kind_of(path)
    if path.stat().st_size == 0 or problem == DAMAGED:
        raise HypvisionError(_damaged(path, f"it is {problem if kind is None else kind.name}"))
    if kind is None:
        raise HypvisionError(
            f"'{path}' is not a checkpoint: its first bytes are neither those of safetensors nor "
            "those of torch.save. Check that the path is right and that the download is complete."
        )
    if not kind.read:
        raise HypvisionError(f"'{path}' is not a checkpoint: it is {kind.name}. {kind.advice}")
    if path.suffix == ".safetensors":
        raise HypvisionError(
            f"The checkpoint '{path}' is not a safetensors file but {kind.name}. Rename it: its "
            "suffix must be .pth."
        )


def _check_archive(path: Path) -> None:
    """Raise an error for an archive or pickle that unpacks to more than its size. PyTorch
    compresses nothing but code, and code is not read."""
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            # a magic number, the version, the system, the content, the names of the storages
            for _ in range(5):
                check_pickle(file, path)
        return
    with open_zip(path) as archive:
        names = Counter(name.lower() for name in archive.namelist())
        if names and max(names.values()) > 1:  # PyTorch may read another one than was checked
            raise HypvisionError(_refused(path, "two parts of the same name"))
        read = [entry for entry in archive.infolist() if entry.filename.split("/")[1:2] != ["code"]]
        if sum(entry.file_size for entry in read) > path.stat().st_size:
            raise HypvisionError(
                _refused(
                    path, "compressed or overlapping parts that unpack to more bytes than it has"
                )
            )
        for entry in read:
            if entry.filename.lower().endswith("data.pkl"):
                check_pickle(io.BytesIO(archive.read(entry)), path)


def _check_names(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content of a checkpoint, if its weights are a dict and have names as in a state dict."""
    for part in ("state_dict", "ema_state_dict", "message_hub"):
        if not isinstance(content.get(part, {}), dict):
            raise HypvisionError(
                f"'{part}' in the checkpoint '{path}' is a {type(content[part]).__name__}, not a "
                "dict. Save it again with torch.save({'state_dict': model.state_dict()}, path)."
            )
    weights = content.get("state_dict", content)
    wrong = (
        [name for name in weights if not isinstance(name, str)] if weights is not content else []
    )
    wrong += [name for name in weights if isinstance(name, str) and len(name) > _LONGEST_NAME]
    if wrong:
        raise HypvisionError(
            _refused(
                path,
                f"a weight whose name is {wrong[0]!r:.80}, not a string of up to {_LONGEST_NAME} "
                "letters",
            )
        )
    return content


def _check_content(content: Any, path: Path) -> None:
    """Raise an error for content that no training saves and that would break the code that uses it,
    or give it wrong values."""
    size = path.stat().st_size
    storages: set[int] = set()
    total = 0
    # of all tensors, as if none shared numbers with another: code that converts them makes copies
    spread = 0
    seen: set[int] = set()
    stack: list[Any] = [content]
    while stack:
        value = stack.pop()
        if value is None or isinstance(
            value, (bool, int, float, complex, str, bytes, bytearray, np.generic, _Array)
        ):
            continue
        if id(value) in seen and not isinstance(value, Tensor):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            problem = tensor_problem(value)
            if problem is not None:
                raise HypvisionError(_refused(path, problem))
            storage = value.untyped_storage()
            if storage.data_ptr() not in storages:
                storages.add(storage.data_ptr())
                total += storage.nbytes()
            spread += value.numel() * value.element_size()
            if (
                value.numel() * value.element_size() > size
                or total > size
                or spread > _MOST_SPREAD * size
            ):
                raise HypvisionError(
                    _refused(path, "a tensor with more numbers than the file has bytes for")
                )
            vars(value).clear()  # an attribute of the tensor could shadow one of its methods
        elif isinstance(value, dict):
            if not all(map(_is_key, value)):
                raise HypvisionError(_refused(path, "a key that is neither a string nor a number"))
            # an OrderedDict, on which PyTorch stores the versions of modules
            if hasattr(value, "__dict__"):
                metadata = vars(value).pop("_metadata", None)
                vars(value).clear()
                if isinstance(metadata, dict) and all(map(_is_version, metadata.values())):
                    vars(value)["_metadata"] = metadata
            stack.extend(value.values())
        elif isinstance(value, (list, tuple, set)):
            stack.extend(value)
        elif isinstance(value, Namespace):
            stack.extend(vars(value).values())
        elif not isinstance(value, (LogHistory, torch.dtype, torch.device)):
            raise HypvisionError(
                _refused(path, f"'{getattr(value, '__name__', type(value).__name__)}'")
            )


_MOST_DIMENSIONS = 64  # which PyTorch's operations take


def tensor_problem(value: Tensor) -> str | None:
    """Why a tensor cannot be used as a weight, to complete "it contains ..."; None if it is dense
    and has numbers."""
    if value.is_nested or value.layout != torch.strided:
        return "a sparse or nested tensor"
    if value.is_meta:
        return "a tensor without numbers (of the device 'meta')"
    if value.is_quantized:
        return "a quantised tensor"
    if type(value) not in (Tensor, torch.nn.Parameter):
        return f"a tensor of the type {type(value).__name__}"
    if value.dim() > _MOST_DIMENSIONS:
        return f"a tensor of {value.dim():,} dimensions"
    return None


def _is_key(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return all(part is None or isinstance(part, (str, bool, int, float)) for part in parts)


def _is_version(entry: Any) -> bool:
    """Whether a module's entry of ``_metadata`` is one that PyTorch writes and reads."""
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


def _refusal(path: Path, error: Exception) -> HypvisionError:
    """The paragraph for a checkpoint that cannot be read: it would run code, or it is damaged."""
    if isinstance(error, torch.OutOfMemoryError):
        return HypvisionError(f"There is not enough memory to load '{path}' ({error}).")
    text = str(error)
    culprit = re.search(r"GLOBAL ([\w.]+)", text)
    if isinstance(error, UnpicklingError) and (
        culprit or "Trying to" in text or "Can only" in text
    ):
        return HypvisionError(
            _refused(path, f"'{culprit[1].rstrip('.')}'" if culprit else "an object")
        )
    if _is_whole(path):
        reason = (text.splitlines() or [type(error).__name__])[0].rstrip(".")
        return HypvisionError(
            f"The checkpoint '{path}' is whole, but cannot be read ({reason}). Save its weights "
            "again, as plain tensors and by torch.save without further arguments."
        )
    return HypvisionError(
        _damaged(path, f"its {path.stat().st_size} bytes are not a complete checkpoint")
    )


def _is_whole(path: Path) -> bool:
    """Whether a file is complete, as far as its format tells: an archive has checksums."""
    if zipfile.is_zipfile(path):
        with suppress(zipfile.BadZipFile, ValueError), open_zip(path) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
            return total <= _MOST_SPREAD * path.stat().st_size and archive.testzip() is None
        return False
    return format_problem(path) is None


# Weights out of a checkpoint

BACKBONE = re.compile(r"backbone\.(?:timm_model\.)?(?:model\.)?(.+)")


def network_weights(
    checkpoint: Mapping[str, Any], part: re.Pattern[str] | None = BACKBONE
) -> dict[str, Tensor]:
    """The weights of a network in a checkpoint, as float32 and without the prefixes of wrappers.

    Args:
        checkpoint: what a file holds; the weights may be under a key, see
            :data:`hypvision.checkpoints.wrappers.KEYS`.
        part: names of a part, whose group is the name inside of it: if there are any, only they are
            returned. By default the network inside a classifier, segmenter or detector of
            ``hypvision train``.
    """
    weights = stored_weights(checkpoint)
    inside = {
        match[1]: value
        for name, value in weights.items()
        if part and (match := part.fullmatch(name))
    }
    return unpack(inside or weights)


def stored_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights in a checkpoint as they are stored, without the prefixes of wrappers."""
    inside = unwrapped(checkpoint)
    tensors = {name: value for name, value in inside.items() if isinstance(value, Tensor)}
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise HypvisionError(
                f"The checkpoint has a weight named {name!r}: names must be strings. Save "
                "model.state_dict()."
            )
        wrong = tensor_problem(value)
        if wrong is not None:
            raise HypvisionError(
                f"The weight '{name}' of the checkpoint is {wrong}. Save dense weights."
            )
    return {plain: tensors[name] for name, plain in plain_names(tensors).items()}
