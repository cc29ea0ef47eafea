"""``hypvision browse CONFIG``: pictures of what a model is fed, augmented, with labels, masks and boxes."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hypvision.cli.arguments import Parser, add_cfg_options, whole

PARTS = ("train", "val", "test")  # copied from hypvision.engine.config, because importing it imports mmengine


def add_browse_arguments(parser: Parser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="config file, or the name of one that ships")
    text = f"of the data: {', '.join(PARTS)} (default: all that the config has)"
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=text)
    text = "samples of each part (default: 12)"
    parser.add_argument("--samples", type=whole(1, 400), default=12, metavar="N", help=text)
    text = "of the choice of samples and of the augmentation (default: 0)"
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help=text)
    text = "folder of the pictures, one a part (default: work_dirs/CONFIG/browse)"
    parser.add_output("--out", what="folder", metavar="DIR", help=text)
    add_cfg_options(parser, "changes of the config, e.g. data_root=DIR, which moves all data sets")


def run_browse(args: Namespace) -> None:
    """``browse`` from parsed arguments; prints what is shown, and the names of the pictures."""
    from hypvision.engine.browsing import browse
    from hypvision.engine.checks import readable_errors
    from hypvision.engine.config import parse_options
    from hypvision.files import below, check_output_folder
    from hypvision.images import require_all
    from hypvision.viz.sheet import save_image

    out = args.out or str(Path("work_dirs", Path(args.config).stem, "browse"))
    check_output_folder(out)
    failed: list[str] = []
    with readable_errors():
        parts = browse(args.config, parse_options(args.cfg_options), args.part, args.samples, args.seed, out, failed)
    for part in parts:
        heading, *about = part.about
        print(heading)
        for line in about:
            print(f"  {line}")
        print(f"  {save_image(part.sheet, below(out, f'{part.phase}.png'))}")
    require_all(failed, sum(part.shown for part in parts))
