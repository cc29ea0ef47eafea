"""The answers of the app, computed in a process of its own: it ends when a request takes too long.

A thread that computes cannot be stopped. A process can, and gives back its memory.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import warnings
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from hypvision.app.answers import Answers
from hypvision.app.uploads import UNKNOWN, told
from hypvision.errors import HypvisionError

SECONDS = 300  # for one request
_START = 600  # seconds to import PyTorch, on a loaded machine


class Worker:
    """Has the methods of :class:`~hypvision.app.answers.Answers`; one call is computed at a time.

    Args:
        answers: what the process computes with; models are loaded there.
        seconds: the longest computation. The process is then killed, and another one begins, without models in memory.
    """

    def __init__(self, answers: Answers, seconds: float = SECONDS):
        self.gallery = answers.gallery
        self._answers, self._seconds = answers, seconds
        self._lock = threading.Lock()
        self._start()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        answer: Any = partial(self._ask, name)
        answer.__name__ = name
        return answer

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of the server's threads
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(self._answers, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._begun = False

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _ask(self, name: str, *args: Any) -> Any:
        with self._lock:
            try:
                found, notes, mistake = self._answer(name, args)
            except (EOFError, OSError) as error:  # the pipe is closed, or nothing came in time
                self.close()
                self._start()
                late = isinstance(error, TimeoutError)
                raise HypvisionError(
                    f"This took more than {self._seconds:g} seconds and was ended. Give a smaller input, or start the "
                    "app with a longer --time-limit."
                    if late
                    else "The computation was ended by the system, as happens when the memory is full. Give a smaller "
                    "input."
                ) from error
        for message, file in notes:
            warnings.warn_explicit(message, UserWarning, file, 1)
        if mistake is not None:
            raise HypvisionError(mistake)
        return found

    def _answer(self, name: str, args: tuple[Any, ...]) -> Any:
        if not self._begun:
            self._receive(_START)
            self._begun = True
        self._pipe.send((name, args))
        return self._receive(self._seconds)

    def _receive(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            raise TimeoutError
        return self._pipe.recv()


def _work(answers: Answers, pipe: Connection) -> None:
    """Answer what comes through the pipe until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    with suppress(EOFError, OSError):
        pipe.send(None)
        while True:
            name, args = pipe.recv()
            answer = _answered(partial(getattr(answers, name), *args))
            try:
                pipe.send(answer)
            except (TypeError, AttributeError, ValueError):  # a result that cannot be pickled is a bug
                pipe.send((None, [], UNKNOWN))


def _answered(answer: partial[Any]) -> tuple[Any, list[tuple[str, str]], str | None]:
    """The result, the warnings with the files that they come from, and the sentence of an error."""
    found = mistake = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            found = answer()
        except Exception as error:
            mistake = told(error)
    return found, [(str(warning.message), warning.filename) for warning in caught], mistake
