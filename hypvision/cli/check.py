"""``hypvision check CONFIG``: look at the data of a config before a training."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hypvision.cli.arguments import Parser, add_cfg_options, whole


def add_check_arguments(parser: Parser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="config file, or the name of one that ships")
    parser.add_argument("--all", action="store_true", help="read every sample too, and list all faults")
    text = "processes that read the samples (default: 2)"
    parser.add_argument("--workers", type=whole(0, 256), default=2, metavar="N", help=text)
    text = "folder of pictures of five samples a part (default: work_dirs/CONFIG/check)"
    parser.add_output("--out", what="folder", metavar="DIR", help=text)
    add_cfg_options(parser, "changes of the config, e.g. data_root=DIR, which moves all data sets")


def run_check(args: Namespace) -> None:
    """``check`` from parsed arguments; prints what is used and left out, and the faults.

    Raises:
        SystemExit: with the status 1, if there are faults.
    """
    from hypvision.engine.checking import check
    from hypvision.engine.checks import readable_errors
    from hypvision.engine.config import parse_options
    from hypvision.files import check_output_folder

    out = args.out or str(Path("work_dirs", Path(args.config).stem, "check"))
    check_output_folder(out)
    with readable_errors():
        report = check(args.config, parse_options(args.cfg_options), args.all, args.workers, out)
    rows = [("part", "what", "number", "use", "which"), *report.rows]
    widths = [max(len(str(row[column])) for row in rows) for column in range(3)]
    for part, kind, number, use, examples in rows:
        which = f": {examples}" if examples and part != "part" else ""
        print(f"{part:{widths[0]}}  {kind:{widths[1]}}  {number!s:>{widths[2]}}  {use}{which}")
    for note in report.notes:
        print(f"note: {note}")
    for fault in report.faults:
        print(f"fault: {fault}")
    if report.pictures:
        print(f"{len(report.pictures)} pictures of samples are in '{out}': look at them.")
    read = f"All {report.samples} samples were read" if args.all else "Files were counted, not read (--all reads them)"
    print(f"{read}; {len(report.faults) or 'no'} fault{'' if len(report.faults) == 1 else 's'}.")
    if report.faults:
        raise SystemExit(1)
