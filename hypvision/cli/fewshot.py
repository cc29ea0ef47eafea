"""``hypvision fewshot``: the few-shot benchmark of CLIP, its tables, and images of what LatHAdapter
learned."""

from __future__ import annotations

import json
import os.path
import warnings
from argparse import Namespace
from typing import Any

from hypvision.cli.arguments import Parser, add_clip_argument, refuse, refuse_others, whole
from hypvision.cli.submit import Cell, add_submit_arguments, run_cells, submit_options
from hypvision.io.errors import HypvisionError

_PROTOCOLS = ("base2new", "shots", "cross", "dg")


def add_fewshot_arguments(parser: Parser) -> None:
    text = (
        "base2new: 16 shots of half of the classes, tested on both halves; shots: all classes; "
        "cross: train on ImageNet, test on others; dg: on its variants; table: print and write "
        "tables of RESULTS; explain: draw what the LatHAdapter of a finished cell, RESULTS, has "
        "learned"
    )
    parser.add("what WHAT", text, choices=[*_PROTOCOLS, "table", "explain"])
    parser.add("results RESULTS", "folder of results, for table and explain", nargs="?")
    parser.add(
        "--method NAME...",
        "maple, promptsrc, coop, ..., each also with +lath",
        default=["promptsrc+lath"],
    )
    parser.add(
        "--datasets NAME...",
        "names of the benchmark, or folders below --root (default: those of the protocol)",
    )
    parser.add("--root DIR", "folder of all data sets", default="data")
    parser.add("--seeds N...", "default: 1 2 3", whole(0), [1, 2, 3])
    parser.add("--shots K...", "default: those of the protocol", whole(1))
    parser.add("--source NAME", "training data of cross and dg", default="imagenet")
    add_clip_argument(parser, "the CLIP", "ViT-B-16:openai")
    parser.add("--size PX", "side of the images (default: that of the CLIP)", whole(8))
    parser.add("--steps N", "steps of each training instead of the published recipe's", whole(1))
    parser.add("--epochs N", "epochs instead of the published recipe's", whole(1))
    parser.add("--batch N", "images of a step instead of the recipe's", whole(1))
    parser.add("--adapter KEY=VALUE...", "options of LatHAdapter, such as beta=0.1 attributes=8")
    text = (
        "options of the methods, such as depth=6 text_chunk=100; each goes to the methods that "
        "have it"
    )
    parser.add("--host KEY=VALUE...", text)
    parser.add(
        "--teacher FILE",
        "checkpoint of PromptKD's teacher; {dataset}, {shots} and {seed} are filled in",
    )
    parser.add("--teacher-clip NAME[:WEIGHTS]", "of the teacher, if another CLIP")
    parser.add("--teacher-method NAME", "of the teacher (default: promptsrc)")
    parser.add("--teacher-host KEY=VALUE...", "options of the teacher")
    text = (
        "train heads on so many kept views of each image, 0 for the centre crop (default: new "
        "views in each epoch)"
    )
    parser.add("--views N", text, whole(0))
    parser.add("--cache DIR", "keep features of the frozen towers in this folder")
    text = (
        "folder of the official code's pickled shots, read unrun: below each data set's own "
        "(split_fewshot), or a path with {dataset}"
    )
    parser.add("--pickles DIR", text)
    parser.add("--amp", "mixed precision", choices=["bf16", "fp16"])
    parser.add("--workers N", "data workers", whole(0), 0)
    parser.add("--skip-broken", "leave out images that cannot be read")
    parser.add("--best-val", "choose PromptKD's checkpoint on test images, as its code does")
    text = "folder of the results (default: work_dirs/fewshot; of table and explain: RESULTS)"
    parser.add("--out DIR", text, output="folder")
    add_submit_arguments(parser)


def run_fewshot(args: Namespace) -> None:
    if args.what in ("table", "explain"):
        if args.results is None:
            raise HypvisionError(
                f"hypvision fewshot {args.what} needs a folder of results: RESULTS."
            )
        read = ("--out", "--root") if args.what == "explain" else ("--out",)
        refuse_others(
            args,
            add_fewshot_arguments,
            lambda option: option.option_strings[0] in read,
            f"fewshot {args.what}",
        )
        if args.what == "table":
            from hypvision.tasks.few_shot_tables import write_tables

            print(write_tables(args.results, args.out))
            return
        from hypvision.tasks.few_shot_figures import explain_cell

        for path in explain_cell(args.results, args.root, args.out):
            print(f"Drawn in {path}")
        return
    if args.results is not None:
        raise HypvisionError(
            f"hypvision fewshot {args.what} writes its results to --out. Leave out "
            f"'{args.results}'."
        )
    _run(args)


def _run(args: Namespace) -> None:
    from hypvision.engine.checks import readable_errors
    from hypvision.tasks.few_shot_benchmark import check_methods, check_settings, is_finished, plan
    from hypvision.tasks.few_shot_recipes import check_options
    from hypvision.tasks.few_shot_tables import write_tables

    out = args.out or "work_dirs/fewshot"
    settings = settings_of(args)
    specs = plan(
        args.what, args.method, args.datasets or None, args.seeds, args.shots or None, args.source
    )
    check_options(args.method, settings.host, settings.adapter)
    by_key = {spec.key: spec for spec in specs}
    shots = args.pickles or ""
    names = sorted({spec.dataset for spec in specs})
    if os.path.isabs(shots) and "{dataset}" not in shots and len(names) > 1:
        raise HypvisionError(
            f"--pickles: '{shots}' is one folder, but there are {len(names)} data sets "
            f"({', '.join(names)}), each with shots of its own. Give split_fewshot, which is "
            "looked for in the folder of each, or a path with {dataset}."
        )
    with readable_errors():
        left = [spec for spec in specs if not is_finished(out, spec)]
        if left:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                check_methods(left, settings)
            for text in dict.fromkeys(
                str(each.message) for each in told if each.category is UserWarning
            ):
                print(text)
        check_settings(out, settings)
        cells = [Cell(spec.key, run_one, (spec, settings, out)) for spec in specs]
        outcome = run_cells(
            cells,
            lambda key: is_finished(out, by_key[key]),
            folder=f"{out}/jobs",
            **submit_options(args),
        )
        if outcome.results or outcome.skipped:
            print(write_tables(out))
        outcome.check()


def settings_of(args: Namespace):
    """The :class:`~hypvision.tasks.few_shot_benchmark.Settings` of parsed arguments."""
    from hypvision.clip.models import image_size
    from hypvision.clip.names import clip_options
    from hypvision.engine.config import parse_options
    from hypvision.tasks.few_shot_benchmark import Settings

    clip = clip_options(args.clip)
    teacher = None
    if args.teacher is None:
        because = "describes the teacher of --teacher FILE. Add that, or leave it out."
        refuse(args, ["teacher_clip", "teacher_method", "teacher_host"], because)
    else:
        own = clip if args.teacher_clip is None else clip_options(args.teacher_clip)
        host = dict(name=args.teacher_method or "promptsrc", **parse_options(args.teacher_host))
        teacher = dict(clip=own, host=host, checkpoint=args.teacher)
    size: Any = image_size(clip["name"]) if args.size is None else args.size
    return Settings(
        clip,
        size,
        **{
            name: getattr(args, name)
            for name in ("steps", "epochs", "batch", "views", "amp", "best_val")
        },
        **{
            name: getattr(args, name)
            for name in ("skip_broken", "root", "cache", "pickles", "workers")
        },
        adapter=parse_options(args.adapter) or None,
        host=parse_options(args.host) or None,
        teacher=teacher,
    )


def run_one(spec, settings, out) -> dict[str, float]:
    """Train and test one cell of the grid and print its result in a line; may be called in a
    separate process."""
    import hypvision.tasks  # noqa: F401 - registers what configs name
    from hypvision.engine.checks import readable_errors
    from hypvision.tasks.few_shot_benchmark import run_cell

    with readable_errors(), warnings.catch_warnings():
        # this warning was given before the first cell
        warnings.filterwarnings("ignore", "The prompts have ")
        found = run_cell(spec, settings, out)
    print(
        json.dumps({"cell": spec.key, **{name: round(value, 2) for name, value in found.items()}}),
        flush=True,
    )
    return found
