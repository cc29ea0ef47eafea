"""Computes the answers of the app in a process of its own: unlike a thread, a process can be
stopped, and then gives back its memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, TimeoutError
from contextlib import suppress
from functools import partial
from typing import Any

from hypvision.io import HypvisionError

from .answers import Answers
from .uploads import told

SECONDS = 300  # longest time for a request
_answers: Answers  # set in the process that computes


class Worker:
    """An object with the methods of :class:`~hypvision.app.answers.Answers`, which computes one
    call at a time in another process.

    Args:
        answers: settings of the answers; the models are loaded in the other process.
        seconds: longest time of a computation. After it the process is killed, and a new one is
            started, without models in memory.
    """

    def __init__(self, answers: Answers, seconds: float = SECONDS):
        self.gallery = answers.gallery
        self._answers = answers
        self._seconds = seconds
        self._lock = threading.Lock()
        self._start()

    def __getattr__(self, name: str) -> Any:
        answer: Any = partial(self._ask, name)
        answer.__name__ = name
        return answer

    def _start(self) -> None:
        # Spawn, because a fork would copy the locks of the server's threads.
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawn, _begin, (self._answers,))
        self._process = self._pool.submit(os.getpid)

    def close(self) -> None:
        """End the process, even while it computes."""
        if self._lock.locked() and self._process.done():
            self._kill()
        self._pool.shutdown()

    def _kill(self) -> None:
        with suppress(OSError, BrokenExecutor):  # the process may have ended by itself
            os.kill(self._process.result(), signal.SIGKILL)

    def _ask(self, name: str, *args: Any) -> Any:
        with self._lock:
            try:
                self._process.result()  # wait for the start, which does not count as computing
                found, notes, mistake = self._pool.submit(_answer, name, args).result(self._seconds)
            except BrokenExecutor as error:
                self._pool.shutdown()
                self._start()
                raise HypvisionError(
                    "The process that computes the answers has ended, perhaps for lack of memory, "
                    "and was started again. Try again with a smaller input."
                ) from error
            except TimeoutError as error:
                self.close()
                self._start()
                raise HypvisionError(
                    f"This took more than {self._seconds:g} seconds and was ended. Give a smaller "
                    "input, or start the app with a longer --time-limit."
                ) from error
        for message, file in notes:
            warnings.warn_explicit(message, UserWarning, file, 1)
        if mistake is not None:
            raise HypvisionError(mistake)
        return found


def _begin(answers: Answers) -> None:
    global _answers
    _answers = answers
    # Ignore Ctrl-C, which is for the server; the server then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)


def _answer(name: str, args: tuple[Any, ...]) -> tuple[Any, list[tuple[str, str]], str | None]:
    """Return the result, the warnings with the files that they come from, and the sentence of an
    error, or None if there was none."""
    found = mistake = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            found = getattr(_answers, name)(*args)
        except Exception as error:
            mistake = told(error)
    return found, [(str(warning.message), warning.filename) for warning in caught], mistake
