"""One progress bar for the commands that look at images: live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

__all__ = ["progress"]

_Item = TypeVar("_Item")
_SECONDS = 30.0  # between the lines of an output that is no terminal


def progress(items: Iterable[_Item], total: int, unit: str) -> Iterator[_Item]:
    """The items, with a bar on standard error that says how many are done, how fast, and how long it still takes.

    A single item has none, and where standard error is no terminal there is a plain line every half a minute.
    """
    if sys.stderr.isatty():
        yield from tqdm(items, total=total or None, unit=unit, disable=total == 1, dynamic_ncols=True)
        return
    begin = last = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last >= _SECONDS and done < total:
            rate = done / (now - begin)
            left = (total - done) / rate
            print(f"{done} of {total} {unit}s, {rate:.3g} a second, {left:.0f} s left", file=sys.stderr, flush=True)
            last = now
