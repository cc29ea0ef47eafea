"""Text data for language models: tokenizers, documents read from files, and rows of packed
documents.

Documents are tokenized one by one into one flat file, so that they never have to fit into memory;
the rows are slices of this file. They are fixed when the data set is built, so a resumed training
gets the same rows.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from tqdm import tqdm

from hypvision.checkpoints.sources import offline
from hypvision.checkpoints.types import StateDict
from hypvision.io import (
    HypvisionError,
    StrPath,
    at_least,
    ensure,
    explaining,
    one_line,
    one_of,
    require,
)
from hypvision.io.files import check_regular, parse_json, read_text, replacing, write_json
from hypvision.io.records import positive, read_record

from .usage import Usage

_logger = logging.getLogger(__name__)


class ByteTokenizer:
    """Tokenizer whose tokens are the bytes of UTF-8, like transformers'
    ``ByT5Tokenizer(extra_ids=0)``: token 0 is padding, 1 begins a document, and byte b is token b +
    3."""

    vocab_size = 259
    bos_id = 1
    pad_id = 0
    identity = "byte"

    def encode(self, text: str) -> list[int]:
        return [byte + 3 for byte in text.encode()]


class _Pretrained:
    """A tokenizer of the package transformers, loaded from a folder or from the hub."""

    def __init__(self, name: str):
        transformers = require("transformers", "lm")
        # transformers raises errors of many classes for damaged files
        with explaining(
            lambda error: (
                f"The tokenizer '{name}' cannot be loaded ({one_line(error)}). Give 'byte', a "
                "folder with a tokenizer of transformers, or a name on the hub that you have "
                "access to. Llama's tokenizers are gated: ask for access on their page, or take a "
                "free one, such as 'HuggingFaceTB/SmolLM2-135M' with vocab_size=49152 "
                "(configs/helm/README.md has the config)."
            )
        ):
            self.inner = transformers.AutoTokenizer.from_pretrained(
                name, trust_remote_code=False, local_files_only=offline()
            )
        self.vocab_size = len(self.inner)
        first = [self.inner.bos_token_id, self.inner.eos_token_id, self.inner.cls_token_id, 0]
        self.bos_id = next(i for i in first if i is not None)
        self.pad_id = self.bos_id if self.inner.pad_token_id is None else self.inner.pad_token_id
        # A fast tokenizer's state includes its merges and normalisation, which change tokens, too.
        fast = getattr(self.inner, "backend_tokenizer", None)
        state = (
            fast.to_str()
            if fast is not None
            else json.dumps(self.inner.get_vocab(), sort_keys=True)
        )
        self.identity = hashlib.sha256(f"{self.bos_id} {state}".encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text, add_special_tokens=False)


Tokenizer = ByteTokenizer | _Pretrained
"""Both kinds of tokenizers; two of the same ``identity`` give the same tokens."""


def load_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer of bytes for ``"byte"``, else a tokenizer of transformers by its folder
    or its name on the hub."""
    return ByteTokenizer() if name == "byte" else _Pretrained(name)


def documents(
    source: StrPath | Sequence[StrPath], field: str = "text", separator: str | None = None
) -> Iterator[str]:
    """Yield the documents of a source one after the other. A source is a file, folder or pattern,
    or several (a ``*.txt`` file is one document, or several with a ``separator``; ``*.jsonl`` has
    one a line and ``*.parquet`` one a row, whose text is in ``field``), or
    ``hf:NAME[:CONFIG[:SPLIT]]``, a data set of the hub, which is streamed."""
    for entry in _entries(source):
        if entry.startswith(_HUB):
            yield from _hub(entry.removeprefix(_HUB), field)
            continue
        for path in _files(entry):
            yield from _file(path, field, separator)


_HUB = "hf:"


def _entries(source: StrPath | Sequence[StrPath]) -> list[str]:
    return [str(source)] if isinstance(source, (str, Path)) else list(map(str, source))


def _files(entry: str) -> list[Path]:
    path = Path(entry).expanduser()
    names = [path] if path.is_file() else sorted(glob.glob(str(path), recursive=True))
    found = list(map(Path, names))
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".jsonl", ".parquet"))
    ensure(
        found,
        f"There is no text at '{entry}'. Give a .txt, .jsonl or .parquet file, a folder or "
        "pattern of such files, or hf:NAME.",
    )
    return found


def _reading(what: str, field: str) -> AbstractContextManager[None]:
    return explaining(
        lambda error: (
            f"{what} cannot be read as text with the field '{field}' ({type(error).__name__}: "
            f"{error}). Name the field that holds the text, and save the text as UTF-8."
        ),
        KeyError,
        ValueError,
    )


def _file(path: Path, field: str, separator: str | None) -> Iterator[str]:
    with _reading(f"'{path}'", field):
        if path.suffix == ".parquet":
            file = require("pyarrow.parquet", "eval").ParquetFile(check_regular(path))
            if field not in file.schema_arrow.names:
                raise KeyError(field)
            for batch in file.iter_batches(256, columns=[field]):
                yield from _texts(batch.to_pylist(), field)
        elif path.suffix == ".jsonl":
            with check_regular(path).open(encoding="utf-8") as lines:
                yield from _texts((parse_json(line) for line in lines if line.strip()), field)
        else:
            text = read_text(path)
            yield from (
                part for part in (text.split(separator) if separator else [text]) if part.strip()
            )


def _texts(rows: Iterable[Any], field: str) -> Iterator[str]:
    """Yield the text in ``field`` of each row, without the empty ones."""
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"row {number} is of type {type(row).__name__}, and has no fields")
        text = row[field] or ""
        if not isinstance(text, str):
            raise ValueError(f"row {number} has {type(text).__name__} where a text was expected")
        if text.strip():
            yield text


def _hub(name: str, field: str) -> Iterator[str]:
    datasets = require("datasets", "eval")
    path, config, split = (name.split(":") + ["", ""])[:3]
    with explaining(
        lambda error: f"The data set '{path}' cannot be loaded: {str(error).splitlines()[0]}",
        OSError,
        ValueError,
    ):
        rows = datasets.load_dataset(path, config or None, split=split or "train", streaming=True)
    with _reading(f"The data set '{path}'", field):
        yield from _texts(rows, field)


def pack(lengths: Sequence[int], size: int, window: int = 1024) -> list[list[int]]:
    """Pack pieces of text with these ``lengths`` into rows of ``size`` tokens by first fit; return
    for each row the indices of its pieces. Only ``window`` consecutive pieces are packed together,
    so that the pieces of a row are near each other in the text."""
    rows: list[list[int]] = []
    for begin in range(0, len(lengths), window):
        free: list[int] = []
        opened: list[list[int]] = []
        for i in range(begin, min(begin + window, len(lengths))):
            place = next((k for k, left in enumerate(free) if left >= lengths[i]), len(free))
            if place == len(free):
                free.append(size)
                opened.append([])
            free[place] -= lengths[i]
            opened[place].append(i)
        rows += opened
    return rows


class PackedText(Dataset):
    """Data set of rows of tokens, packed with documents that each begin with the tokenizer's first
    token.

    Documents longer than a row are cut. A sample has ``input_ids`` and ``sequence_id``, both
    ``(length,)``: the tokens, and the number of each token's document in the row, -1 for padding.

    Args:
        source, field, separator: see :func:`documents`.
        tokenizer: see :func:`load_tokenizer`.
        length: number of tokens in a row.
        tail: what to do with the rest of a document that was cut: ``"keep"`` it as a document of
            its own, or ``"drop"`` it, as in the published recipe.
        cache: folder in which the tokens are stored.
        limit: largest number of rows; the others are left out.

    ``usage`` counts the documents, tokens and rows that are used or left out.
    """

    def __init__(
        self,
        source: StrPath | Sequence[StrPath],
        tokenizer: str = "byte",
        length: int = 2048,
        field: str = "text",
        separator: str | None = None,
        tail: str = "keep",
        cache: StrPath = "work_dirs/tokens",
        limit: int | None = None,
    ):
        one_of(("keep", "drop"), tail=tail)
        at_least(2, integer=True, length=length)
        self.tokenizer = load_tokenizer(tokenizer)
        self.length = length
        self.tokens, sizes, self.bytes = _tokenized(
            source, tokenizer, self.tokenizer, field, separator, Path(cache)
        )
        pieces = _pieces(sizes.tolist(), length, tail == "drop")
        rows = [[pieces[i] for i in row] for row in pack([size for _, size in pieces], length)]
        self.rows = rows[:limit]
        self.usage = Usage(str(source))
        kept = sum(size for _, size in pieces)
        ends = "ends of documents longer than a row"
        self.usage.use("documents", len(sizes))
        self.usage.use("tokens", kept)
        self.usage.leave_out("tokens", f"tail='{tail}'", ends, int(sizes.sum()) - kept)
        self.usage.use("rows", len(self.rows))
        self.usage.leave_out("rows", f"limit={limit}", "the last", len(rows) - len(self.rows))
        ensure(self.rows, f"The text at '{source}' has fewer than two tokens. Give more text.")
        self.metainfo = dict(tokens_per_byte=float((sizes.sum() - len(sizes)) / max(self.bytes, 1)))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> StateDict:
        ids = np.full(self.length, self.tokenizer.pad_id, dtype=np.int64)
        number = np.full(self.length, -1, dtype=np.int64)
        place = 0
        for i, (begin, size) in enumerate(self.rows[index]):
            ids[place : place + size] = self.tokens[begin : begin + size]
            number[place : place + size] = i
            place += size
        return dict(input_ids=torch.from_numpy(ids), sequence_id=torch.from_numpy(number))


def _pieces(sizes: Sequence[int], length: int, drop: bool) -> list[tuple[int, int]]:
    """Return the begin and size of each piece that the documents are cut into; ``drop`` leaves out
    the last, shorter piece of a document that was cut."""
    found = []
    begin = 0
    for size in sizes:
        for i in range(0, size - 1, length):
            if not (drop and i and size - i < length):
                found.append((begin + i, min(length, size - i)))
        begin += size
    return found


def _tokenized(
    source: Any, name: str, tokenizer: Tokenizer, field: str, separator: str | None, folder: Path
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return all tokens, the documents' sizes in tokens, and the number of bytes of their text;
    they are computed once, and later read from disk.

    In a distributed training the first process of each machine tokenizes, while the others wait for
    it.
    """
    local = [entry for entry in _entries(source) if not entry.startswith(_HUB)]
    files = [path for entry in local for path in _files(entry)]
    # The name of the cache file is a hash of all that the tokens depend on: the texts' files with
    # their sizes and times of modification, and the tokenizer.
    stamp = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    key = json.dumps([str(source), name, tokenizer.identity, field, separator, stamp])
    base = folder.expanduser() / hashlib.sha256(key.encode()).hexdigest()[:16]
    flat = base.with_suffix(".bin")
    facts = base.with_suffix(".json")
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    with _before_others() as first:
        if first and _stored(flat, facts, dtype) is None:
            texts = documents(source, field, separator)
            _write_tokens(flat, facts, source, texts, tokenizer, dtype)
    found = _stored(flat, facts, dtype)
    if found is None:
        raise HypvisionError(
            f"The first process of this machine could not read the text at '{source}'; see its "
            "error."
        )
    with flat.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(content, dtype=dtype), np.asarray(found.sizes), found.bytes


@contextmanager
def _before_others() -> Iterator[bool]:
    """Context at whose end the processes of a training wait for each other; it says whether this
    one is the first of its machine."""
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    try:
        yield not several or os.environ.get("LOCAL_RANK", str(dist.get_rank())) == "0"
    finally:
        if several:
            dist.barrier()


class _Facts(NamedTuple):
    """Facts about stored tokens: the sizes of the documents in tokens, and the number of bytes of
    their text."""

    sizes: list[Annotated[int, positive]]
    bytes: Annotated[int, positive]


def _stored(flat: Path, facts: Path, dtype: type) -> _Facts | None:
    """Return the facts about stored tokens; None if tokens or facts are missing or damaged, so that
    they must be made again."""
    if not facts.is_file():
        return None
    try:
        found = read_record(_Facts, facts, "")
        ensure(
            found.sizes and flat.stat().st_size == sum(found.sizes) * np.dtype(dtype).itemsize,
            f"'{flat}' does not have as many tokens as '{facts}' says. Remove both files, which "
            "will be made again.",
        )
        return found
    except (HypvisionError, OSError) as error:
        _logger.warning("Stored tokens are damaged, so the text is read again: %s", error)
        return None


def _write_tokens(
    flat: Path, facts: Path, source: Any, texts: Iterable[str], tokenizer: Tokenizer, dtype: type
) -> None:
    """Write the flat file of tokens, and a file with the facts about it."""
    flat.parent.mkdir(parents=True, exist_ok=True)
    sizes = []
    count = 0
    with replacing(flat) as temporary, Path(temporary).open("wb") as out:
        for text in tqdm(texts, desc="tokens", unit="document", leave=False, disable=None):
            ids = [tokenizer.bos_id, *tokenizer.encode(text)]
            out.write(np.asarray(ids, dtype=dtype).tobytes())
            sizes.append(len(ids))
            count += len(text.encode())
        ensure(sizes, f"The text at '{source}' is empty. Give a text with words.")
    write_json(facts, dict(sizes=sizes, bytes=count), indent=None)
