"""Import mmengine safely when several processes do so for the first time on a machine.

mmengine imports yapf, whose first import leaves its grammar in the user's cache folder: yapf moves
the file into place before it has written the last bytes. Another process that starts at that moment
(``torchrun``, the workers of a test run) reads a truncated pickle and stops with ``EOFError: Ran
out of input``. The file is complete a moment later.
"""

from __future__ import annotations

import pickle
import time
from types import ModuleType

from hypvision.io import HypvisionError, require

_WAITS = (0.1, 0.2, 0.4, 0.8, 1.6)  # seconds between attempts


def require_mmengine() -> ModuleType:
    """Import and return mmengine; wait up to 3 s for yapf's cache file that another process is
    writing."""
    for wait in (*_WAITS, None):
        try:
            require("yapf", "mm")
            break
        except (EOFError, pickle.UnpicklingError) as error:
            if wait is None:
                raise HypvisionError(
                    "yapf, which mmengine imports, finds a broken file in its cache. Delete the "
                    "folder 'YAPF' of your cache folder (on Linux: rm -r ~/.cache/YAPF) and repeat "
                    "the command."
                ) from error
            time.sleep(wait)
    return require("mmengine", "mm")
