"""The benchmarks of ``tools/benchmark.py``, one module each.

They measure against the reference implementations of the tests, which are no installed package: it
is loaded here from its folder, under the name that the tests import it by.
"""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("references") is None:
    _folder = Path(__file__).parents[2] / "tests" / "references"
    _spec = importlib.util.spec_from_file_location(
        "references", _folder / "__init__.py", submodule_search_locations=[str(_folder)]
    )
    sys.modules["references"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["references"])
