"""Read and write weight files of the zoo: safetensors, stored in as few bytes as the metric allows.

``float16`` and ``bfloat16`` halve a file. ``int8`` quarters it: each row ``w`` of a matrix or
kernel is stored as ``q = round(127 w / max|w|)`` with the float32 scale ``max|w| / 127`` beside it
under ``NAME.int8_scale``, so that ``|w - q scale| <= scale / 2``. Small ``q`` are the most
frequent, so a Huffman code (that of deflate) saves a tenth: the tensor ``NAME`` holds the coded
bytes, and ``NAME.int8_shape`` holds the shape of ``q``. This is a storage format, not a quantised
network: :func:`unpack` returns float32 before anything is computed. Norms, biases and other vectors
stay float32. A file may have only some rows of a CLIP's token table: :func:`trim_tokens`.

The header of a file contains the settings that are needed to use the file without the configs of
this repository: :func:`read_header`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain, groupby
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from hypvision.io import HypvisionError, Plain, StrPath, Values, ensure, one_of
from hypvision.io.files import parse_json, replacing
from hypvision.io.records import foreign_setting

from .kinds import kind_of
from .types import StateDict, Weights

_logger = logging.getLogger(__name__)

STORAGES = ("float32", "float16", "bfloat16", "int8")
_SCALE = ".int8_scale"
_SHAPE = ".int8_shape"
_MOST_PER_BYTE = 8  # a Huffman code takes at least one bit for each number
_SMALL = 1024  # matrices with fewer numbers stay float32, as they take few bytes
_LARGEST_HEADER = 64 * 2**20
# limit for the entries of a file; the largest models have some ten thousand tensors
MOST_ENTRIES = 100_000
_TOKENS = "token_embedding."
_MOST_WORDS = 2**20  # limit for the rows of a token table, 20 times the vocabulary of CLIP
# The numbers that a token table may have in a file of any size: as many as that of the largest
# CLIP.
_SMALL_TABLE = 2**26


def pack(weights: Weights, storage: str) -> StateDict:
    """Return the tensors to write for a state dict.

    Args:
        weights: the state dict.
        storage: format of the numbers, one of :data:`STORAGES`.
    """
    one_of(STORAGES, storage=storage)
    out: StateDict = {}
    for name, value in weights.items():
        value = value.detach().cpu()
        if not value.is_floating_point():
            out[name] = value.clone()
            continue
        if not value.isfinite().all():
            raise HypvisionError(
                f"The weight '{name}' has NaN or infinite values: its training has diverged. Use "
                "an earlier checkpoint."
            )
        if storage == "int8" and value.dim() >= 2 and value.numel() >= _SMALL:
            rows = value.float().flatten(1)
            # The scale is at least the smallest normal number: a row may be all zero, and division
            # by a subnormal scale gives infinity.
            scale = (rows.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
            whole = (rows / scale[:, None]).round().clamp(-127, 127).to(torch.int8).contiguous()
            out |= {
                name: _deflated(whole),
                name + _SCALE: scale,
                name + _SHAPE: torch.tensor(value.shape),
            }
        else:
            dtype = torch.float32 if storage == "int8" else getattr(torch, storage)
            out[name] = value.to(dtype).clone(memory_format=torch.contiguous_format)
            if not out[name].isfinite().all():
                raise HypvisionError(
                    f"The weight '{name}' is too large for {storage}. Store it as bfloat16."
                )
    return out


def _deflated(whole: Tensor) -> Tensor:
    """Return an int8 tensor as zlib's stream of bytes, uint8. The code is a Huffman code alone,
    since weights hold no repeated strings."""
    coder = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
    return torch.frombuffer(
        bytearray(coder.compress(whole.numpy().tobytes()) + coder.flush()), dtype=torch.uint8
    )


def _inflated(name: str, stream: Tensor, shape: Any) -> Tensor:
    """Return the int8 tensor of this shape that :func:`_deflated` has coded; raise an error for a
    damaged stream."""
    sizes = shape.tolist() if _whole(shape) and shape.dim() == 1 else []
    count = math.prod(sizes)
    fits = min(sizes, default=0) > 0 and count <= _MOST_PER_BYTE * stream.numel()
    content = b""
    decoder = zlib.decompressobj()
    if fits and stream.dtype == torch.uint8:
        # zlib's stream has a sum of its content, so damage raises an error.
        with suppress(zlib.error):
            content = decoder.decompress(stream.cpu().numpy().tobytes(), count + 1)
    ensure(
        content and len(content) == count and decoder.eof and not decoder.unused_data,
        f"The weight '{name}' is damaged: its bytes do not give its shape. Download the file "
        "again.",
    )
    return torch.frombuffer(bytearray(content), dtype=torch.int8).reshape(sizes)


def _whole(value: Any) -> bool:
    """Return whether a value is a tensor of whole numbers."""
    return isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64)


def unpack(tensors: Weights) -> StateDict:
    """Return the float32 weights that :func:`pack` has stored. Tensors of other types are returned
    unchanged."""
    scaled = {_base(name): None for name in tensors if name.endswith(_SCALE)}
    beside = {name + end for name in scaled for end in (_SCALE, _SHAPE)}
    lost = sorted(scaled.keys() - tensors.keys())
    advice = "but not their weight. Download or copy it again."
    ensure(not lost, f"The file has scales of {', '.join(lost[:1])}, {advice}")
    out: StateDict = {}
    for name, value in tensors.items():
        if name in beside:
            continue
        if name in scaled:
            value = _scaled(name, tensors)
        # Numbers of 16 and 8 bits become float32; checkpoints from elsewhere may hold counters and
        # settings, too, which stay as they are.
        elif isinstance(value, Tensor) and value.is_floating_point() and value.itemsize < 4:
            value = value.float()
        out[name] = value
    return out


def _base(name: str) -> str:
    """Return the name of the weight that a scale or a shape belongs to."""
    return name.removesuffix(_SCALE).removesuffix(_SHAPE)


def _scaled(name: str, tensors: Weights) -> Tensor:
    """Return a weight that is stored as int8 in float32."""
    value = tensors[name]
    scale = tensors[name + _SCALE]
    if name + _SHAPE in tensors:
        value = _inflated(name, value, tensors[name + _SHAPE])
    matrix = value.dtype == torch.int8 and value.dim() > 1
    numbers = isinstance(scale, Tensor) and scale.is_floating_point()
    ensure(
        matrix and numbers and scale.shape == value.shape[:1],
        f"The scales of '{name}' do not fit its shape {tuple(value.shape)}. Download the file "
        "again.",
    )
    return value.to(scale.device).float().mul_(scale.reshape(-1, *[1] * (value.dim() - 1)))


def load_unpacked(path: StrPath, device: str = "cpu") -> StateDict:
    """Return the unpacked weights of a safetensors file, see :func:`unpack`, with complete token
    tables.

    The pages of a mapped file count as memory until it is closed. A file of 16-bit or 8-bit numbers
    is therefore read in parts, so that memory never holds all of it and all float32 weights at
    once.
    """
    with safe_open(path, "pt", device) as file:
        names = sorted(file.keys(), key=_base)
        kinds = {file.get_slice(name).get_dtype() for name in names}
        if kinds.isdisjoint(("F16", "BF16", "I8", "U8", "F8_E4M3", "F8_E5M2")):
            return expand_tokens(unpack({name: file.get_tensor(name) for name in names}))
    groups = [list(group) for _, group in groupby(names, _base)]
    step = len(groups) // 32 + 1
    out: StateDict = {}
    for start in range(0, len(groups), step):
        asked = chain(*groups[start : start + step])
        with safe_open(path, "pt", device) as file:
            part = {name: file.get_tensor(name) for name in asked}
        for name, value in unpack(part).items():
            # Without a copy the tensor would keep the file open.
            out[name] = value.clone() if value is part[name] else value
    return expand_tokens(out)


def trim_tokens(weights: Weights, used: Tensor, prefix: str = "") -> StateDict:
    """Return a smaller state dict with only the rows ``used`` (int64) of a CLIP's token table, for
    a model that was trained on no other tokens. ``prefix``: prefix of the CLIP's names."""
    found = dict(weights)
    name = prefix + _TOKENS
    table = found.pop(f"{name}weight")
    found[f"{name}rows"] = table[used].contiguous()
    found[f"{name}index"] = used
    found[f"{name}size"] = torch.tensor(len(table))
    return found


def expand_tokens(weights: Weights) -> StateDict:
    """Return the state dict with complete token tables, the inverse of :func:`trim_tokens`, for
    names with any prefix; removed rows become zero."""
    expanded = dict(weights)
    most = _SMALL_TABLE + 16 * sum(map(torch.numel, weights.values()))
    for key in weights:
        name = key.removesuffix("rows")
        if not f".{key}".endswith(f".{_TOKENS}rows"):
            continue
        rows, index, size = (
            expanded.pop(f"{name}{part}", torch.empty(0)) for part in ("rows", "index", "size")
        )
        count = int(size) if _whole(size) and size.numel() == 1 else 0
        fits = rows.dim() == 2 and _whole(index) and index.shape == rows.shape[:1]
        fits = fits and 0 < count <= min(_MOST_WORDS, most // max(1, rows.shape[1]))
        ensure(
            fits and not ((index < 0) | (index >= count)).any(),
            "The token embedding in these CLIP weights is damaged: its rows, their ids and its "
            "size contradict each other. Download or copy the file again.",
        )
        table = rows.new_zeros(count, rows.shape[1])
        expanded[f"{name}weight"] = table.index_copy(0, index.long(), rows)
    return expanded


DAMAGED = "damaged"


def format_problem(path: StrPath) -> str | None:
    """Return what a file is instead of a complete safetensors file, which completes "it is ...";
    None if it is one."""
    with open(path, "rb") as file:
        start = file.read(9)
        header = file.read(min(int.from_bytes(start[:8], "little"), _LARGEST_HEADER))
    # Each entry has a brace, so entries are counted before they are parsed.
    ensure(
        start[8:] != b"{" or header.count(b"{") <= MOST_ENTRIES,
        f"'{path}' was refused: its header has more than {MOST_ENTRIES:,} entries, and no model "
        "has as many tensors. Get the file from a source that you trust, or save the weights "
        "alone.",
    )
    with suppress(SafetensorError), safe_open(path, "pt"):
        return None
    # This is tested first, because the length of a header (128, 384, ...) may begin with the same
    # bytes as a pickle.
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= _LARGEST_HEADER:
        return DAMAGED
    if not start:
        return "empty"
    kind = kind_of(path)
    return "damaged, or in another format" if kind is None else kind.name


def check_format(path: StrPath) -> None:
    """Raise an error for a file that is not safetensors, before any reader opens it."""
    what = format_problem(path)
    ensure(
        what is None,
        f"'{path}' is not a safetensors file: it is {what}. The zoo reads safetensors only, which "
        "cannot run code; convert other checkpoints with hypvision zoo publish or hypvision zoo "
        "convert.",
    )


def read_metadata(path: StrPath, entry: str) -> Plain:
    """Return the JSON in an entry of a safetensors file's header; an empty dict if there is no such
    entry."""
    check_format(path)
    found: Any = None
    # The entry may not be JSON, as in files of others.
    with suppress(ValueError), safe_open(path, "pt") as file:
        found = parse_json((file.metadata() or {}).get(entry, "{}"))
    advice = "was not written by hypvision. Download the file again."
    ensure(isinstance(found, dict), f"The header of '{path}' {advice}")
    return found


def read_header(path: StrPath) -> Plain:
    """Return the entries that hypvision wrote into the header of a file: ``storage``, ``classes``
    and, for a segmenter, detector or metric learner, ``model``.

    The dict is empty for files of others.

    Raises:
        HypvisionError: the file is not safetensors, or the model's config names files, addresses or
            code.
    """
    header = read_metadata(path, "hypvision")
    foreign = foreign_setting(header.get("model"))
    ensure(
        foreign is None,
        f"'{path}' was refused: the config of the model in its header contains {foreign}, where "
        "only numbers and texts are allowed. Get the file from a source that you trust, or publish "
        "it again.",
    )
    return header


def write_weights(
    weights: Weights,
    path: StrPath,
    storage: str = "float32",
    header: Values | None = None,
) -> None:
    """Write a state dict as a safetensors file, complete or not at all."""
    text = json.dumps({"storage": storage, **(header or {})}, sort_keys=True)
    write_tensors(pack(weights, storage), path, {"hypvision": text})


def write_tensors(
    tensors: Weights, path: StrPath, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors unchanged into a safetensors file, complete or not at all."""
    stored = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with replacing(path) as temporary:
        save_file(stored, temporary, metadata={"format": "pt", **(metadata or {})})
        # safetensors makes files that only their owner can read, so others get the right, too.
        os.chmod(temporary, 0o644)


def kept_tensor(path: StrPath, make: Callable[[], Tensor], rows: int | None = None) -> Tensor:
    """Return the tensor that an earlier call stored in a file; if there is no intact file, call
    ``make`` and store its result.

    Args:
        path: path of the file, whose name depends on all that the tensor depends on.
        make: function that computes the tensor.
        rows: number of rows that the tensor must have; None: any.
    """
    # The file may be missing or damaged.
    with suppress(OSError, SafetensorError, ValueError):
        (found,) = load_file(path).values()
        if rows in (None, len(found)):
            return found
    made = make()
    try:
        write_tensors({"kept": made}, path)
    # The result can be used without a copy on the disk.
    except HypvisionError as error:
        _logger.warning("%s It will be computed again.", error)
    return made
