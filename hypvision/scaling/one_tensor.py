"""Reader of one tensor of a large checkpoint, which does not load the others.

A checkpoint is a file, a folder as transformers writes it, or ``USER/REPO`` on the hub, of which
only the table of shards and one shard are fetched. Files of safetensors are preferred to those of
PyTorch. In both cases only the numbers of the one tensor are read: PyTorch's files are mapped into
memory by the reader that all checkpoints use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor

from hypvision.checkpoints.read import read_file, stored_weights
from hypvision.checkpoints.sources import fetch_from_hub
from hypvision.checkpoints.storage import check_format
from hypvision.io import HypvisionError, StrPath
from hypvision.io.files import below, why_no_file
from hypvision.io.records import ShardTable, read_record

_WHOLE = ("model.safetensors", "pytorch_model.bin")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def read_tensor(source: StrPath, choose: Callable[[Iterable[str]], str]) -> tuple[str, Tensor]:
    """Return the name of a tensor and the tensor as the checkpoint ``source`` (a file, a folder, or
    ``USER/REPO``) stores it, on the CPU; ``choose`` picks the name from those of all tensors."""
    path = Path(source).expanduser()
    if path.is_file():
        return _from_file(path, choose)
    if path.is_dir():
        return _from_parts(str(source), lambda name: _in_folder(path, name), choose)
    if _HUB_NAME.fullmatch(str(source)) and ".." not in str(source):
        return _from_parts(str(source), lambda name: fetch_from_hub(str(source), name), choose)
    raise HypvisionError(
        f"{why_no_file(source, 'checkpoint')} Give a file, a folder, or USER/REPO on the hub."
    )


def _from_parts(
    source: str, find: Callable[[str], Path | None], choose: Callable[[Iterable[str]], str]
) -> tuple[str, Tensor]:
    for whole in _WHOLE:
        table = find(f"{whole}.index.json")
        if table is not None:
            places = read_record(ShardTable, table, "Copy it again.", extra=True).weight_map
            name = choose(places)
            part = find(places[name])
            if part is None:
                raise HypvisionError(
                    f"'{source}' lacks '{places[name]}', which its table names. Copy it again."
                )
            return _from_file(part, lambda names: name)  # noqa: B023 - called before the next turn
        path = find(whole)
        if path is not None:
            return _from_file(path, choose)
    raise HypvisionError(
        f"'{source}' has no weights: none of {', '.join(_WHOLE)}, nor a table of shards. Give "
        "the folder or repository of a checkpoint."
    )


def _from_file(path: Path, choose: Callable[[Iterable[str]], str]) -> tuple[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        if path.suffix == ".safetensors":
            check_format(path)
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
                name = choose(names)
                if name in names:
                    return name, file.get_tensor(name)
        else:
            weights = stored_weights(read_file(path, mapped=True))
            name = choose(weights)
            if name in weights:
                return name, weights[name]
    except SafetensorError as error:
        raise HypvisionError(
            f"The checkpoint '{path}' is damaged: {error}. Copy it again."
        ) from error
    raise HypvisionError(f"'{path}' has no tensor '{name}', though a table says so. Copy it again.")


def _in_folder(folder: Path, name: str) -> Path | None:
    path = below(folder, name)
    return path if path.is_file() else None
