"""Publish weights: as a release folder that any web server can serve, as a repository on the
Hugging Face hub, or as one more record of a zoo.

A release holds ``index.yml``, the weight files under the names that caches and mirrors use, a card
for each record, and ``SHA256SUMS``. Copied to a server, others load from it:
``hypvision.load("https://HOST/FOLDER#NAME")``, or for all names at once
``HYPVISION_WEIGHTS=https://HOST/FOLDER``. By its ``config.json`` timm, too, reads the release of a
single classifier of hypvision: ``timm.create_model("local-dir:FOLDER", pretrained=True)``.

A hub repository holds one record as timm writes it (``config.json``, ``model.safetensors``), so
that, after ``import hypvision``, ``timm.create_model("hf-hub:USER/REPO", pretrained=True)`` works
as well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypvision.checkpoints.download import copy_verified, locked
from hypvision.checkpoints.index import read_index, with_record, write_index
from hypvision.checkpoints.pretrained import timm_cfg
from hypvision.checkpoints.records import Index, Record
from hypvision.checkpoints.sources import offline, resolve
from hypvision.io import HypvisionError, StrPath, ensure, one_line
from hypvision.io.files import check_new_folder, replacing_folder, write_json, write_text
from hypvision.models.base import AnyCheckpoint

from .cards import model_card, readme
from .loading import classifier

_LOCK = ".index.lock"


def index_of(folder: Path) -> Index:
    """Return the index of a zoo in a folder; an empty index if the folder has none yet."""
    if (folder / "index.yml").is_file():
        return read_index(folder)
    ensure(
        not (folder / "README.md").exists(),
        f"'{folder}' is no zoo (it has no index.yml), and its README.md would be replaced by the "
        "table of one. Give another folder.",
    )
    return Index({}, folder.resolve())


def put_record(folder: Path, record: Record, file: Path, seen: Record | None) -> None:
    """Put a record and its weight file into a zoo, and write the table of the zoo anew.

    The index is read, changed and written under a lock, since measurements take minutes, in which
    other processes may have added records. An old weight file that no record names any more is
    removed.

    Args:
        folder: folder of the zoo, with ``index.yml``; it is made if it does not exist.
        record: the new record, which replaces one of the same name.
        file: file with its weights, which is copied to ``record.file.path``.
        seen: the earlier record of this name that the new one was made from; None if there was
            none.

    Raises:
        HypvisionError: another process has changed the record of this name meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / _LOCK, f"'{record.name}' is written into its index"):
        index = index_of(folder)
        ensure(
            index.records.get(record.name) == seen,
            f"Another command has changed '{record.name}' in '{folder}' meanwhile, so it was not "
            "written. Look at that record and repeat the command.",
        )
        index = with_record(index, record)
        target = folder / str(record.file.path)
        copy_verified(file, target, record.file.sha256, record.file.bytes)
        write_index(index, folder / "index.yml")
        write_text(folder / "README.md", readme(index))
        old = None if seen is None else seen.file.path
        if old is not None and old not in {other.file.path for other in index}:
            (folder / old).unlink(missing_ok=True)


def _write_config(index: Index, record: Record, folder: Path) -> None:
    """Write the ``config.json`` by which timm reads the folder of a classifier of hypvision, whose
    class unpacks stored weights; for other tasks and timm's own networks write nothing."""
    network = classifier(index, record, {}) if record.task == "classification" else None
    if not isinstance(network, AnyCheckpoint):
        return
    # These are the names of the layers that a new head replaces.
    names = {key: network.pretrained_cfg.get(key) for key in ("classifier", "first_conv")}
    config = {
        "architecture": record.model,
        "num_classes": len(record.classes),
        "model_args": dict(record.arguments),
        "pretrained_cfg": {**timm_cfg(record), **names},
    }
    write_json(folder / "config.json", config, indent=2)


def write_release(index: Index, records: Sequence[Record], folder: Path) -> None:
    """Write a release of records into an empty folder."""
    released = {}
    sums = []
    names = {record.name for record in records}
    for record in records:
        # The index of a release cannot find records of another index, so such a parent is dropped.
        if record.parent not in names:
            record = replace(record, parent=None)
        copy_verified(
            resolve(record, index), folder / record.filename, record.file.sha256, record.file.bytes
        )
        sums.append(f"{record.file.sha256}  {record.filename}\n")
        released[record.name] = replace(record, file=replace(record.file, path=record.filename))
        write_text(folder / f"{record.name}.md", model_card(record))
    if len(records) == 1:
        _write_config(index, records[0], folder)
    write_index(Index(released), folder / "index.yml")
    write_text(folder / "SHA256SUMS", "".join(sums))


def push_to_folder(index: Index, records: Sequence[Record], folder: StrPath) -> Path:
    """Make a release folder, complete or not at all.

    Args:
        index: index that the records come from.
        records: the records to release.
        folder: a new or an empty folder.
    """
    folder = check_new_folder(Path(folder).expanduser().absolute())
    with replacing_folder(folder) as stage:
        write_release(index, records, stage)
    return folder


def hub_folder(index: Index, record: Record, folder: Path) -> None:
    """Write the files of a hub repository for one record into a folder."""
    copy_verified(
        resolve(record, index), folder / "model.safetensors", record.file.sha256, record.file.bytes
    )
    alone = replace(
        record, parent=None, file=replace(record.file, path="model.safetensors", urls=())
    )
    write_index(Index({record.name: alone}), folder / "index.yml")
    write_text(folder / "README.md", model_card(record, front_matter=True))
    _write_config(index, record, folder)


def push_to_hub(index: Index, record: Record, repo: str, private: bool = False) -> str:
    """Upload one record to a repository on the Hugging Face hub, in one commit; a missing
    repository is made.

    Args:
        index: index that the record comes from.
        record: the record to upload.
        repo: name of the repository, ``USER/REPO``.
        private: whether a new repository is private.

    Returns:
        The address of the repository for :func:`hypvision.load`.
    """
    from huggingface_hub import HfApi

    ensure(
        not offline(),
        f"'{record.name}' was not pushed to the hub: HYPVISION_OFFLINE or HF_HUB_OFFLINE is "
        "set. Unset it, or push to a folder with --out DIR.",
    )
    with tempfile.TemporaryDirectory(prefix="push-") as place:
        hub_folder(index, record, Path(place))
        try:
            api = HfApi()
            api.create_repo(repo, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo, folder_path=place, commit_message=f"{record.name} from hypvision"
            )
        except Exception as error:
            # The hub's client raises its own errors and those of its HTTP library.
            raise HypvisionError(
                f"'{record.name}' cannot be pushed to the hub repository '{repo}': "
                f"{one_line(error)}. Log in with a token that may write (hf auth login), check the "
                "name, or push to a folder with --out DIR."
            ) from error
    return f"hf-hub:{repo}"
