"""``hypvision zoo convert --from FAMILY IN OUT``: official checkpoints to hypvision's names, or back."""

from __future__ import annotations

from argparse import Namespace

from hypvision.cli.arguments import Parser

# Copied from hypvision.zoo.convert, because importing it imports PyTorch.
FAMILIES = (
    "catseg", "clip-adapter", "cocoop", "coop", "hcformer", "helm", "hf-clip", "himapper", "hyperboliccv", "hyperclip",
    "maple", "meru", "promptkd", "promptsrc", "tip-adapter",
)  # fmt: skip


def add_zoo_convert_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--from", dest="family", required=True, choices=FAMILIES, metavar="FAMILY",
        help=f"the official code: {', '.join(FAMILIES)}",
    )  # fmt: skip
    text = ".pth or .safetensors, a folder of transformers, or an address with its sum"
    parser.add_argument("source", metavar="IN", help=text)
    parser.add_output("target", metavar="OUT", help=".safetensors or .pth")
    parser.add_argument("--to-official", action="store_true", help="the other way: from hypvision's names")
    parser.add_argument("--curvature", type=float, help="of a model that gets official names, if it is not 1")
    text = "of a Hi-Mapper whose backbone has the shapes of another one"
    parser.add_argument("--backbone", metavar="NAME", help=text)


def run_zoo_convert(args: Namespace) -> None:
    from hypvision.zoo.convert import convert_file

    written = convert_file(args.family, args.source, args.target, args.to_official, args.curvature, args.backbone)
    print(f"{written.model}: wrote {written.path}")
    if not args.to_official:
        print(f"Use: {written.usage()}")
    if note := written.note(args.to_official):
        print(f"Note: {note}")
