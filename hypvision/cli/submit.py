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
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext, suppress
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, cast

from hypvision.io import HypvisionError, Plain, StrPath, explain_machine, require
from hypvision.io.errors import ending_as_interrupted

_POLL_SECONDS = 0.5
_END_SECONDS = 20  # longest wait for jobs that are ended: one may be importing PyTorch
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

    results: Plain
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


_Answers = Generator[tuple[str, _Answer], None, None]


def submit_options(args: Namespace) -> Plain:
    """Return the parsed arguments as arguments of :func:`run_cells`."""
    return dict(jobs=args.jobs, submit=args.submit, options=dict(args.submit_options))


def run_cells(
    cells: Sequence[Cell],
    finished: Callable[[str], bool] = lambda key: False,
    jobs: int | None = None,
    submit: str | None = None,
    folder: StrPath = "jobs",
    options: Plain | None = None,
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
        submit: None, or one of "local" and "slurm" for submitit.
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
    reasons: dict[str, str] = {}
    # The generator is closed at once, which ends what runs, and not only when the traceback of an
    # interruption is dropped.
    with closing(_answers(rest, jobs, submit, Path(folder), options or {})) as answers:
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


def _answers(
    cells: Sequence[Cell],
    jobs: int | None,
    submit: str | None,
    folder: Path,
    options: Plain,
) -> _Answers:
    """Return the answers of cells: from submitit, from several processes, or one after the other
    from this process."""
    if submit is not None:
        return _in_submitit(cells, jobs, submit, folder, options)
    if min(jobs or 1, len(cells)) > 1:
        return _in_processes(cells, jobs or 1)
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


def _in_processes(cells: Sequence[Cell], jobs: int) -> _Answers:
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
    try:
        with ending_as_interrupted():  # a cell that is ended removes its files
            answer = _call(function, *arguments)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)
    try:
        sender.send(answer)
    except _PICKLING as error:
        sender.send(_Answer(failure=f"its result could not be sent: {error}"))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Cells in submitit


def _in_submitit(
    cells: Sequence[Cell], jobs: int | None, cluster: str, folder: Path, options: Plain
) -> _Answers:
    executor = _executor(jobs, cluster, folder, options)
    slurm = cluster == "slurm"
    # submitit would start all local jobs at once, while SLURM has a queue.
    together = len(cells) if slurm else jobs or 1
    waiting = list(cells)
    running: Plain = {}
    try:
        while waiting or running:
            free = max(0, together - len(running))
            _submit(executor, waiting[:free], slurm, running)
            waiting = waiting[free:]
            ready = [key for key, job in running.items() if job.done()]
            for key in ready:
                yield key, _answer_of(running.pop(key))
            if not ready:
                time.sleep(_POLL_SECONDS)
    finally:
        _cancel(list(running.values()), slurm)


def _submit(executor: Any, cells: Sequence[Cell], slurm: bool, running: Plain) -> None:
    """Submit cells and add their jobs to ``running``, one by one, so that an interruption finds
    them; SLURM gets the cells together."""
    call = _call if slurm else _call_in_job
    with executor.batch() if slurm and cells else nullcontext():
        for cell in cells:
            running[cell.key] = executor.submit(call, cell.function, *cell.arguments)


def _call_in_job(function: Callable[..., Any], *arguments: Any) -> _Answer:
    """Return the answer of :func:`_call` in a job on this machine, where submitit would ignore
    SIGTERM."""
    with ending_as_interrupted():
        return _call(function, *arguments)


def _cancel(jobs: list[Any], slurm: bool) -> None:
    """End jobs that may still run; jobs on this machine have ended when this function returns."""
    if slurm:
        for job in jobs:
            # The job may have ended, or not been handed over yet.
            with suppress(OSError, subprocess.SubprocessError, AttributeError):
                job.cancel()
        return
    # submitit would send SIGINT, which is ignored if the command runs in a script's background.
    # SIGTERM is sent repeatedly, because a job that is starting passes no signal on.
    deadline = time.monotonic() + _END_SECONDS
    left = [job for job in jobs if not job.done()]
    while left and time.monotonic() < deadline:
        for job in left:
            os.kill(int(job.job_id), signal.SIGTERM)
        time.sleep(_POLL_SECONDS)
        left = [job for job in left if not job.done()]


def _answer_of(job: Any) -> _Answer:
    try:
        return job.result()
    except Exception as error:
        # The job was killed, timed out or never started; submitit's message says which.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return _Answer(
            failure=f"its job {job.job_id} ended without a result ({lines[0] if lines else error})"
        )


def _executor(jobs: int | None, cluster: str, folder: Path, options: Plain) -> Any:
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
