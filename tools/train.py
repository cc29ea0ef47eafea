#!/usr/bin/env python
"""Train a classifier, segmenter or detector: ``python tools/train.py CONFIG``; ``--help`` lists the options."""

import sys
from argparse import ArgumentParser

from hypvision.engine.checks import main_guard
from hypvision.engine.run import add_train_arguments, run_train

if __name__ == "__main__":
    parser = ArgumentParser(description="Train what CONFIG describes.")
    add_train_arguments(parser)
    sys.exit(main_guard(run_train, parser.parse_args()))
