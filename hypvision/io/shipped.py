"""Find the configs that come with the package, in a checkout and in a wheel: config files, and rows
of tables."""

from __future__ import annotations

import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .records import read_table
from .types import StrPath

RECIPES = "recipes.csv"


class Recipe(NamedTuple):
    """A config that is a row of the table ``recipes.csv`` of its folder.

    Attributes:
        name: name of the config, which ``hypvision train`` or ``test`` takes.
        pieces: config files without ``.py`` below the folder of configs, separated by spaces; each
            changes what the files before it say.
        options: further changes, in the form of ``--cfg-options``.
    """

    name: str
    pieces: str
    options: str = ""


def config_folder() -> Path:
    """Return the folder of the configs: that of the checkout, or its copy in the installed
    package."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "_configs"
    return inside if inside.is_dir() else package.parent / "configs"


@cache
def recipes() -> dict[Path, Recipe]:
    """Return the rows of all tables, by the paths of the config files that they stand for."""
    return {
        table.parent / f"{row.name}.py": row
        for table in sorted(config_folder().glob(f"*/{RECIPES}"))
        for _, row in read_table(Recipe, table)
    }


def recipe_of(path: StrPath) -> Recipe | None:
    """Return the row of a table that stands for the config at a path; None if no row does."""
    return recipes().get(Path(path).resolve())


def shipped_configs(pattern: str | None = None) -> dict[str, Path]:
    """Return the configs that can be trained or tested, by their names without ``.py``; a config
    from a table (:func:`recipes`) has a path at which there is no file.

    Args:
        pattern: a part of FOLDER/NAME, or a glob pattern for its end such as ``"*_cifar10"``; None:
            all configs.
    """
    files = sorted([*config_folder().glob("*/*.py"), *recipes()])
    found = {path.stem: path for path in files if path.parent.name != "_base_"}
    if pattern is None:
        return found
    wanted = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    return {
        name: path
        for name, path in found.items()
        if fnmatch.fnmatch(f"{path.parent.name}/{name}", f"*{wanted}")
    }


def find_config(name: StrPath) -> Path | None:
    """Return the path of the shipped config of this name, with or without its folder and ``.py``;
    None if there is none."""
    path = Path(name)
    found = shipped_configs().get(path.name.removesuffix(".py"))
    if found is None or (path.parent.name and path.parent.name != found.parent.name):
        return None
    return found


def is_config(name: StrPath) -> bool:
    """Return whether a name means a config: a ``.py`` or ``.json`` file, or a shipped config."""
    return str(name).endswith((".py", ".json")) or find_config(name) is not None


def where_data_come_from(place: StrPath) -> str:
    """Return a sentence that says what to do if the data of a config are not at ``place``."""
    path = Path(place).as_posix()
    if path.startswith("tools/demo_data"):
        return (
            "These data are part of the repository, not of the wheel: run this in a clone of it, "
            "or train on photos of your own, hypvision train FOLDER (see docs/own-data.md)."
        )
    return (
        "Put the data there, or give its place with --cfg-options data_root=FOLDER (see "
        "docs/data.md)."
    )
