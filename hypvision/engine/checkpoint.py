"""Checkpoints that are safe to load and never half written.

Reading: a ``.pth`` file is a pickle, and a pickle can run code when it is loaded. :func:`load_checkpoint_file` lets
through tensors, plain Python values, NumPy arrays and the log history of mmengine, which a resumed run needs. A file
from an address is loaded only if its sha256 is known beforehand, see :func:`load_from_http`.

Writing: :class:`AtomicLocalBackend` writes to a temporary file beside the target and moves it into place, so that a
full disk or a killed process leaves the old checkpoint as it was.

:func:`install` makes mmengine's Runner use both.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import urllib.error
import uuid
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple
from urllib.parse import urldefrag, urlparse

import numpy as np
import torch
import yaml
from mmengine.dist import barrier, get_rank
from mmengine.fileio import LocalBackend, YamlHandler, register_backend, register_handler
from mmengine.fileio import io as mmengine_io
from mmengine.logging import HistoryBuffer, print_log
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as mmengine_checkpoint
from torch import Tensor, nn

from hypvision.checkpoints.download import file_sha256
from hypvision.checkpoints.sources import find, offline, resolve
from hypvision.checkpoints.storage import read_weights, unpack
from hypvision.clip.models import expand_tokens
from hypvision.errors import HypvisionError

__all__ = [
    "AtomicLocalBackend",
    "Comparison",
    "check_compatible",
    "compare",
    "find_resume_checkpoint",
    "install",
    "load_checkpoint_file",
]


# Reading


def _history_method(owner: Any, name: str) -> Any:
    """``getattr`` for the one use that checkpoints of mmengine make of it: a HistoryBuffer pickles its own methods."""
    if owner is not HistoryBuffer or name not in ("min", "max", "current", "mean"):
        raise UnpicklingError(f"unsupported GLOBAL builtins.getattr of {owner!r} and {name!r}")
    return getattr(HistoryBuffer, name)


def _safe_globals() -> list[Any]:
    """What trainings save beyond tensors and plain values; none of it can run code or open files."""
    reconstruct = np.empty(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    dtypes = [kind for name in np.dtypes.__all__ if isinstance(kind := getattr(np.dtypes, name), type)]
    # NumPy 2 moved numpy.core to numpy._core: files of either are read by either.
    numpy_names = [
        (function, f"numpy.{core}.multiarray.{function.__name__}")
        for function in (reconstruct, scalar)
        for core in ("core", "_core")
    ]
    own = [HistoryBuffer, (_history_method, "builtins.getattr")]
    # timm's trainings, and those of many papers, save their command line: a Namespace.
    return [*own, Namespace, np.ndarray, np.dtype, *dtypes, *numpy_names]


def load_checkpoint_file(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint without running any code in it.

    Args:
        path: ``.pth``, ``.pt``, ... as PyTorch writes them, or ``.safetensors``.
        map_location: device to load to, as for :func:`torch.load`.

    Returns:
        What the file holds; for safetensors the flat state dict, in float32 (see :mod:`hypvision.checkpoints.storage`).

    Raises:
        HypvisionError: no such file, a damaged one, one that would run code, or one that holds no dict.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        found = sorted(file.name for file in path.parent.glob("*") if file.suffix in (".pth", ".pt", ".safetensors"))
        hint = f" The folder has: {', '.join(found[-5:])}." if found else ""
        raise HypvisionError(f"There is no checkpoint '{path}'.{hint} Check the path.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            device = map_location if isinstance(map_location, (str, torch.device)) else "cpu"
            return unpack(load_file(path, device=str(device)))
        with torch.serialization.safe_globals(_safe_globals()):
            checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except PermissionError as error:
        raise HypvisionError(f"The checkpoint '{path}' cannot be read: {error.strerror}.") from error
    except Exception as error:  # the readers raise whatever the bytes make them stumble over
        raise _refusal(path, error) from error
    if not isinstance(checkpoint, Mapping):
        raise HypvisionError(
            f"The checkpoint '{path}' holds a {type(checkpoint).__name__}, not a dict of weights. Save "
            "model.state_dict() instead."
        )
    return checkpoint


def _refusal(path: Path, error: Exception) -> HypvisionError:
    """The paragraph for a checkpoint that cannot be read: it would run code, or it is damaged."""
    if isinstance(error, torch.OutOfMemoryError):
        return HypvisionError(f"There is not enough memory to load '{path}' ({error}).")
    text = str(error)
    culprit = re.search(r"GLOBAL ([\w.]+)", text)
    if isinstance(error, UnpicklingError) and (culprit or "Trying to" in text):
        what = f"'{culprit[1].rstrip('.')}'" if culprit else "an object"
        return HypvisionError(
            f"The checkpoint '{path}' was refused: it contains {what}, which is neither a weight nor a plain value: "
            "loading it could run code from the file. If you trust its source, convert it once, on a machine where "
            "that does no harm: load it with torch.load(path, weights_only=False) and save only its weights with "
            "torch.save({'state_dict': checkpoint['state_dict']}, new_path)."
        )
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(64).lstrip()
    if size == 0:
        reason = "it is empty"
    elif start.startswith((b"<", b"version https://git-lfs")):
        reason = "it is not a checkpoint but an error page or a Git LFS pointer"
    else:
        reason = f"its {size} bytes are not a complete checkpoint"
    return HypvisionError(
        f"The checkpoint '{path}' is damaged: {reason}. Download or copy it again, or take an earlier one."
    )


def load_from_local(filename: str, map_location: Any = None) -> dict[str, Any]:
    """mmengine's loader of local files: :func:`load_checkpoint_file`, without code that mmengine would run."""
    # None would put each tensor on the GPU that it was saved from, which may not be there.
    checkpoint = load_checkpoint_file(filename, "cpu" if map_location is None else map_location)
    meta = checkpoint.get("meta")
    if isinstance(meta, dict):
        # Runner.resume would execute this text as Python; mmengine itself writes the config under "cfg".
        meta.pop("config", None)
    return checkpoint


def load_from_http(filename: str, map_location: Any = None, model_dir: str | None = None) -> dict[str, Any]:
    """mmengine's loader of URLs: downloads once into PyTorch's cache, verifies, then as :func:`load_from_local`.

    Args:
        filename: the address with the sum that the file must have: ``https://HOST/net.pth#sha256=HEX`` with all 64
            digits; or, over https, a name that ends in ``-HEX`` with the first 8 digits or more, as PyTorch and
            OpenMMLab name their files.
        map_location: device to load to.
        model_dir: folder of the cache.

    Raises:
        HypvisionError: an address without a sum, a file with another sum, or one that cannot be fetched or read.
    """
    url, sha256 = _address_and_sum(filename)
    folder = Path(model_dir or Path(torch.hub.get_dir(), "checkpoints"))
    path = folder / Path(urlparse(url).path).name
    if get_rank() == 0:
        _download(url, path, sha256)
    barrier()
    _download(url, path, sha256)  # for processes on machines with a cache of their own
    return load_from_local(str(path), map_location)


def load_from_zoo(filename: str, map_location: Any = None) -> dict[str, Any]:
    """mmengine's loader of ``zoo:`` and ``hf-hub:`` checkpoints.

    Returns:
        ``state_dict`` with the names that the engine's models have, and ``meta`` with the classes.

    Raises:
        HypvisionError: no such weights, or they cannot be fetched.
    """
    index, record = find(filename)
    path = resolve(record, index)  # its lock lets one of the processes on a machine download
    device = map_location if isinstance(map_location, str) else "cpu"
    weights = {name: value.to(device) for name, value in read_weights(path).items()}
    if record.task == "zero-shot":
        weights = {f"clip.{name}": value for name, value in expand_tokens(weights).items()}
    if record.task == "classification":
        weights = {f"backbone.{name}": value for name, value in weights.items()}
    return {"state_dict": weights, "meta": {"dataset_meta": {"classes": record.classes}}}


def refuse_store(filename: str, map_location: Any = None, **_: Any) -> dict[str, Any]:
    """In place of mmengine's loaders of ``s3://``, ``petrel://`` and ``pavi://``, which verify nothing."""
    raise HypvisionError(
        f"The checkpoint '{filename}' was not loaded: files of such a store cannot be verified. Copy it to this "
        "machine and give its path, or give https://HOST/FILE#sha256=HEX."
    )


def _address_and_sum(text: str) -> tuple[str, str]:
    """An address and the first digits, or all, of the sha256 that its file must have."""
    url, fragment = urldefrag(text)
    parts = urlparse(url)
    if given := re.fullmatch(r"sha256=([0-9a-fA-F]{64})", fragment):
        return url, given[1].lower()
    # Eight digits tell a damaged file, not a forged one: https has to say who sends it.
    in_name = re.search(r"-([0-9a-f]{8,64})\.\w+$", parts.path)
    if in_name and not fragment and parts.scheme == "https":
        return url, in_name[1]
    raise HypvisionError(
        f"The checkpoint '{text}' was not loaded: nothing says what the file must be, so it could not be verified. Add "
        f"its sum: {url}#sha256=HEX with 64 digits, as sha256sum prints them. Or take zoo:NAME, hf-hub:USER/REPO "
        "(verified by their index), or a file that you have downloaded and checked."
    )


def _download(url: str, path: Path, sha256: str) -> None:
    try:
        if path.is_file():
            if file_sha256(path).startswith(sha256):
                return
            print_log(f"'{path}' is not the file of '{url}' by its sum; downloading it.", "current", logging.WARNING)
        if offline():
            raise HypvisionError(
                f"The checkpoint '{url}' is not on this machine, and HYPVISION_OFFLINE or HF_HUB_OFFLINE is set. Unset "
                f"it, or copy the file to '{path}'."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        # Moved into place when it is complete and its sum is right.
        torch.hub.download_url_to_file(url, str(path), hash_prefix=sha256, progress=False)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise HypvisionError(
            f"The checkpoint '{url}' cannot be downloaded ({getattr(error, 'reason', error)}). Check the address and "
            "the network, or download it elsewhere and give its path."
        ) from error
    except OSError as error:
        raise _write_error(path, error) from error
    except RuntimeError as error:  # another sum
        raise HypvisionError(
            f"The checkpoint '{url}' was refused: its sha256 does not begin with {sha256} ({error}). The file was "
            "damaged or exchanged; if the address is right and you trust it, add the sum that it has: ...#sha256=HEX."
        ) from error


# Comparing


class Comparison(NamedTuple):
    """How the weights in a checkpoint fit a model.

    Attributes:
        matched: names in both, with equal shapes.
        missing: names that only the model has.
        unexpected: names that only the checkpoint has.
        mismatched: names in both with different shapes, each with a text that gives the two.
    """

    matched: list[str]
    missing: list[str]
    unexpected: list[str]
    mismatched: dict[str, str]

    def describe(self, limit: int = 3) -> str:
        """The differences in one sentence each, with up to ``limit`` examples."""
        parts = [
            ("missing in the file", self.missing),
            ("unknown to the model", self.unexpected),
            ("of another shape", list(self.mismatched.values())),
        ]
        return "; ".join(
            f"{len(names)} {what}: {', '.join(names[:limit])}{', ...' if len(names) > limit else ''}"
            for what, names in parts
            if names
        )

    @property
    def share(self) -> float:
        """Matched names, as a share of all names in the model or in the checkpoint."""
        total = len(self.matched) + len(self.missing) + len(self.unexpected) + len(self.mismatched)
        return len(self.matched) / max(total, 1)


def compare(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Comparison:
    """Compare two state dicts by names and shapes; batch counters of batch norm do not count."""
    own, given = (
        {name: value for name, value in weights.items() if not name.endswith("num_batches_tracked")}
        for weights in (own, given)
    )
    shapes = {name: (tuple(given[name].shape), tuple(own[name].shape)) for name in own if name in given}
    return Comparison(
        [name for name, (a, b) in shapes.items() if a == b],
        [name for name in own if name not in given],
        [name for name in given if name not in own],
        {
            name: f"{name} ({'x'.join(map(str, a)) or 'scalar'} instead of {'x'.join(map(str, b)) or 'scalar'})"
            for name, (a, b) in shapes.items()
            if a != b
        },
    )


def check_compatible(model: nn.Module, state_dict: Mapping[str, Any], path: str | Path, exact: bool = True) -> None:
    """Check that a checkpoint belongs to the architecture of a model, before it is loaded.

    Args:
        model: the model; a wrapper's ``module.`` in names does not matter.
        state_dict: weights by name.
        path: the file they are from, for the message.
        exact: every weight of the model must be in the file, with its shape (for testing and resuming); a few names
            that the model does not know are allowed, such as those of an auxiliary head. Otherwise (for fine-tuning)
            half of all names must match.

    Raises:
        HypvisionError: it is of another architecture; shows the first differences.
    """
    own, given = (
        {name.removeprefix("module."): value for name, value in weights.items() if isinstance(value, Tensor)}
        for weights in (model.state_dict(), state_dict)
    )
    found = compare(own, given)
    if exact:
        wrong = bool(found.missing or found.mismatched) or found.share < 0.8
    else:
        wrong = found.share < 0.5
    if wrong:
        raise HypvisionError(
            f"The checkpoint '{path}' does not fit the model of the config ({type(model).__name__}): "
            f"{len(found.matched)} of {len(own)} weights match. {found.describe()}. Use the config that the checkpoint "
            "was trained with, or a checkpoint of this architecture."
        )


# Writing


def _write_error(path: Path, error: OSError) -> HypvisionError:
    """The paragraph for a file that could not be written."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return HypvisionError(
            f"Cannot write '{path}': {error.strerror or error}. Choose a folder that you may write to, e.g. with "
            "--work-dir."
        )
    if path.suffix != ".pth":
        return HypvisionError(f"The disk is full: '{path}' was not written. Free some space, or choose another place.")
    newest = find_resume_checkpoint(path.parent)
    last = f"The last complete checkpoint is '{newest}'." if newest else "There is no complete checkpoint yet."
    return HypvisionError(
        f"The disk is full: '{path}' was not written. {last} Free some space, or use another --work-dir, and go on "
        "with --resume."
    )


def _write(path: Path, data: bytes) -> None:
    """Write a file so that its name always stands for complete content, the old or the new."""
    target = Path(os.path.realpath(path))  # a link stays a link
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):  # a disk that has gone: the first error says more
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _write_error(path, error) from error
        raise
    if os.name == "posix":  # the new name itself must reach the disk
        folder = os.open(target.parent, os.O_RDONLY)
        with suppress(OSError):  # some network file systems cannot; the content is safe all the same
            os.fsync(folder)
        os.close(folder)


class AtomicLocalBackend(LocalBackend):
    """mmengine's local files, written to a temporary name and moved into place.

    Raises:
        HypvisionError: the disk is full or the place not writable; the old file, if any, is as it was.
    """

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write ``obj``, making the folder if needed."""
        _write(Path(filepath), bytes(obj))

    def put_text(self, obj: str, filepath: str | Path, encoding: str = "utf-8") -> None:
        """Write the text ``obj``, making the folder if needed."""
        _write(Path(filepath), obj.encode(encoding))


# Resuming


def nonfinite_names(weights: Mapping[str, Any]) -> Iterator[str]:
    """Names of the weights that hold NaN or infinity."""
    for name, value in weights.items():
        if isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all():
            yield name


def _resumable(path: Path) -> bool:
    """Whether a checkpoint is complete and holds the place in the training that a resumed run starts from."""
    if path.is_dir():  # sharded, as DeepSpeed and FSDP write them: their own loader checks them
        return any(path.iterdir())
    try:
        checkpoint = load_checkpoint_file(path)
    except HypvisionError as error:
        print_log(f"Not resuming from it: {error}", logger="current", level=logging.WARNING)
        return False
    meta = checkpoint.get("meta")
    if "state_dict" not in checkpoint or not isinstance(meta, Mapping) or not {"epoch", "iter"} <= meta.keys():
        return False
    diverged = next(iter(nonfinite_names(checkpoint["state_dict"])), None)
    if diverged is not None:
        print_log(f"Not resuming from '{path}': its weight '{diverged}' is not finite.", "current", logging.WARNING)
    return diverged is None


def find_resume_checkpoint(work_dir: str | Path) -> str | None:
    """The newest complete checkpoint of a run.

    First the one that ``last_checkpoint`` names, then ``epoch_N.pth`` and ``iter_N.pth`` by falling number (the kind
    that was written last comes first). Damaged files are passed over, with a warning.

    Args:
        work_dir: the run's folder; it may have been moved since.

    Returns:
        Its path; None if there is no checkpoint at all.

    Raises:
        HypvisionError: there are checkpoints, but none that a training can go on from.
    """
    folder = Path(work_dir)
    candidates: list[Path] = []
    pointer = folder / "last_checkpoint"
    named = pointer.read_text(errors="replace").strip("\0 \n") if pointer.is_file() else ""
    if named:
        candidates += [Path(named), folder / Path(named).name]
    kinds: dict[str, dict[int, Path]] = {"epoch": {}, "iter": {}}
    for path in folder.glob("*.pth"):
        if match := re.fullmatch(r"(epoch|iter)_(\d+)\.pth", path.name):
            kinds[match[1]][int(match[2])] = path
    groups = [group for group in kinds.values() if group]
    groups.sort(key=lambda group: max(path.stat().st_mtime for path in group.values()), reverse=True)
    for group in groups:
        candidates += [group[number] for number in sorted(group, reverse=True)]
    seen: set[Path] = set()
    for path in candidates:
        place = path.resolve()
        if place not in seen and path.exists() and _resumable(path):
            return str(path)
        seen.add(place)
    tried = sorted({path.name for path in candidates if path.exists()})
    if tried:
        raise HypvisionError(
            f"None of the checkpoints in '{folder}' can be resumed ({', '.join(tried)}; the lines above say why). Give "
            "an intact one, --resume CHECKPOINT; to start over, leave out --resume and choose another --work-dir."
        )
    return None


class SafeYamlHandler(YamlHandler):
    """mmengine's YAML without tags that make Python objects, by which a file could run any command."""

    def load_from_fileobj(self, file: Any, **kwargs: Any) -> Any:
        return yaml.safe_load(file)


def install() -> None:
    """Make mmengine read and write files as above; calling it again changes nothing."""
    register_handler(["yaml", "yml"])(SafeYamlHandler)
    CheckpointLoader.register_scheme(prefixes="", loader=load_from_local, force=True)
    CheckpointLoader.register_scheme(prefixes=("http://", "https://"), loader=load_from_http, force=True)
    CheckpointLoader.register_scheme(prefixes=("zoo:", "hf-hub:"), loader=load_from_zoo, force=True)
    stores = (r"(\S+\:)?s3://", r"(\S+\:)?petrel://", "pavi://")
    CheckpointLoader.register_scheme(prefixes=stores, loader=refuse_store, force=True)
    # mmengine's loaders of torchvision://, open-mmlab:// and mmcls:// look an address up and call this name.
    mmengine_checkpoint.load_from_http = load_from_http
    register_backend("local", AtomicLocalBackend, force=True, prefixes="")
    # mmengine keeps the backends it has made: those of the old kind would go on being used.
    for key, backend in list(mmengine_io.backend_instances.items()):
        if type(backend) is LocalBackend:
            del mmengine_io.backend_instances[key]
