"""``hypvision fewshot``: the few-shot benchmark of CLIP, its tables, and figures of what a
LatHAdapter has learned."""

from __future__ import annotations

import json
import os.path
import warnings
from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING, Any

from hypvision.io import HypvisionError, Metrics

from .arguments import Parser, add_clip_argument, add_submit_arguments, whole
from .submit import Cell, run_cells, submit_options

if TYPE_CHECKING:
    from hypvision.tasks.few_shot_benchmark import CellSpec, Settings


def _add_benchmark(parser: Parser, protocol: str) -> None:
    """Add the arguments of a benchmark: 16 shots of half of the classes, tested on both halves
    (``base2new``); all classes with several numbers of shots (``shots``); training on one data set
    and tests on others (``cross``), or on variants of ImageNet (``dg``)."""
    parser.set_defaults(protocol=protocol)
    parser.add(
        "--method NAME...",
        "methods: maple, promptsrc, coop, ..., each also with +lath",
        default=["promptsrc+lath"],
    )
    parser.add(
        "--datasets NAME...",
        "data sets of the benchmark, or folders below --root (default: those of the protocol)",
    )
    parser.add("--root DIR", "folder of all data sets", default="data")
    parser.add("--seeds N...", "seeds that choose the shots (default: 1 2 3)", whole(0), [1, 2, 3])
    parser.add(
        "--shots K...", "numbers of images of a class (default: those of the protocol)", whole(1)
    )
    if protocol in ("cross", "dg"):
        parser.add("--source NAME", "data set of the training", default="imagenet")
    add_clip_argument(parser, "the CLIP", "ViT-B-16:openai")
    parser.add("--size PX", "side of the images (default: that of the CLIP)", whole(8))
    parser.add("--steps N", "steps of each training instead of the published recipe's", whole(1))
    parser.add("--epochs N", "epochs instead of the published recipe's", whole(1))
    parser.add("--batch N", "images in a step instead of the published recipe's number", whole(1))
    parser.add("--adapter KEY=VALUE...", "options of LatHAdapter, such as beta=0.1 attributes=8")
    parser.add(
        "--host KEY=VALUE...",
        "options of the methods, such as depth=6 text_chunk=100; each goes to the methods that "
        "have it",
    )
    parser.add(
        "--teacher FILE",
        "checkpoint of PromptKD's teacher; {dataset}, {shots} and {seed} are filled in",
    )
    told = ["--teacher"]
    parser.add(
        "--teacher-clip NAME[:WEIGHTS]", "CLIP of the teacher, if it is another one", needs=told
    )
    parser.add("--teacher-method NAME", "method of the teacher (default: promptsrc)", needs=told)
    parser.add("--teacher-host KEY=VALUE...", "options of the teacher's method", needs=told)
    parser.add(
        "--views N",
        "train methods behind the frozen image tower on N stored views of each image, 0 for the "
        "centre crop (default: new views in each epoch)",
        whole(0),
    )
    parser.add("--cache DIR", "keep features of the frozen towers in this folder")
    parser.add(
        "--pickles DIR",
        "folder of the official code's pickled shots, which are read without running code: a name "
        "below each data set's folder (split_fewshot), or a path with {dataset}",
    )
    parser.add("--amp", "mixed precision", choices=["bf16", "fp16"])
    parser.add("--workers N", "processes that load images", whole(0), 0)
    parser.add("--skip-broken", "leave out images that cannot be read")
    parser.add("--best-val", "choose PromptKD's checkpoint on test images, as its code does")
    parser.add("--out DIR", "folder of the results", default="work_dirs/fewshot", output="folder")
    add_submit_arguments(parser)


add_fewshot_base2new_arguments = partial(_add_benchmark, protocol="base2new")
add_fewshot_shots_arguments = partial(_add_benchmark, protocol="shots")
add_fewshot_cross_arguments = partial(_add_benchmark, protocol="cross")
add_fewshot_dg_arguments = partial(_add_benchmark, protocol="dg")


def add_fewshot_table_arguments(parser: Parser) -> None:
    parser.add("results RESULTS", "folder of results, the --out of a benchmark")
    parser.add("--out DIR", "folder of the tables (default: RESULTS)", output="folder")


def run_fewshot_table(args: Namespace) -> None:
    """Run ``fewshot table``: write and print the tables."""
    from hypvision.tasks.few_shot_tables import write_tables

    print(write_tables(args.results, args.out))


def add_fewshot_explain_arguments(parser: Parser) -> None:
    parser.add("results RESULTS", "folder of a finished cell, RESULTS/base2new/METHOD/...")
    parser.add("--root DIR", "folder of all data sets", default="data")
    parser.add("--out DIR", "folder of the images (default: RESULTS)", output="folder")


def run_fewshot_explain(args: Namespace) -> None:
    """Run ``fewshot explain``: print the names of the files written."""
    from hypvision.tasks.few_shot_figures import explain_cell

    for path in explain_cell(args.results, args.root, args.out):
        print(f"Drawn in {path}")


def run_fewshot_base2new(args: Namespace) -> None:
    """Run ``fewshot base2new``, ``shots``, ``cross`` or ``dg``: print a line of JSON for each cell,
    then the tables."""
    from hypvision.engine.checks import readable_errors
    from hypvision.tasks.few_shot_benchmark import check_settings, is_finished, plan
    from hypvision.tasks.few_shot_recipes import check_options
    from hypvision.tasks.few_shot_tables import write_tables

    settings = settings_of(args)
    source = dict(source=args.source) if "source" in args else {}
    specs = plan(args.protocol, args.method, args.datasets, args.seeds, args.shots, **source)
    check_options(args.method, settings.host, settings.adapter)
    _check_pickles(args.pickles or "", sorted({spec.dataset for spec in specs}))
    by_key = {spec.key: spec for spec in specs}
    with readable_errors():
        _check_methods([spec for spec in specs if not is_finished(args.out, spec)], settings)
        check_settings(args.out, settings)
        outcome = run_cells(
            [Cell(spec.key, run_one, (spec, settings, args.out)) for spec in specs],
            lambda key: is_finished(args.out, by_key[key]),
            folder=f"{args.out}/jobs",
            **submit_options(args),
        )
        if outcome.results or outcome.skipped:
            print(write_tables(args.out))
        outcome.check()


run_fewshot_shots = run_fewshot_cross = run_fewshot_dg = run_fewshot_base2new


def _check_pickles(shots: str, names: list[str]) -> None:
    """Raise an error if several data sets would share one folder of shots."""
    if os.path.isabs(shots) and "{dataset}" not in shots and len(names) > 1:
        raise HypvisionError(
            f"--pickles: '{shots}' is one folder, but there are {len(names)} data sets "
            f"({', '.join(names)}), each with its own shots. Give split_fewshot, a name that is "
            "looked for in the folder of each data set, or a path with {dataset}."
        )


def _check_methods(specs: list[CellSpec], settings: Settings) -> None:
    """Build the methods of the cells that are not finished, and print each warning about them
    once."""
    from hypvision.tasks.few_shot_benchmark import check_methods

    if not specs:
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_methods(specs, settings)
    texts = [str(each.message) for each in told if each.category is UserWarning]
    for text in dict.fromkeys(texts):
        print(text)


def settings_of(args: Namespace) -> Settings:
    """Return the benchmark's settings from parsed arguments."""
    from hypvision.clip.models import image_size
    from hypvision.clip.names import clip_options
    from hypvision.engine.config import parse_options
    from hypvision.tasks.few_shot_benchmark import Settings

    clip = clip_options(args.clip)
    teacher = None
    if args.teacher is not None:
        own = clip if args.teacher_clip is None else clip_options(args.teacher_clip)
        host = dict(name=args.teacher_method or "promptsrc", **parse_options(args.teacher_host))
        teacher = dict(clip=own, host=host, checkpoint=args.teacher)
    size: Any = image_size(clip["name"]) if args.size is None else args.size
    names = ("steps", "epochs", "batch", "views", "amp", "best_val", "skip_broken", "root", "cache")
    return Settings(
        clip,
        size,
        **{name: getattr(args, name) for name in (*names, "pickles", "workers")},
        adapter=parse_options(args.adapter) or None,
        host=parse_options(args.host) or None,
        teacher=teacher,
    )


def run_one(spec, settings, out) -> Metrics:
    """Train and test one cell of the grid, print its result in a line and return it; this function
    may run in a separate process."""
    import hypvision.tasks  # noqa: F401 - registers what configs name
    from hypvision.engine.checks import readable_errors
    from hypvision.tasks.few_shot_benchmark import run_cell

    with readable_errors(), warnings.catch_warnings():
        # This warning was printed before the first cell.
        warnings.filterwarnings("ignore", "The prompts have ")
        found = run_cell(spec, settings, out)
    print(
        json.dumps({"cell": spec.key, **{name: round(value, 2) for name, value in found.items()}}),
        flush=True,
    )
    return found
