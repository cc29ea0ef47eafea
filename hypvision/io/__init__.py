"""The base of all other packages: errors, checks of arguments, files, images, records, web
addresses and the names of shipped configs.

This package imports nothing else of hypvision. What most files use comes from here: errors, checks
and types, which need Python's library alone, so that the command line starts without PyTorch. The
other submodules are imported by their names.
"""

from .checks import (
    at_least,
    between,
    depths,
    ensure,
    list_of_texts,
    more_than,
    name_or_path,
    one_of,
    refuse,
    refuse_weights,
    whole_number,
)
from .errors import (
    ArgumentError,
    HypvisionError,
    did_you_mean,
    explain_machine,
    explaining,
    few,
    one_line,
    require,
    require_finite,
    some,
    without_secrets,
)
from .types import Ancestors, Metrics, NameList, Names, Plain, StrPath, Values

__all__ = [
    "Ancestors",
    "ArgumentError",
    "HypvisionError",
    "Metrics",
    "NameList",
    "Names",
    "Plain",
    "StrPath",
    "Values",
    "at_least",
    "between",
    "depths",
    "did_you_mean",
    "ensure",
    "explain_machine",
    "explaining",
    "few",
    "list_of_texts",
    "more_than",
    "name_or_path",
    "one_line",
    "one_of",
    "refuse",
    "refuse_weights",
    "require",
    "require_finite",
    "some",
    "whole_number",
    "without_secrets",
]
