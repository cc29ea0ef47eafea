"""Runs many independent calls, the cells of a grid: in this process, in several processes, or with
submitit, on this machine or on SLURM.

A command lists its cells and says which are finished; :func:`run_cells` does the rest. If a cell
fails, this is reported, and the others still run. An interruption ends all running cells.

>>> cells = [Cell("dtd/seed1", train, ("dtd", 1))]
>>> outcome = run_cells(cells, finished=lambda key: Path(out, key, "done").exists())
>>> outcome.check()
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import time
import traceback
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, cast

from hypvision.cli.arguments import Parser, whole
from hypvision.io.errors import HypvisionError, explain_machine, require

CLUSTERS = ("local", "slurm")
_POLL_SECONDS = 0.5
# Errors that pickle raises if a result cannot be sent or received.
_PICKLING = (pickle.PickleError, AttributeError, ImportError, TypeError, ValueError, RuntimeError)


class Cell(NamedTuple):
    """One call of the grid. Function and arguments can be pickled; the key is unique in a
    command."""

    key: str
    function: Callable[..., Any]
    arguments: tuple = ()


class Outcome(NamedTuple):
    """The outcome of a grid's cells by their keys: the results, the errors, and the cells that were
    finished before."""

    results: dict[str, Any]
    failures: dict[str, str]
    skipped: list[str]

    def check(self) -> None:
        """Raise HypvisionError if a cell has failed."""
        if self.failures:
            total = len(self.results) + len(self.failures) + len(self.skipped)
            key, reason = next(iter(self.failures.items()))
            others = [other for other in self.failures if other != key][:5]
            rest = ", ..." if len(self.failures) > 6 else ""
            more = f" Also: {', '.join(others)}{rest}." if others else ""
            raise HypvisionError(
                f"{len(self.failures)} of {total} cells failed. {key}: {reason.rstrip('.')}.{more} "
                "Correct the cause and run the command again: finished cells are not repeated."
            )


class _Answer(NamedTuple):
    """The result or the failure of a call, in a form that can be sent between processes."""

    value: Any = None
    failure: str | None = None
    trace: str = ""


def add_submit_arguments(parser: Parser, cells: bool = True) -> None:
    """Add ``--jobs``, ``--submit`` and ``--submit-options`` to a parser; for a command of a single
    call (``cells=False``) without ``--jobs``."""
    text = (
        "number of cells at a time, each in its own process (default: 1, in this process; with "
        "--submit slurm: all)"
    )
    if cells:
        parser.add("--jobs N", text, whole(1, 4096))
    parser.add(
        "--submit",
        f"hand {'the cells' if cells else 'the training'} to submitit: on this machine, or to "
        "SLURM",
        choices=CLUSTERS,
    )
    parser.add(
        "--submit-options KEY=VALUE...",
        "parameters of submitit, such as slurm_partition=gpu gpus_per_node=1 timeout_min=240",
        _option,
        needs=["--submit"],
    )


def submit_options(args: Namespace) -> dict[str, Any]:
    """Return the parsed arguments as arguments of :func:`run_cells`."""
    return dict(jobs=args.jobs, submit=args.submit, options=dict(args.submit_options))


def _option(text: str) -> tuple[str, int | str]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier() or not value:
        raise ArgumentTypeError(f"takes KEY=VALUE, such as timeout_min=240; got '{text}'")
    return key, int(value) if value.isascii() and value.isdigit() and len(value) < 10 else value


def run_cells(
    cells: Sequence[Cell],
    finished: Callable[[str], bool] = lambda key: False,
    jobs: int | None = None,
    submit: str | None = None,
    folder: str | Path = "jobs",
    options: dict[str, Any] | None = None,
    unit: str = "cell",
    arrived: Callable[[str, Any], None] = lambda key, value: None,
) -> Outcome:
    """Run the cells that are not finished, and return their outcome.

    Args:
        cells: the cells to run.
        finished: says whether the cell with this key need not run; called once for each cell,
            before the first cell runs.
        jobs: number of cells at a time. None: one, in this process, or with SLURM as many as its
            queue allows.
        submit: None, or one of :data:`CLUSTERS` for submitit.
        folder: folder for submitit's files; only written to with ``submit``.
        options: parameters of submitit's executor.
        unit: name of a cell in the progress bar.
        arrived: called in this process with the key and the result of each cell as it ends.

    Returns:
        Results, failures and skipped cells. Failures are also printed when they happen, each reason
        once.
    """
    from tqdm import tqdm

    from hypvision.inference.progress import progress

    left = {cell.key: cell for cell in cells}
    if len(left) < len(cells):
        raise ValueError("two cells have the same key")
    outcome = Outcome({}, {}, list(filter(finished, left)))
    for key in outcome.skipped:
        del left[key]
    if not left:
        return outcome
    rest = list(left.values())
    answers = _here(rest, jobs)
    if submit is not None:
        answers = _in_submitit(rest, jobs, submit, Path(folder), options or {})
    reasons: dict[str, str] = {}
    for key, answer in progress(answers, len(left), unit):
        if answer.failure is None:
            outcome.results[key] = answer.value
            arrived(key, answer.value)
            continue
        told = f"{answer.failure}\n{answer.trace}".rstrip()
        first = reasons.setdefault(told, key)  # a wrong setting makes all cells fail alike
        tqdm.write(f"{key} failed: {told if first == key else f'as {first} did'}")
        outcome.failures[key] = answer.failure
    return outcome


def _here(cells: Sequence[Cell], jobs: int | None) -> Iterator[tuple[str, _Answer]]:
    """Return the answers of cells on this machine: from several processes, or one after the other
    from this process."""
    if jobs and jobs > 1 and len(cells) > 1:
        return _in_processes(cells, jobs)
    return ((cell.key, _call(cell.function, *cell.arguments)) for cell in cells)


def _call(function: Callable[..., Any], *arguments: Any) -> _Answer:
    try:
        return _Answer(function(*arguments))
    except HypvisionError as error:
        return _Answer(failure=" ".join(str(error).split()))
    except Exception as error:  # an unexpected error in one cell must not stop the others
        told = explain_machine(error)
        if told is not None:
            return _Answer(failure=told)
        return _Answer(failure=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


# Each cell has its own process: if a process is killed, the others go on, and each process returns
# its memory when it ends.


def _in_processes(cells: Sequence[Cell], jobs: int) -> Iterator[tuple[str, _Answer]]:
    waiting = list(reversed(cells))
    running: dict[Connection, tuple[str, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop()
                receiver, process = _start(cell, jobs)
                running[receiver] = cell.key, process
            for receiver in cast("list[Connection]", wait(list(running))):
                key, process = running[receiver]
                answer = _received(receiver)
                process.join()
                receiver.close()
                del running[receiver]
                ended = f"its process ended with status {process.exitcode}"
                yield key, answer or _Answer(failure=ended)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join(10)
            if process.is_alive():
                process.kill()


def _start(cell: Cell, jobs: int) -> tuple[Connection, Any]:
    """Start one of ``jobs`` processes, which calls a cell; return the connection on which its
    answer arrives, and the process."""
    context = _context()
    threads = max(1, _cores() // jobs)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, threads, cell.function, cell.arguments))
    process.start()
    # Close this process's copy of the sender; otherwise the pipe stays open when the process ends.
    sender.close()
    return receiver, process


def _received(receiver: Connection) -> _Answer | None:
    """Return the answer of a process; None if it ended without an answer."""
    try:
        return cast(_Answer, receiver.recv())
    except EOFError:
        return None
    except (*_PICKLING, OSError) as error:
        return _Answer(failure=f"its result could not be read: {error}")


def _context() -> Any:
    """Return a context whose processes start from one that has already imported PyTorch, so that a
    cell does not spend time on the import."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _serve(
    sender: Connection, threads: int, function: Callable[..., Any], arguments: tuple
) -> None:
    import torch

    # Ctrl-C signals all processes, but the main process ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)
    answer = _call(function, *arguments)
    try:
        sender.send(answer)
    except _PICKLING as error:
        sender.send(_Answer(failure=f"its result could not be sent: {error}"))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Cells in submitit


def _in_submitit(
    cells: Sequence[Cell], jobs: int | None, cluster: str, folder: Path, options: dict[str, Any]
) -> Iterator[tuple[str, _Answer]]:
    executor = _executor(jobs, cluster, folder, options)
    # submitit would start all local jobs at once, while SLURM has a queue.
    together = len(cells) if cluster == "slurm" else jobs or 1
    waiting = list(cells)
    running: dict[str, Any] = {}
    try:
        while waiting or running:
            free = max(0, together - len(running))
            running |= _submitted(executor, waiting[:free])
            waiting = waiting[free:]
            ready = [key for key, job in running.items() if job.done()]
            for key in ready:
                yield key, _answer_of(running.pop(key))
            if not ready:
                time.sleep(_POLL_SECONDS)
    finally:
        for job in running.values():
            with suppress(OSError, subprocess.SubprocessError):  # the job may have ended
                job.cancel()


def _submitted(executor: Any, cells: Sequence[Cell]) -> dict[str, Any]:
    """Submit cells together, and return their jobs by key."""
    jobs: dict[str, Any] = {}
    with executor.batch() if cells else nullcontext():
        for cell in cells:
            jobs[cell.key] = executor.submit(_call, cell.function, *cell.arguments)
    return jobs


def _answer_of(job: Any) -> _Answer:
    try:
        return job.result()
    except Exception as error:
        # The job was killed, timed out or never started; submitit's message says which.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return _Answer(
            failure=f"its job {job.job_id} ended without a result ({lines[0] if lines else error})"
        )


def _executor(jobs: int | None, cluster: str, folder: Path, options: dict[str, Any]) -> Any:
    submitit = require("submitit", "submit")
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**({"slurm_array_parallelism": jobs} if jobs else {}), **options)
    except (RuntimeError, NotImplementedError, NameError, TypeError, ValueError) as error:
        words = " ".join(str(error).split())
        raise HypvisionError(
            f"--submit {cluster}: submitit refuses the parameters: {words}. Correct "
            "--submit-options."
        ) from error
    return executor
