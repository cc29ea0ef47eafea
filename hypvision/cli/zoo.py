"""``hypvision zoo``: trained weights. ``docs/model-zoo.md`` explains ``publish``, which runs in a
checkout of the repository."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path

from hypvision.io import HypvisionError, ensure, refuse
from hypvision.io.files import write_text

from .arguments import Parser, add_cfg_options, number

# Copied from hypvision.checkpoints.records, because importing it imports PyTorch.
TASKS = ("classification", "segmentation", "detection", "retrieval", "zero-shot")
_NAME_HELP = (
    "name that `hypvision zoo list` lists, or a release, ADDRESS#NAME (https://, file://, "
    "hf-hub:USER/REPO)"
)


def add_zoo_list_arguments(parser: Parser) -> None:
    of_list = ["--write-readme"]
    parser.add(
        "pattern PATTERN",
        "part of the name, or a pattern such as '*.cifar10'",
        nargs="?",
        without=of_list,
    )
    parser.add("--task", "only weights for this task", choices=TASKS, without=of_list)
    parser.add("--json", "print the whole records, as JSON", without=of_list)
    parser.add("--write-readme FILE", "render the table of the zoo into this file", output="file")


def run_zoo_list(args: Namespace) -> None:
    """Run ``zoo list``: print a table of the zoo's weights, or write it into a README."""
    from hypvision.checkpoints.index import builtin_index
    from hypvision.zoo.cache import whereabouts
    from hypvision.zoo.cards import listing, readme

    index = builtin_index()
    if args.write_readme:
        write_text(args.write_readme, readme(index))
        print(f"Wrote {args.write_readme}.")
        return
    records = index.select(args.pattern, args.task)
    if args.json:
        rows = [{**record.to_dict(), "where": whereabouts(index, record)} for record in records]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    if not records:
        there = ", ".join(index.records) or "none (this installation has no index)"
        raise HypvisionError(
            f"No weights of the zoo match the name and the task. Available: {there}."
        )
    width = shutil.get_terminal_size().columns
    print(listing(records, [whereabouts(index, record) for record in records], width))


def add_zoo_get_arguments(parser: Parser) -> None:
    parser.add("names NAME...", _NAME_HELP)
    parser.add("--out DIR", "copy the files into this folder, e.g. for a mirror", output="folder")


def run_zoo_get(args: Namespace) -> None:
    """Run ``zoo get``: fetch weights that are not on this machine, and print their paths."""
    from hypvision.checkpoints.download import copy_verified
    from hypvision.checkpoints.sources import find, resolve

    for name in args.names:
        index, record = find(name)
        path = resolve(record, index)
        if args.out:
            target = Path(args.out, record.filename)
            copy_verified(path, target, record.file.sha256, record.file.bytes)
            path = target
        print(path)


def add_zoo_verify_arguments(parser: Parser) -> None:
    parser.add("names NAME", f"{_NAME_HELP}; default: all weights on this machine", nargs="*")


def run_zoo_verify(args: Namespace) -> None:
    """Run ``zoo verify``: check shipped and downloaded files; raise an error if one is wrong, or if
    a named one is not there."""
    from hypvision.checkpoints.sources import find
    from hypvision.zoo.cache import check_files, records_here

    named = [(name, *find(name)) for name in args.names] or records_here()
    missing = []
    problems: list[tuple[str, str | None]] = []
    for name, index, record in named:
        results = check_files(index, record)
        missing += [] if results else [name]
        for path, problem in results.items():
            problems.append((str(path), problem))
            print(
                f"{'WRONG' if problem else 'ok':7}  {record.name}  {path}", *filter(None, [problem])
            )
    for name in missing:
        print(f"missing  {name}  not on this machine")
    wrong = [path for path, problem in problems if problem]
    refuse(
        (
            wrong,
            f"{len(wrong)} of {len(problems)} files are not what the index says: "
            f"{', '.join(wrong)}. Remove them; `hypvision zoo get NAME` fetches them again (in a "
            "checkout: git checkout model_zoo).",
        ),
        (
            missing and args.names,
            f"Not on this machine: {', '.join(missing)}. Run: hypvision zoo get "
            f"{' '.join(missing)}",
        ),
    )


def add_zoo_clean_arguments(parser: Parser) -> None:
    parser.add(
        "names NAME", "remove the files of these names", nargs="*", default=[], without=["--list"]
    )
    what = parser.add_mutually_exclusive_group()
    parser.add(
        "--all",
        "remove everything; default: unfinished downloads and files that are not in the zoo",
        group=what,
    )
    parser.add("--list", "remove nothing, but list the downloaded files", group=what)


def run_zoo_clean(args: Namespace) -> None:
    """Run ``zoo clean``: remove downloaded files, or list them."""
    from hypvision.checkpoints.index import builtin_index
    from hypvision.checkpoints.sources import cache_folder
    from hypvision.zoo.cache import clean, list_cache
    from hypvision.zoo.cards import size_text, table

    index = builtin_index()
    if args.list:
        print(cache_folder())
        rows = [
            dict(
                name=file.record or "(no record)", size=size_text(file.bytes),
                state="unfinished" if file.partial else "complete", file=file.path.name,
            )
            for file in list_cache(index)
        ]  # fmt: skip
        print(table(rows) if rows else "empty")
        return
    removed = clean(index, args.names, args.all)
    print(
        f"Removed {len(removed)} file{'s' * (len(removed) != 1)}, "
        f"{size_text(sum(file.bytes for file in removed))}."
    )


def add_zoo_card_arguments(parser: Parser) -> None:
    parser.add("name NAME", _NAME_HELP)
    parser.add("--save FILE", "write the card into this file instead of printing it", output="file")


def run_zoo_card(args: Namespace) -> None:
    """Run ``zoo card``: print the model card of weights, or write it into a file."""
    from hypvision.checkpoints.sources import find
    from hypvision.zoo.cards import model_card

    _, record = find(args.name)
    text = model_card(record)
    if args.save:
        write_text(args.save, text)
        print(f"Wrote {args.save}.")
    else:
        print(text, end="")


def add_zoo_push_arguments(parser: Parser) -> None:
    parser.add("names NAME...", "names that `hypvision zoo list` lists")
    place = parser.add_mutually_exclusive_group(required=True)
    parser.add(
        "--out DIR", "make a new release folder for a web server", output="folder", group=place
    )
    parser.add(
        "--hub USER/REPO",
        "upload to a repository on the Hugging Face hub (only one NAME)",
        group=place,
    )
    parser.add("--private", "make a new hub repository private", needs=["--hub"])


def run_zoo_push(args: Namespace) -> None:
    """Run ``zoo push``: write a release folder, or upload to a hub repository."""
    from hypvision.checkpoints.index import builtin_index
    from hypvision.zoo.release import push_to_folder, push_to_hub

    index = builtin_index()
    records = [index.get(name.removeprefix("zoo:")) for name in dict.fromkeys(args.names)]
    if args.out:
        folder = push_to_folder(index, records, args.out)
        print(f"Wrote {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}.")
        print(
            f'Use: hypvision.load("{folder.as_uri()}#{records[0].name}"), or serve the folder over '
            "https."
        )
        if (folder / "config.json").is_file():
            print(
                f'In timm, after import hypvision: timm.create_model("local-dir:{folder}", '
                "pretrained=True)."
            )
        return
    ensure(
        len(records) == 1,
        f"A hub repository holds one model, but {len(records)} names are given. Give one name.",
    )
    address = push_to_hub(index, records[0], args.hub, args.private)
    print(f'Pushed {records[0].name}. Use: hypvision.load("{address}")')


# Copied from hypvision.checkpoints.storage, because importing it imports PyTorch.
STORAGES = ("float32", "float16", "bfloat16", "int8")


def add_zoo_publish_arguments(parser: Parser) -> None:
    parser.add("config CONFIG", "config of the training")
    parser.add("checkpoint CHECKPOINT", "checkpoint of the training; it is only read")
    parser.add("--name MODEL.TAG", "name in the zoo", required=True)
    parser.add("--about FILE", "YAML file with the record's texts (default: the old record's)")
    parser.add("--storage", "how weights are stored", default="int8", choices=STORAGES)
    parser.add(
        "--tolerance",
        "how far a metric may be from the checkpoint's, in its own unit; of coco/... in per cent",
        number,
        0.2,
    )
    parser.add("--metrics NAME...", "metrics to record, the main one first")
    parser.add("--out DIR", "folder of the zoo", default="model_zoo", output="folder")
    add_cfg_options(parser, "changes of the config for this machine")


def run_zoo_publish(args: Namespace) -> None:
    from hypvision.tasks.publishing import publish, read_about

    about = read_about(args.about) if args.about else {}
    options = (args.storage, args.tolerance, args.metrics, args.cfg_options)
    record = publish(args.config, args.checkpoint, args.name, about, args.out, *options)
    print(f"Published {record.name}: {args.out}/{record.file.path}, {record.file.bytes} bytes.")


def add_zoo_familiar_arguments(parser: Parser) -> None:
    parser.add("name NAME", "a classifier whose file is in the folder of the zoo")
    parser.add("--out DIR", "folder of the zoo", default="model_zoo", output="folder")
    parser.add(
        "--foreign DATA=FOLDER...",
        "also measure how many of up to 200 images in these folders, which are of other kinds, are "
        "noticed; the record and its card name them by DATA",
        nargs="*",
        default=[],
    )
    add_cfg_options(parser, "changes of the config for this machine, e.g. data_root=DIR")


def run_zoo_familiar(args: Namespace) -> None:
    """Run ``zoo familiar``: record what the familiar images of a published classifier are like,
    measured on the data of its config, and how many images of other kinds are noticed."""
    from hypvision.tasks.publishing import add_familiar

    for given in args.foreign:
        name, _, place = given.partition("=")
        ensure(
            bool(name and place),
            f"--foreign takes DATA=FOLDER, such as CIFAR-10=data/cifar10/test, got '{given}'.",
        )
    foreign = dict(given.split("=", 1) for given in args.foreign)
    record = add_familiar(args.name, args.out, args.cfg_options, foreign)
    assert record.familiar is not None
    print(
        f"{args.out}/{record.file.path}: the limit is {record.familiar.limit:.3f}, the rate of "
        f"false alarms {100 * record.familiar.false_alarms:.1f} %"
    )
    for each in record.familiar.foreign:
        print(f"{each.data}: {100 * each.noticed:.1f} % of {each.images} images are noticed")


# Copied from hypvision.zoo.convert, because importing it imports PyTorch.
FAMILIES = (
    "catseg", "clip-adapter", "cocoop", "coop", "hcformer", "helm", "hf-clip", "himapper",
    "hyperboliccv", "hyperclip", "maple", "meru", "promptkd", "promptsrc", "tip-adapter",
)  # fmt: skip


def add_zoo_convert_arguments(parser: Parser) -> None:
    parser.add(
        "--from FAMILY",
        f"official code of the weights: {', '.join(FAMILIES)}",
        dest="family",
        required=True,
        choices=FAMILIES,
    )
    parser.add(
        "source IN",
        ".pth or .safetensors file, a folder of transformers, or an address with its checksum",
    )
    parser.add("target OUT", ".safetensors or .pth file to write", output="file")
    parser.add("--to-official", "convert from hypvision's names to the official ones")
    parser.add(
        "--curvature",
        "curvature of a model that gets official names, if it is not 1",
        float,
        needs=["--to-official"],
    )
    parser.add(
        "--backbone NAME", "timm's name of a Hi-Mapper's backbone, if the shapes fit several"
    )


def run_zoo_convert(args: Namespace) -> None:
    from hypvision.zoo.convert import convert_file

    written = convert_file(
        args.family, args.source, args.target, args.to_official, args.curvature, args.backbone
    )
    print(f"{written.model}: wrote {written.path}")
    if not args.to_official:
        print(f"Use: {written.usage()}")
    note = written.note(args.to_official)
    if note:
        print(f"Note: {note}")
