#!/usr/bin/env python
"""Measure a checkpoint: ``python tools/test.py CONFIG WEIGHTS``; ``--help`` lists the options."""

import sys
from argparse import ArgumentParser

from hypvision.engine.checks import main_guard
from hypvision.engine.run import add_test_arguments, run_test

if __name__ == "__main__":
    parser = ArgumentParser(description="Measure the checkpoint WEIGHTS on the test data of CONFIG.")
    add_test_arguments(parser)
    sys.exit(main_guard(run_test, parser.parse_args()))
