"""``python -m hypvision.cli``: the command of this interpreter, wherever the console script is."""

import sys

from hypvision.cli import main

if __name__ == "__main__":
    sys.exit(main())
