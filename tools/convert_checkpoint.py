#!/usr/bin/env python
"""Convert an official checkpoint: this is ``hypvision zoo convert --from FAMILY IN OUT``."""

import sys

from hypvision.cli import main

if __name__ == "__main__":
    sys.exit(main(["zoo", "convert", *sys.argv[1:]]))
