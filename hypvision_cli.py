"""The console script ``hypvision``, outside of the package.

Importing anything of ``hypvision`` runs the package's ``__init__``, which imports PyTorch and timm to register the
models. That takes seconds, and help, the version and a wrong option need none of it. So the package is put in place
without running its ``__init__``, the command line is read by :mod:`hypvision.cli`, and only then is it run.
"""

import importlib.util
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    postponed = None
    if "hypvision" not in sys.modules:
        postponed = importlib.util.find_spec("hypvision")
        sys.modules["hypvision"] = importlib.util.module_from_spec(postponed)
    from hypvision import cli

    return cli.main(argv, None if postponed is None else lambda: postponed.loader.exec_module(sys.modules["hypvision"]))


if __name__ == "__main__":
    sys.exit(main())
