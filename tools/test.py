#!/usr/bin/env python
"""Measure a checkpoint: ``python tools/test.py CONFIG WEIGHTS`` is
``hypvision test CONFIG WEIGHTS``."""

import sys

from hypvision.cli import main

if __name__ == "__main__":
    sys.exit(main(["test", *sys.argv[1:]]))
