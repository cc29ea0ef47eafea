#!/usr/bin/env python
"""Put a checkpoint into the model zoo: this is ``hypvision zoo publish CONFIG CHECKPOINT ...``."""

import sys

from hypvision.cli import main

if __name__ == "__main__":
    sys.exit(main(["zoo", "publish", *sys.argv[1:]]))
