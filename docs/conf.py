"""The site: ``make docs`` builds it from the pages of the repository, where they lie, into
build/docs."""

import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from hypvision.version import __version__  # noqa: E402

project = "hypvision"
author = "The hypvision authors"
copyright = author
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "site_tables",
]
# The source folder is the repository, so that links between its pages mean the same here as where
# the code is hosted.
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**",
    "configs/*/README.md",
    "model_zoo/README.md",
]
exclude_patterns = [
    ".*",
    "build",
    "data",
    "work_dirs",
    "tests",
    "hypvision",
    "docs/conf.py",
    "docs/_templates",
]
templates_path = [
    str(ROOT / "docs/_templates")
]  # autosummary seeks from the source folder, pages from here

myst_enable_extensions = [
    "colon_fence",
    "dollarmath",
    "attrs_inline",
    "html_image",
]  # README has <img>
myst_heading_anchors = 4

autosummary_generate = True
autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_typehints = "signature"
napoleon_use_ivar = True  # the attributes of a class in one list
autodoc_member_order = "bysource"

# A notebook runs when its code has changed; what it showed is kept beside the site.
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build/notebooks")
nb_execution_timeout = 1800  # of a cell: on two busy cores one takes ten minutes
nb_execution_raise_on_error = True
nb_output_stderr = "remove"

html_theme = "furo"
html_title = f"hypvision {__version__}"
html_additional_pages = {"index": "to_first_page.html"}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def only_ours(app, what, name, member, skip, options):
    """Leave out what a class inherits from PyTorch, mmengine and the like: their own pages describe
    it."""
    function = getattr(member, "fget", None) or inspect.unwrap(getattr(member, "__func__", member))
    home = getattr(function, "__module__", None) or getattr(function, "__objclass__", None)
    return True if what == "class" and home and not str(home).startswith("hypvision") else None


def tables(app, what, name, member, options, lines):
    """Say what is in a table (a dict of adapters, of commands) in place of what a dict is."""
    if (
        what == "data"
        and isinstance(member, dict)
        and lines == (inspect.getdoc(dict) or "").splitlines()[: len(lines)]
    ):
        lines[:] = [f"A table of {', '.join(f'``{key}``' for key in member)}."]


def setup(app):
    app.connect("autodoc-process-docstring", tables)
    app.connect("autodoc-skip-member", only_ours)
