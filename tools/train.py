#!/usr/bin/env python
"""Train a classifier, segmenter or detector: ``python tools/train.py CONFIG`` is
``hypvision train CONFIG``."""

import sys

from hypvision.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
