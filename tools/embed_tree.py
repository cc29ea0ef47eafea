#!/usr/bin/env python
"""Embed a tree in two dimensions, hyperbolic and flat: the experiment of docs/geometry.md;
``--help`` says more.

``python tools/embed_tree.py --write docs/geometry.md --image docs/images/geometry/tree.png``
"""

import sys
from argparse import ArgumentParser

from hypvision.io.errors import guard

if __name__ == "__main__":
    from bench import tree_embedding

    parser = ArgumentParser(description="Embed a tree in two dimensions, hyperbolic and flat.")
    tree_embedding.add_arguments(parser)
    sys.exit(guard(tree_embedding.run, parser.parse_args()))
