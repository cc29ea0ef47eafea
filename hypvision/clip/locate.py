"""Locate the config and weights of a CLIP model in a file, a folder, the zoo or a hub's
repository."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.sources import (
    fetch,
    fetch_first,
    fetch_from_hub,
    find,
    first_path,
    is_address,
    kept_from_hub,
    local_files,
    offline,
    repositories_with,
    resolve,
)
from hypvision.io import HypvisionError, Plain, StrPath, require
from hypvision.io.files import why_no_file
from hypvision.io.records import parse, read_record

from .hyperbolic_checkpoint import PUBLISHED

_CONFIG = "open_clip_config.json"
# Names of weight files in the order in which they are tried.
_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_FOLDER_WEIGHTS = (
    *_WEIGHTS, "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.pth",
    "model.safetensors", "pytorch_model.bin", "pytorch_model.pth", "model.pth",
)  # fmt: skip

_HUB_NAME = r"\w[\w.-]*(/\w[\w.-]*)?"
# Patterns that names in a config must match, so that none of them is a path.
_NAMES = {"timm_model_name": r"[\w.-]+", "hf_model_name": _HUB_NAME, "hf_tokenizer_name": _HUB_NAME}


def is_repository(name: str) -> bool:
    """Return whether a model's name means a repository or folder with config and weights."""
    return name.startswith(("hf-hub:", "local-dir:"))


def weights_file(name: str, pretrained: StrPath, needed: bool, tags: Sequence[str]) -> Path:
    """Return the file of weights that are no tag of open_clip; without ``needed`` it may be
    missing."""
    text = str(pretrained)
    if re.fullmatch(r"hf-hub:[^#]+#.+\.(pth?|bin|safetensors)", text):
        return fetch_published(text, name, needed)
    known = is_address(text)
    if known or text.startswith(("http://", "https://")):
        if not needed:
            return Path(text)
        return _from_zoo(name, text) if known else fetch(text)
    path = _own_file(Path(text).expanduser())
    # A name of weights has no suffix of a file.
    is_word = path.suffix not in (".pt", ".pth", ".safetensors", ".bin")
    if not path.exists() and (is_word or needed):
        raise HypvisionError(_why_none(name, pretrained, is_word, tags))
    return path


def _why_none(name: str, pretrained: StrPath, is_word: bool, tags: Sequence[str]) -> str:
    """Return why there are no such weights: no tag of this name, or no file."""
    if not is_word:
        missing = why_no_file(pretrained, "CLIP checkpoint")
        return f"{missing} Give the path of a file, or a tag of open_clip."
    # open_clip's tags are names alone; a record of the zoo is given with its scheme.
    clips = (each for each in builtin_index() if each.task == "zero-shot")
    records = [f"zoo:{each.name}" for each in clips if each.model == name]
    there = "its own" if is_repository(name) else ", ".join([*tags, *records]) or "none"
    return f"'{name}' has no weights '{pretrained}'. It has {there}; or give the path of a file."


def _own_file(path: Path) -> Path:
    """Return ``path``, or if it has no file, the path of that file in hypvision's own repository,
    where it has one, so that any working directory will do."""
    if path.is_absolute() or path.exists():
        return path
    shipped = Path(__file__).parents[2] / path
    return shipped if shipped.is_file() else path


def config_folder(name: str) -> Path:
    """Return the folder on this machine with the config of ``hf-hub:USER/REPO`` or
    ``local-dir:PATH``."""
    scheme, _, place = name.partition(":")
    if scheme == "local-dir":
        folder = Path(place).expanduser()
        if not (folder / _CONFIG).is_file():
            what = f"has no {_CONFIG}" if folder.is_dir() else "is not a folder"
            raise HypvisionError(
                f"The CLIP model '{name}' cannot be read: '{folder}' {what}. Give a folder with "
                f"{_CONFIG} and weights."
            )
        return folder
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", place):
        raise HypvisionError(f"'{name}' is not hf-hub:USER/REPO. Correct the name.")
    with offering():
        found = fetch_from_hub(place, _CONFIG)
        if found is None:
            raise HypvisionError(_not_there(name, place, [_CONFIG]))
    return found.parent


def repository_config(folder: Path) -> Plain:
    """Read the config of a model, with ``model_cfg`` and ``preprocess_cfg``; a config that would
    run code or read other folders is an error."""
    path = folder / _CONFIG
    found = read_record(Plain, path, "It describes no model of open_clip.")
    where = f"'{path}' describes no model of open_clip"
    inner = parse(Plain, found.get("model_cfg"), f"{where}: model_cfg")
    for key in ("vision_cfg", "text_cfg"):
        parse(Plain, inner.get(key), f"{where}: {key}")
    if "trust_remote_code" in str(found):  # This option would run Python code from the repository.
        raise HypvisionError(
            f"'{path}' was refused: it contains trust_remote_code, which would run code of the "
            "repository. Remove this setting, or take another model."
        )
    text = inner["text_cfg"]
    kwargs = parse(Plain, text.get("tokenizer_kwargs") or {}, f"{where}: tokenizer_kwargs")
    named = dict(timm_model_name=inner["vision_cfg"].get("timm_model_name"))
    named |= {key: text.get(key) for key in ("hf_model_name", "hf_tokenizer_name")}
    named |= {key: value for key, value in kwargs.items() if key.endswith(("_path", "_file"))}
    for key, value in named.items():
        if value is not None and not (key in _NAMES and re.fullmatch(_NAMES[key], str(value))):
            raise HypvisionError(
                f"'{path}' was refused: {key} is '{value}', a place on this machine or a model of "
                "another source. Put the files of the tokenizer into its folder, and name models "
                "of timm and of the hub."
            )
    return found


def repository_weights(name: str, folder: Path) -> Path:
    """Return the weights file of ``hf-hub:USER/REPO`` or ``local-dir:PATH``; ``folder`` has its
    config."""
    scheme, _, place = name.partition(":")
    if scheme == "hf-hub":
        return fetch_weights(f"{place}/", name)
    there = sorted(
        path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pth", ".pt")
    )
    known = [folder / file for file in _FOLDER_WEIGHTS if folder / file in there]
    if not known and len(there) != 1:
        raise HypvisionError(
            f"'{folder}' has {len(there)} files of weights, none of them named {_WEIGHTS[0]}. "
            "Rename the one to use to this, or give its path as the weights."
        )
    return (known or there)[0]


def fetch_weights(place: str, name: str) -> Path:
    """Fetch the weights ``USER/REPO/FILE`` with our downloader, which has a deadline; without FILE,
    open_clip's standard file. ``name`` is the model's name in error messages.
    """
    repository, files = _files(place)
    with offering():
        found = next(
            (path for each in files if (path := fetch_from_hub(repository, each)) is not None), None
        )
        if found is None:
            raise HypvisionError(_not_there(name, repository, files))
    return found


def _files(place: str) -> tuple[str, list[str]]:
    """Return ``USER/REPO`` and the files that ``USER/REPO/FILE`` or ``hf-hub:USER/REPO#FILE`` may
    mean, the preferred one first."""
    repository, _, file = place.removeprefix("hf-hub:").replace("#", "/").rpartition("/")
    return repository, [f"{file.rpartition('.')[0]}.safetensors", file] if file else [*_WEIGHTS]


def fetch_published(place: str, name: str, needed: bool) -> Path:
    """Fetch the file at an address without a known checksum, or at ``hf-hub:USER/REPO#FILE``;
    without ``needed`` only its name is returned."""
    if not needed:
        return Path(place.rpartition("/")[2].rpartition("#")[2])
    if place.startswith("hf-hub:"):
        return fetch_weights(place, name)
    with offering():
        return fetch_first(place)


def clips_here() -> list[str]:
    """Return the names, as ``--clip`` takes them, of CLIP models whose weights are on this machine:
    those of the zoo that ship or were fetched, then fetched ones of open_clip, of hyperbolic
    families and of repositories."""
    open_clip = require("open_clip", "clip")
    index = builtin_index()
    records = [
        record.name for record in index.select(task="zero-shot") if local_files(index, record)
    ]
    places = {
        f"{name}:{tag}": open_clip.get_pretrained_cfg(name, tag).get("hf_hub")
        for name, tag in open_clip.list_pretrained()
    }
    places |= {
        f"{name}:{tag}": place for name, tags in PUBLISHED.items() for tag, place in tags.items()
    }
    return [
        *records,
        *(name for name, place in places.items() if place and _is_kept(place)),
        *(f"hf-hub:{repository}" for repository in repositories_with(_CONFIG)),
    ]


def _is_kept(place: str) -> bool:
    if place.startswith("https://"):
        return first_path(place).is_file()
    repository, files = _files(place)
    return any(kept_from_hub(repository, file) is not None for file in files)


@contextmanager
def offering() -> Iterator[None]:
    """Append the CLIP models that are on this machine to the error of a failed download."""
    try:
        yield
    except HypvisionError as error:
        raise HypvisionError(
            f"{error} CLIP models on this machine: {', '.join(clips_here()) or 'none'}."
        ) from error


def _not_there(name: str, repository: str, files: list[str]) -> str:
    listed = " or ".join(files)
    if offline():
        return (
            f"The CLIP model '{name}' cannot be fetched: {listed} of '{repository}' is not on this "
            "machine, and HYPVISION_OFFLINE or HF_HUB_OFFLINE is set. With a network it is "
            "downloaded once and kept. Without one, bring the repository here (hf download "
            f"{repository} --local-dir DIR) and give local-dir:DIR or the path of a file."
        )
    return (
        f"The CLIP model '{name}' cannot be fetched: the repository '{repository}' has no {listed}."
    )


def _from_zoo(name: str, address: str) -> Path:
    """Return the verified file of the zoo's weights at ``address`` for the CLIP model ``name``."""
    try:
        index, record = find(address)
    except HypvisionError as error:
        if not address.startswith("hf-hub:"):
            raise
        raise HypvisionError(
            f"{error} If '{address}' is a model repository of open_clip, give it as the name of "
            f"the model, in place of '{name}'."
        ) from error
    if record.task != "zero-shot" or record.model != name:
        raise HypvisionError(
            f"'{address}' are weights of '{record.model}' ({record.task}), not of the CLIP model "
            f"'{name}'. `hypvision zoo list --task zero-shot` lists those of CLIP models."
        )
    return resolve(record, index)
