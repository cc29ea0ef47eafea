"""The commands of the zoo: ``models``, ``download``, ``verify``, ``cache``, ``card``, ``push`` and ``export``."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from hypvision.checkpoints.download import SourceError, copy_verified, verify_file
from hypvision.checkpoints.index import builtin_index, write_text
from hypvision.checkpoints.records import TASKS, Index, Record
from hypvision.checkpoints.sources import cache_folder, find, locate, resolve
from hypvision.errors import HypvisionError
from hypvision.zoo.cache import clean, list_cache, visited
from hypvision.zoo.cards import count_text, input_text, metric_text, model_card, readme, size_text, table

__all__ = [
    "add_cache_arguments",
    "add_card_arguments",
    "add_download_arguments",
    "add_export_arguments",
    "add_models_arguments",
    "add_push_arguments",
    "add_verify_arguments",
    "run_cache",
    "run_card",
    "run_download",
    "run_export",
    "run_models",
    "run_push",
    "run_verify",
]

_NAME_HELP = "name as `hypvision models` lists it, or a release, ADDRESS#NAME (https://, file://, hf-hub:USER/REPO)"


# models


def add_models_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``models``."""
    parser.add_argument(
        "pattern", nargs="?", metavar="PATTERN", help="part of the name, or a pattern such as '*.cifar10'"
    )
    parser.add_argument("--task", choices=TASKS, help="of this task only")
    parser.add_argument("--json", action="store_true", help="whole records, as JSON")
    parser.add_argument("--write-readme", metavar="FILE", help="render the table of the zoo into this file")


def _where(index: Index, record: Record) -> str:
    place = locate(index, record)
    return "to download" if place is None else place[0]


def run_models(args: Namespace) -> None:
    """``models``: what there is."""
    index = builtin_index()
    if args.write_readme:
        write_text(args.write_readme, readme(index))
        print(f"Wrote {args.write_readme}.")
        return
    records = index.select(args.pattern, args.task)
    if args.json:
        rows = [{**record.to_dict(), "where": _where(index, record)} for record in records]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    if not records:
        there = ", ".join(index.records) or "none (this installation has no index)"
        raise HypvisionError(f"No weights match. There are: {there}.")
    print(
        table(
            [
                {
                    "name": record.name,
                    "task": record.task,
                    "parameters": count_text(record.parameters),
                    "input": input_text(record),
                    "result": metric_text(record.metrics[0]),
                    "measured on": record.metrics[0].data,
                    "size": size_text(record.file.bytes),
                    "where": _where(index, record),
                }
                for record in records
            ]
        )
    )


# download


def add_download_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``download``."""
    parser.add_argument("names", nargs="+", metavar="NAME", help=_NAME_HELP)
    parser.add_argument("--to", metavar="DIR", help="copy the files there; such a folder can be a mirror")


def run_download(args: Namespace) -> None:
    """``download``: makes sure that weights are on this machine, and prints where."""
    for name in args.names:
        index, record = find(name)
        path = resolve(record, index)
        if args.to:
            target = Path(args.to).expanduser() / record.filename
            try:
                copy_verified(path, target, record.file.sha256, record.file.bytes)
            except SourceError as error:
                raise HypvisionError(f"'{target}' cannot be written: {error}.") from error
            path = target
        print(path)


# verify


def add_verify_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``verify``."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{_NAME_HELP}; default: everything that is on this machine"
    )


def run_verify(args: Namespace) -> None:
    """``verify``: checks packaged and cached files; fails if one is wrong, or a named one is not there."""
    wrong, missing, checked = [], [], 0
    for name, index, record in [(name, *find(name)) for name in args.names] or _all_records():
        paths = [path for path in (locate(index, record), _cached(record)) if path is not None]
        if not paths:
            missing.append(name)
        for _, path in dict.fromkeys(paths):
            checked += 1
            try:
                verify_file(path, record.file.sha256, record.file.bytes)
                print(f"ok       {record.name}  {path}")
            except SourceError as error:
                wrong.append(str(path))
                print(f"WRONG    {record.name}  {path}: {error}")
    for name in missing:
        print(f"missing  {name}  not on this machine")
    if wrong:
        raise HypvisionError(
            f"{len(wrong)} of {checked} files are not what the index says: {', '.join(wrong)}. Remove them; "
            "`hypvision download NAME` fetches them again (in a checkout: git checkout model_zoo)."
        )
    if missing and args.names:
        raise HypvisionError(f"Not on this machine: {', '.join(missing)}. Run: hypvision download {' '.join(missing)}")


def _all_records() -> list[tuple[str, Index, Record]]:
    """Those of the built-in index, and of visited releases those whose files are in the cache."""
    builtin = builtin_index()
    own = [(record.name, builtin, record) for record in builtin]
    known = {record.filename for record in builtin}
    others = {r.filename: (r.name, Index({}), r) for index in visited() for r in index if r.filename not in known}
    return own + [entry for entry in others.values() if _cached(entry[2]) is not None]


def _cached(record: Record) -> tuple[str, Path] | None:
    path = cache_folder() / record.filename
    return ("cached", path) if os.path.isfile(path) else None


# cache


def add_cache_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``cache``."""
    parser.add_argument("action", nargs="?", choices=["list", "clean"], default="list", help="default: list")
    parser.add_argument("names", nargs="*", metavar="NAME", help="clean the files of these records")
    parser.add_argument(
        "--all", action="store_true", help="clean everything; default: unfinished downloads and files of no record"
    )


def run_cache(args: Namespace) -> None:
    """``cache``: what lies there; ``cache clean`` removes."""
    index = builtin_index()
    if args.action == "list":
        if args.names or args.all:
            raise HypvisionError("Names and --all belong to: hypvision cache clean")
        files = list_cache(index)
        print(cache_folder())
        rows = [
            {
                "name": file.record or "(no record)",
                "size": size_text(file.bytes),
                "state": "unfinished" if file.partial else "complete",
                "file": file.path.name,
            }
            for file in files
        ]
        print(table(rows) if rows else "empty")
        return
    removed = clean(index, args.names, args.all)
    print(f"Removed {len(removed)} file{'s' * (len(removed) != 1)}, {size_text(sum(file.bytes for file in removed))}.")


# card


def add_card_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``card``."""
    parser.add_argument("name", metavar="NAME", help=_NAME_HELP)
    parser.add_argument("--out", metavar="FILE", help="write it there instead of printing it")


def run_card(args: Namespace) -> None:
    """``card``: the model card."""
    _, record = find(args.name)
    text = model_card(record)
    if args.out:
        write_text(args.out, text)
        print(f"Wrote {args.out}.")
    else:
        print(text, end="")


# push


def add_push_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``push``."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="names as `hypvision models` lists them")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--to", metavar="DIR", help="make a release folder for a web server")
    place.add_argument("--hub", metavar="USER/REPO", help="upload to a repository on the Hugging Face hub (one name)")
    parser.add_argument("--private", action="store_true", help="make a new hub repository private")


def run_push(args: Namespace) -> None:
    """``push``: a release folder, or a hub repository."""
    from hypvision.zoo.release import push_to_folder, push_to_hub

    index = builtin_index()
    records = [index.get(name.removeprefix("zoo:")) for name in dict.fromkeys(args.names)]
    if args.to:
        if args.private:
            raise HypvisionError("--private belongs to --hub.")
        folder = push_to_folder(index, records, args.to)
        print(f"Wrote {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}.")
        print(f'Use: hypvision.load("{folder.as_uri()}#{records[0].name}"), or serve the folder over https.')
        return
    if len(records) != 1:
        raise HypvisionError(f"A hub repository holds one model, but {len(records)} names are given.")
    address = push_to_hub(index, records[0], args.hub, args.private)
    print(f'Pushed {records[0].name}. Use: hypvision.load("{address}")')


# export


def add_export_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``export``."""
    from hypvision.zoo.export import FORMATS, PARTS

    parser.add_argument(
        "name", metavar="NAME", help=f"{_NAME_HELP}; or, with --model, the checkpoint file of a classifier"
    )
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument(
        "--model", metavar="MODEL", help="timm's name of the model in the file, e.g. himapper_deit_tiny_patch16_224"
    )
    parser.add_argument(
        "--model-args",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="arguments of that model, as in model.backbone of its config, e.g. patch_size=2 img_size=32",
    )
    parser.add_argument("--size", type=int, metavar="N", help="side of its pictures (default: img_size or the model's)")
    parser.add_argument("--out", metavar="FILE", help="default: NAME and the suffix of the format, here")
    parser.add_argument(
        "--part",
        choices=PARTS,
        default="whole",
        help="features: what comes before the head (a classifier's pooled features, the maps of a segmenter's or "
        "detector's backbone and neck, a CLIP's image embeddings); default: whole",
    )
    parser.add_argument(
        "--fixed-size", action="store_true", help="take pictures of the training's size only (the batch stays free)"
    )


def run_export(args: Namespace) -> None:
    """``export``: writes the model for other runtimes, after comparing what it computes with PyTorch."""
    from hypvision.zoo.export import SUFFIXES, export_model
    from hypvision.zoo.loading import parse_arguments

    name = find(args.name)[1].name if args.model is None else Path(args.name).stem
    middle = "" if args.part == "whole" else f".{args.part}"
    out = Path(args.out or f"{name}{middle}{SUFFIXES[args.format]}").expanduser()
    kind = {"onnx": "ONNX", "torchexport": "torch.export", "torchscript": "TorchScript"}[args.format]
    print(f"Exporting {name} to {kind}, which can take a minute or two ...", flush=True)
    report = export_model(
        args.name,
        args.format,
        out,
        dynamic_size=not args.fixed_size,
        part=args.part,
        model=args.model,
        arguments=parse_arguments(args.model_args),
        size=args.size,
    )
    print(f"Wrote {out} ({size_text(out.stat().st_size)}).")
    print(report)
