"""``python -m hypvision.cli``: the command line of this interpreter, even if the console script is
not installed on the path."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
