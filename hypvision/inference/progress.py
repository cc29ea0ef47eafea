"""Progress of a command: one live line on a terminal, and a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

_Item = TypeVar("_Item")
_SECONDS = 30.0  # time between two lines where standard error is no terminal


class Progress:
    """A progress bar on a terminal, with the number of items done, the rate and the time left;
    elsewhere a line every half minute, and with ``closing`` a last one at the end."""

    def __init__(
        self, what: str, total: int, done: int = 0, unit: str = "it", closing: bool = True
    ):
        self.what = what
        self.total = total
        self.first = done
        self.done = done
        self.unit = unit
        self.closing = closing
        self.begin = self.last = time.monotonic()
        self.bar = None
        if sys.stderr.isatty():
            self.bar = tqdm(
                total=total or None, initial=done, desc=what, unit=unit, dynamic_ncols=True
            )

    def update(self, done: int, facts: str = "") -> None:
        """Show that ``done`` items of the total are finished, followed by the text ``facts``."""
        if self.bar is not None:
            self.bar.set_postfix_str(facts, refresh=False)
            self.bar.update(done - self.done)
        self.done = done
        now = time.monotonic()
        if self.bar is None and (
            self.closing if done == self.total else now - self.last >= _SECONDS
        ):
            self.last = now
            rate = (done - self.first) / max(now - self.begin, 1e-9)
            left = (
                f"{duration((self.total - done) / rate)} left" if rate and done < self.total else ""
            )
            reached = f"{self.what} {done}/{self.total}" if self.total else f"{self.what} {done}"
            parts = (
                reached,
                facts,
                f"{rate:.3g} {self.unit}/s",
                "done" if done == self.total else left,
            )
            say(", ".join(filter(None, parts)))

    def close(self) -> None:
        """Close the bar, and leave its last state on the terminal."""
        if self.bar is not None:
            self.bar.close()


def say(text: str) -> None:
    """Print a line on standard error without breaking a progress bar."""
    tqdm.write(text, file=sys.stderr)
    sys.stderr.flush()


def duration(seconds: float) -> str:
    """Return a time in words, such as ``"1 h 05 min"``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes:02d} min"
        if hours
        else f"{minutes} min {seconds:02d} s"
        if minutes
        else f"{seconds} s"
    )


def progress(items: Iterable[_Item], total: int, unit: str) -> Iterator[_Item]:
    """Yield the items, and show a :class:`Progress` on standard error if ``total`` is not 1."""
    if total == 1:
        yield from items
        return
    bar = Progress(f"{unit}s", total, unit=unit, closing=False)
    try:
        for done, item in enumerate(items, 1):
            yield item
            bar.update(done)
    finally:
        bar.close()


@contextmanager
def stages() -> Iterator[Callable[[str], None]]:
    """Give a function to call with the name of each step of a long command.

    On a terminal, one line shows the current step and the time since the beginning; elsewhere each
    step prints a line.
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
