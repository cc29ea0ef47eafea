#!/usr/bin/env python
"""Print which packages of this environment have another version than the lock that ``make test``
installs.

``python tools/compare_versions.py`` compares with ``requirements/dev.txt``, read for the Python
that runs it.
"""

import platform
import re
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).resolve().parent.parent / "requirements" / "dev.txt"


def pinned() -> dict[str, str]:
    """The versions of the lock for this Python and system."""
    versions = {}
    for line in re.findall(r"^[A-Za-z0-9][^\\\n]*", LOCK.read_text(), re.MULTILINE):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            versions[requirement.name] = str(requirement.specifier).removeprefix("==")
    return versions


def installed() -> dict[str, str]:
    """The versions of this environment."""
    return {canonicalize_name(found.name): found.version for found in distributions()}


def main() -> None:
    """Print a table of the packages that differ."""
    lock = pinned()
    here = installed()
    names = sorted(lock.keys() | here.keys() - {"hypvision", "pip"})
    rows = [(name, lock.get(name, "-"), here.get(name, "-")) for name in names]
    differing = [row for row in rows if row[1] != row[2]]
    print(f"Python {platform.python_version()}")
    for row in [("package", "pinned", "here"), *differing]:
        print("{:<28}{:<16}{}".format(*row))
    print(f"The other {len(rows) - len(differing)} packages have the pinned versions.")


if __name__ == "__main__":
    main()
