#!/usr/bin/env python
"""Convert a checkpoint of a paper's official code: ``python tools/convert_checkpoint.py --from hcformer IN OUT``."""

import sys
from argparse import ArgumentParser, Namespace

import hypvision  # noqa: F401  (registers the models)
from hypvision.errors import guard
from hypvision.zoo.convert import CONVERTERS, convert_file


def convert(args: Namespace) -> None:
    done = convert_file(args.family, args.input, args.output, args.to_official)
    print(f"{done.model}: wrote {done.path}")
    if not args.to_official:
        print(f"Use: import hypvision, timm; {done.usage()}")


if __name__ == "__main__":
    parser = ArgumentParser(description="Convert a checkpoint of a paper's official code to hypvision's names.")
    parser.add_argument("--from", dest="family", required=True, choices=list(CONVERTERS), help="the family of models")
    parser.add_argument("input", metavar="IN", help=".pth or .safetensors")
    parser.add_argument("output", metavar="OUT", help=".safetensors or .pth")
    parser.add_argument(
        "--to-official", action="store_true", help="convert from hypvision's names to the official ones"
    )
    sys.exit(guard(convert, parser.parse_args()))
