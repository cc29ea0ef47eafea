"""The console script ``hypvision``, outside of the package.

Importing anything of ``hypvision`` runs the package's ``__init__``, which imports PyTorch and timm
to register the models. That takes seconds, and help, the version and a wrong option need none of
it. So the package is put in place without running its ``__init__``, the command line is read by
:mod:`hypvision.cli`, and only then is it run.
"""

import importlib.util
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    try:
        if "hypvision" not in sys.modules:
            sys.modules["hypvision"] = importlib.util.module_from_spec(
                importlib.util.find_spec("hypvision")
            )
        from hypvision import cli

        return cli.main(argv, _load)
    except KeyboardInterrupt:  # before cli.main, or while it tells of another
        print("\nInterrupted.", file=sys.stderr)
        return 130


def _load() -> None:
    package = sys.modules["hypvision"]
    if not hasattr(package, "__version__"):  # its __init__ has not run yet
        package.__spec__.loader.exec_module(package)


if __name__ == "__main__":
    sys.exit(main())
