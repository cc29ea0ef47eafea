"""``hypvision check`` and ``browse``: a config's data, as it is and as a model gets it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from hypvision.io.files import below, check_output_folder, in_columns

from .arguments import Parser, add_cfg_options, whole

if TYPE_CHECKING:
    from hypvision.engine.checking import Report


def add_check_arguments(parser: Parser) -> None:
    parser.add(
        "config CONFIG|FOLDER", "config file, name of a shipped config, or a folder as for train"
    )
    parser.add("--all", "also read every sample, and list all faults")
    parser.add("--workers N", "processes that read the samples", whole(0, 256), 2)
    parser.add(
        "--out DIR",
        "folder for pictures of five samples of each part (default: work_dirs/CONFIG/check)",
        output="folder",
    )
    add_cfg_options(parser, "changes of the config, e.g. data_root=DIR, which moves all data sets")


def run_check(args: Namespace) -> None:
    """Run ``check``: print which data is used and left out, and the faults; exit with 1 if there
    are faults."""
    from hypvision.engine.checking import check
    from hypvision.engine.checks import readable_errors
    from hypvision.engine.config import parse_options
    from hypvision.tasks.own_folder import config_of

    out = args.out or str(Path("work_dirs", Path(args.config).stem, "check"))
    check_output_folder(out)
    with readable_errors():
        source = config_of(args.config)
        report = check(source, parse_options(args.cfg_options), args.all, args.workers, out)
    rows = [
        (part, kind, str(number), f"{use}: {which}" if which else use)
        for part, kind, number, use, which in report.rows
    ]
    print(in_columns([("part", "what", "number", "use"), *rows], "<<><"))
    print(*_told(report, args.all, out), sep="\n")
    if report.faults:
        raise SystemExit(1)


def _told(report: Report, everything: bool, out: str) -> list[str]:
    """Return lines with the notes and faults, and with what was read and drawn."""
    told = [f"note: {note}" for note in report.notes]
    told += [f"fault: {fault}" for fault in report.faults]
    if report.pictures:
        told.append(f"{len(report.pictures)} pictures of samples are in '{out}': look at them.")
    read = "Files were counted, not read (--all reads them)"
    if everything:
        read = f"All {report.samples} samples were read"
    faults = len(report.faults)
    return [*told, f"{read}; {faults or 'no'} fault{'s' * (faults != 1)}."]


# Copied from hypvision.engine.config, because importing it imports mmengine.
PARTS = ("train", "val", "test")


def add_browse_arguments(parser: Parser) -> None:
    parser.add(
        "config CONFIG|FOLDER", "config file, name of a shipped config, or a folder as for train"
    )
    parser.add(
        "--part PART...",
        f"parts of the data: {', '.join(PARTS)} (default: all that the config has)",
        default=list(PARTS),
        choices=PARTS,
    )
    parser.add("--samples N", "number of samples of each part", whole(1, 400), 12)
    parser.add("--seed N", "seed of the choice of samples and of the augmentation", whole(0), 0)
    parser.add(
        "--out DIR",
        "folder of the pictures, one for each part (default: work_dirs/CONFIG/browse)",
        output="folder",
    )
    add_cfg_options(parser, "changes of the config, e.g. data_root=DIR, which moves all data sets")


def run_browse(args: Namespace) -> None:
    """Run ``browse``: print what is shown, and the names of the pictures."""
    from hypvision.engine.browsing import browse
    from hypvision.engine.checks import readable_errors
    from hypvision.engine.config import parse_options
    from hypvision.io.images import require_all
    from hypvision.tasks.own_folder import config_of
    from hypvision.viz.sheet import save_image

    out = args.out or str(Path("work_dirs", Path(args.config).stem, "browse"))
    check_output_folder(out)
    failed: list[str] = []
    with readable_errors():
        parts = browse(
            config_of(args.config),
            parse_options(args.cfg_options),
            args.part,
            args.samples,
            args.seed,
            out,
            failed,
        )
    for part in parts:
        heading, *about = part.about
        print(heading)
        for line in about:
            print(f"  {line}")
        print(f"  {save_image(part.sheet, below(out, f'{part.phase}.png'))}")
    require_all(failed, sum(part.shown for part in parts))
