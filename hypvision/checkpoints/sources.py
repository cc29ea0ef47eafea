"""Find the verified file on this machine for a name of weights, and download it if need be.

:func:`fetch` takes every name that a checkpoint can have: a file, weights of the zoo or of a
release, an address with the sum of its file. For weights of the zoo it calls :func:`resolve`, as do
timm's ``pretrained=True`` and the commands. :func:`resolve` looks in this order at

1. the file packaged beside the index (a git checkout, an installed wheel, a release folder),
2. the cache, ``HYPVISION_HOME`` (default ``$XDG_CACHE_HOME/hypvision``, that is
   ``~/.cache/hypvision``),
3. the mirrors in ``HYPVISION_WEIGHTS``: base addresses, separated by commas or spaces, each
   ``http(s)://``, ``file://``, a folder, or ``hf-hub:USER/REPO[@REVISION]``,
4. the addresses in the record.

``HYPVISION_OFFLINE=1`` (or ``HF_HUB_OFFLINE=1``) switches the network off. Wherever a file comes
from, it is used only if its size, SHA-256 and format are those of the record.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.parse import unquote, urldefrag, urlsplit

import torch

from hypvision.io import HypvisionError, StrPath, ensure, explaining, one_line, without_secrets
from hypvision.io.files import write_text
from hypvision.io.web import SourceError, deadline, guarded, in_time, separated

from .download import download, download_text, file_sha256, locked, verify_file, verify_sum
from .index import builtin_index, parse_index, read_index
from .records import ADDRESSES, Index, Record

_logger = logging.getLogger(__name__)


def home() -> Path:
    """Return the folder of everything that hypvision keeps between runs."""
    given = os.environ.get("HYPVISION_HOME")
    base = os.environ.get("XDG_CACHE_HOME") or ""
    with explaining(
        lambda error: (
            "This user has no home directory. Set HYPVISION_HOME to a folder that you may write to."
        ),
        RuntimeError,
    ):
        if given:
            return Path(given).expanduser().absolute()
        return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "hypvision"


def cache_folder() -> Path:
    """Return the folder of downloaded weights, which may not exist yet."""
    return home() / "weights"


def index_folder() -> Path:
    """Return the folder with the indexes of releases that were visited, which may not exist yet."""
    return home() / "indexes"


def lock_path(filename: str) -> Path:
    """Return the path of the lock that a download of this file holds."""
    return home() / "locks" / f"{filename}.lock"


def offline() -> bool:
    """Return whether the environment forbids the use of the network."""
    words = (os.environ.get(name, "").lower() for name in ("HYPVISION_OFFLINE", "HF_HUB_OFFLINE"))
    return any(word in ("1", "true", "yes", "on") for word in words)


def hub_switch() -> AbstractContextManager[Any]:
    """Return a context in which the hub's own client, which other libraries use, obeys
    ``HYPVISION_OFFLINE``, too."""
    from huggingface_hub import constants

    return patch.object(constants, "HF_HUB_OFFLINE", constants.HF_HUB_OFFLINE or offline())


def mirrors() -> list[str]:
    """Return the base addresses in ``HYPVISION_WEIGHTS``; raise an error for one that is neither an
    address nor a folder."""
    found = [
        word.rstrip("/")
        for word in re.split(r"[,\s]+", os.environ.get("HYPVISION_WEIGHTS", ""))
        if word
    ]
    for base in found:
        if not base.startswith(ADDRESSES) and not os.path.isdir(os.path.expanduser(base)):
            raise HypvisionError(
                f"HYPVISION_WEIGHTS: '{base}' is neither a folder nor an address that begins with "
                f"{', '.join(ADDRESSES)}. Separate several by commas; write file:// addresses for "
                "folders with spaces."
            )
    return found


class _Web(NamedTuple):
    """A file on the network: its address without secrets, for messages, and the URL and headers of
    the request."""

    address: str
    url: str
    headers: Mapping[str, str] = {}


def _place(address: str) -> Path | _Web:
    """Return an address as a path or as a file on the network; raise an error for a malformed
    address."""
    if address.startswith(("http://", "https://")):
        return _web_place(address)
    if address.startswith("hf-hub:"):
        return _hub_place(address)
    if address.startswith("file:"):
        parts = urlsplit(address)
        ensure(
            parts.netloc in ("", "localhost"),
            f"'{address}': a file address has three slashes, file:///folder/file. Correct it.",
        )
        return Path(unquote(parts.path))
    return Path(address).expanduser()


def _web_place(address: str) -> _Web:
    """Return a web address as a file on the network. A name and a password go into a header, so
    that they never appear in a message or log."""
    url, headers = separated(address)
    return _Web(without_secrets(url), url, headers)


def _hub_place(address: str) -> _Web:
    match = re.fullmatch(r"hf-hub:([\w.-]+/[\w.-]+)(?:@([\w.-]+))?/([\w./-]+)", address)
    if not match or ".." in (*match[1].split("/"), *match[3].split("/")):
        raise HypvisionError(f"'{address}' is not hf-hub:USER/REPO[@REVISION]/FILE. Correct it.")
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    # The access token is sent to the hub alone, not to hosts that it redirects to.
    return _Web(address, hf_hub_url(match[1], match[3], revision=match[2]), build_hf_headers())


def _verified(path: Path, verify: Callable[[Path], None]) -> bool:
    try:
        verify(path)
        return True
    except SourceError:
        return False


def _download_once(
    web: _Web,
    path: Path,
    lock_name: str,
    name: str,
    verify: Callable[[Path], None],
    size: int | None = None,
    advice: str = "Set HYPVISION_HOME to a folder that you may write to.",
    known: bool = True,
) -> Path:
    """Download a file to ``path``, unless another process was faster, and return ``path``.
    ``advice``: what to do if a folder cannot be written. ``known``: whether ``verify`` can tell the
    right file from others."""
    lock = lock_path(lock_name)
    with explaining(
        lambda error: f"'{path}' cannot be written ({error.strerror or error}). {advice}", OSError
    ):
        for folder in (path.parent, lock.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with locked(lock, f"{name} is being downloaded"):
            if not _verified(path, verify):
                download(web.url, path, verify if known else None, size, web.headers, name)
    return path


def local_files(index: Index, record: Record) -> dict[str, Path]:
    """Return the files of a record that are on this machine, under the keys ``"packaged"`` and
    ``"cached"``; they are not verified yet."""
    places = {"cached": cache_folder() / record.filename}
    if index.root is not None and record.file.path is not None:
        packaged = index.root / record.file.path
        # A symbolic link must not lead out of the folder, which other people may have made.
        if packaged.resolve().is_relative_to(index.root.resolve()):
            places = {"packaged": packaged, **places}
    # A file in a folder that cannot be read counts as missing.
    return {kind: path for kind, path in places.items() if os.path.isfile(path)}


def _places(index: Index, record: Record) -> Iterator[Path | _Web]:
    """Yield the places where the file of a record may be; files come first, because they need no
    network."""
    yield from local_files(index, record).values()
    found = [f"{base}/{record.filename}" for base in mirrors()]
    if index.address is not None and record.file.path is not None:
        found.append(f"{index.address}/{record.file.path}")
    yield from sorted(
        map(_place, [*found, *record.file.urls]), key=lambda place: isinstance(place, _Web)
    )


def resolve(record: str | Record, index: Index | None = None) -> Path:
    """Return the verified weight file of a record, after a download if need be.

    Args:
        record: a record, with its ``index``; or a text that :func:`find` takes.
        index: the index that has the record.

    Raises:
        HypvisionError: there is no such record, or no source provides the file; the message lists
            the answer of each source and says what to do.
    """
    if isinstance(record, str):
        index, record = find(record)
    index = Index({}) if index is None else index
    cached = cache_folder() / record.filename
    answers: list[str] = []
    verify = partial(verify_file, sha256=record.file.sha256, size=record.file.bytes)
    for place in _places(index, record):
        try:
            if isinstance(place, Path):
                verify(place)
                return place
            if offline():
                raise SourceError(
                    "was not asked, because HYPVISION_OFFLINE or HF_HUB_OFFLINE is set"
                )
            advice = (
                "Set HYPVISION_HOME to a folder that you may write to, or let somebody who may "
                f"run: hypvision zoo get {record.name}"
            )
            return _download_once(
                place, cached, record.filename, record.name, verify, record.file.bytes, advice
            )
        except SourceError as error:
            answers.append(f"'{place.address if isinstance(place, _Web) else place}': {error}")
            _logger.warning("%s; looking elsewhere.", answers[-1])
    said = " ".join(f"{answer}." for answer in answers) or "No address is known for it."
    raise HypvisionError(
        f"The weights '{record.name}' are not on this machine and cannot be fetched. {said} Check "
        "the network, set HYPVISION_WEIGHTS to a mirror (a folder or an address that holds "
        f"{record.filename}), or copy that file to '{cached}'."
    )


# Any name of a checkpoint


def fetch(source: StrPath) -> Path:
    """Return the file on this machine for the name or address of a checkpoint, after a download if
    need be.

    Args:
        source: a path; ``zoo:NAME``, ``hf-hub:USER/REPO`` or ``file:///FOLDER#NAME`` (see
            :func:`find`); or an address with the SHA-256 that its file must have:
            ``https://HOST/net.pth#sha256=HEX`` with all 64 digits, or, over https, a name that ends
            in ``-HEX`` with at least the first 8 digits, as PyTorch and OpenMMLab name their files.

    Raises:
        HypvisionError: the address has no sum, the file has another sum, or it cannot be
            downloaded. A path is returned even if it does not exist.
    """
    text = str(source)
    if text.startswith(("http://", "https://")):
        url, digits = _address_and_sum(text)
        return _download_verified(url, digits, _torch_path(url))
    return resolve(text) if is_address(text) else Path(text).expanduser()


def _address_and_sum(text: str) -> tuple[str, str]:
    """Return an address and the SHA-256, or its first digits, that the file there must have."""
    # This raises an error for a text that is no address.
    separated(text)
    url, fragment = urldefrag(text)
    parts = urlsplit(url)
    given = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", fragment)
    if given:
        return url, given[1].lower()
    # A hash of eight digits detects damage, but not forgery; https proves who sent the file.
    in_name = re.search(r"-([0-9a-f]{8,64})\.\w+$", parts.path)
    if in_name and not fragment and parts.scheme == "https":
        return url, in_name[1]
    raise HypvisionError(
        f"The checkpoint '{text}' was not loaded, because it has no checksum to verify the file "
        f"with. Add one: {without_secrets(url)}#sha256=HEX with 64 digits, as sha256sum prints "
        "them. Or use zoo:NAME, hf-hub:USER/REPO (verified by their index), or a file that you "
        "have downloaded and checked."
    )


def fetch_first(address: str) -> Path:
    """Return the file of an address without a published sum. The first download logs and stores its
    SHA-256, and later downloads must have the same one.
    """
    kept = _kept_sum(address)
    path = first_path(address)
    if kept.is_file():
        return _download_verified(
            *_address_and_sum(f"{address}#sha256={kept.read_text().strip()}"), path
        )
    digest = file_sha256(_download_verified(address, "", path))
    write_text(kept, digest)
    place = _web_place(address).address
    _logger.warning(
        "No sum of '%s' is published. The sha256 of this first download is stored, and every later "
        "download must have the same. To check the file on another machine, give %s#sha256=%s as "
        "the weights.",
        place, place, digest,
    )  # fmt: skip
    return path


def _torch_path(url: str) -> Path:
    """Return the path where PyTorch keeps the file of an address: by the file's name alone, which
    other addresses may share."""
    return Path(torch.hub.get_dir(), "checkpoints", Path(urlsplit(url).path).name)


def _kept_sum(address: str) -> Path:
    return home() / "sums" / _key(address)


def _key(address: str) -> str:
    return hashlib.sha256(address.encode()).hexdigest()[:16]


def first_path(address: str) -> Path:
    """Return the path where :func:`fetch_first` keeps the file of an address, in PyTorch's cache;
    it may not exist yet."""
    plain = _torch_path(address)
    kept = _kept_sum(address)
    own = plain.with_name(f"{_key(address)}-{plain.name}")
    # The files of two addresses may have the same name, and without a sum nothing tells them apart.
    known = not own.exists() and plain.is_file() and kept.is_file()
    return (
        plain
        if known and _verified(plain, partial(verify_sum, sha256=kept.read_text().strip()))
        else own
    )


def _of_another(url: str, path: Path) -> str:
    """Return a hint at a file in PyTorch's cache that may be the missing one, since other addresses
    share its name; an empty text if there is none."""
    plain = _torch_path(url)
    return (
        f" (there is a '{plain}': rename it if it is this one)"
        if plain != path and plain.is_file()
        else ""
    )


def _download_verified(url: str, sha256: str, path: Path) -> Path:
    """Download a file to ``path`` once, verified by the first digits of its SHA-256, and return
    ``path``."""
    place = _web_place(url)
    verify = partial(verify_sum, sha256=sha256)
    if _verified(path, verify):
        return path
    if offline():
        raise HypvisionError(
            f"The checkpoint '{place.address}' is not on this machine, and HYPVISION_OFFLINE or "
            "HF_HUB_OFFLINE is set. Unset it, or copy the file to "
            f"'{path}'{_of_another(url, path)}."
        )
    with explaining(
        lambda error: (
            f"The checkpoint '{place.address}' cannot be downloaded: {error}. Check the address, "
            "its sum and the network, or download it elsewhere and give its path."
        ),
        SourceError,
    ):
        return _download_once(
            place, path, f"{sha256[:8]}-{path.name}", place.address, verify,
            advice="Set TORCH_HOME (for files) and HYPVISION_HOME (for locks) to folders that you "
                   "may write to.",
            known=bool(sha256),
        )  # fmt: skip


# Files of other people's repositories on the hub


def fetch_from_hub(repository: str, name: str) -> Path | None:
    """Return a file of a repository on the hub: from the hub's cache, or downloaded into it and
    verified.

    Args:
        repository: ``USER/REPO``.
        name: path of the file in the repository.

    Returns:
        The path; None if the repository has no such file, or if the network is switched off and the
            file is not on this machine.
        machine.

    Raises:
        HypvisionError: there is no such repository, the hub does not answer in time or sends
            another file, or the cache cannot be written.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    kept = kept_from_hub(repository, name)
    if kept is not None or offline():
        return kept
    # The hub's client raises its own errors and those of its HTTP library.
    with explaining(
        lambda error: (
            f"'{repository}' cannot be fetched from the hub: {one_line(error)}. Check the name, "
            "the network and the hub's cache (HF_HOME), or download it elsewhere and give its path."
        )
    ):
        try:
            about = partial(get_hf_file_metadata, hf_hub_url(repository, name))
            found = in_time(partial(guarded, about), deadline(0))
        except EntryNotFoundError:
            return None
        transfer = partial(hf_hub_download, repository, name)
        path = Path(in_time(partial(guarded, transfer), deadline(found.size)))
        # The tag is a SHA-256 for large files only; the hub knows no such sum of small ones.
        if found.etag is not None and len(found.etag) == 64:
            try:
                verify_sum(path, found.etag)
            except SourceError:
                path.resolve().unlink()
                raise
        return path


def kept_from_hub(repository: str, name: str) -> Path | None:
    """Return the path of a file of a repository in the hub's cache; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    kept = try_to_load_from_cache(repository, name)
    return Path(kept) if isinstance(kept, str) else None


def repositories_with(name: str) -> list[str]:
    """Return the repositories ``USER/REPO`` with a file of this name in the hub's cache."""
    from huggingface_hub import constants

    found = {
        path.parts[-4]
        for path in Path(constants.HF_HUB_CACHE).glob(f"models--*/snapshots/*/{name}")
    }
    return sorted(folder.removeprefix("models--").replace("--", "/") for folder in found)


# Addresses of whole releases


def is_address(text: StrPath) -> bool:
    """Return whether a text means weights of the zoo or of a release, rather than a file."""
    return str(text).startswith(("zoo:", "hf-hub:", "file://"))


def find(text: str) -> tuple[Index, Record]:
    """Return the record that a text means, with its index.

    Args:
        text: a name in the built-in index, ``zoo:NAME``; or a release of ``hypvision zoo push``,
            ``ADDRESS[#NAME]``, whose address is as in :func:`mirrors`, or a folder with a slash in
            its path. The name is needed if the release has several records.
    """
    text = str(text)
    address, _, name = text.partition("#")
    # The path of a folder needs a slash, so that a folder in the current one cannot hide weights of
    # the same name.
    folder = ("/" in address or os.sep in address) and os.path.isdir(os.path.expanduser(address))
    if text.startswith("zoo:") or not (address.startswith(ADDRESSES) or folder):
        index = builtin_index()
        return index, index.get(text.removeprefix("zoo:"))
    index = open_release(address)
    if not name:
        if len(index) != 1:
            raise HypvisionError(
                f"'{address}' has {len(index)} records: "
                f"{', '.join(index.records)}. Choose one: add #NAME to the address."
            )
        name = next(iter(index.records))
    return index, index.get(name)


def open_release(address: str) -> Index:
    """Return the index of a release. An index from the network is stored, and used again when the
    network is not available.

    An index cannot run code, and every file that it lists is checked against it. But a person who
    can change the index can change the sums in it: use releases from addresses that you trust.
    """
    address = address.rstrip("/").removesuffix("/index.yml")
    place = _place(f"{address}/index.yml")
    if isinstance(place, Path):
        return read_index(place)
    shown = without_secrets(address)
    kept = index_folder() / f"{_key(address)}.yml"
    reason = "the network is switched off by HYPVISION_OFFLINE or HF_HUB_OFFLINE"
    if not offline():
        try:
            text = download_text(place.url, place.headers)
        except SourceError as error:
            reason = str(error)
        else:
            index = parse_index(text, address=address)
            try:
                write_text(kept, text)
            except HypvisionError as error:
                _logger.warning("%s", error)
            return index
    ensure(
        kept.is_file(),
        f"The index of the release '{shown}' cannot be read: {reason}. Check the address; a "
        "release has a file index.yml, as `hypvision zoo push` writes it.",
    )
    _logger.warning("%s: %s; using the index of the last visit.", shown, reason)
    return parse_index(kept.read_text(encoding="utf-8"), address=address)
