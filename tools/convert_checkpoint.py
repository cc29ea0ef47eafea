"""Convert an official checkpoint to hypvision's names, or back: tools/convert_checkpoint.py --from hcformer IN OUT."""

import sys
from argparse import ArgumentParser

from hypvision.errors import guard
from hypvision.zoo.convert import CONVERTERS, convert_file


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="family", required=True, choices=sorted(CONVERTERS), help="the official code")
    parser.add_argument("source", metavar="IN", help=".pth (loaded without running code) or .safetensors")
    parser.add_argument("target", metavar="OUT", help=".safetensors or .pth")
    parser.add_argument("--to-official", action="store_true", help="the other way: from hypvision's names")
    args = parser.parse_args()
    return guard(_convert, args.family, args.source, args.target, args.to_official)


def _convert(family: str, source: str, target: str, to_official: bool) -> None:
    written = convert_file(family, source, target, to_official)
    print(f"{written.model}: wrote {written.path}")
    if not to_official:
        print(f"Use: {written.usage()}")
        if written.note():
            print(f"Note: {written.note()}")


if __name__ == "__main__":
    sys.exit(main())
