"""How far a command has come: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

_Item = TypeVar("_Item")
_SECONDS = 30.0  # between two lines where there is no terminal


def progress(items: Iterable[_Item], total: int, unit: str) -> Iterator[_Item]:
    """The items, with a bar on standard error that says how many are done, how fast, and how long it still takes.

    A single item gets no bar. If standard error is not a terminal, a line every half minute replaces the bar.
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


@contextmanager
def stages() -> Iterator[Callable[[str], None]]:
    """A function to call with the name of each step of a long work.

    A terminal shows the present step and the time since the beginning in one line; elsewhere each step gets a line.
    """
    if not sys.stderr.isatty():
        yield lambda text: print(f"{text} ...", file=sys.stderr, flush=True)
        return
    ended = threading.Event()
    with tqdm(bar_format="{desc} ... {elapsed}", leave=False, dynamic_ncols=True) as line:

        def tick() -> None:
            while not ended.wait(1.0):
                line.refresh()

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield line.set_description_str
        finally:
            ended.set()
            ticker.join()
