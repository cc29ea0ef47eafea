"""The cases of an attack, the process that each runs in, and the table of what they found.

A case runs in a fork of a process that has imported PyTorch and hypvision and done nothing else.
Its memory is the largest resident set of that fork or of a process that it has waited for
(``ru_maxrss`` of ``wait4``), with what it has touched of the imports: some 430 MB for a case that
does next to nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

MARKS = ("<!-- attack:begin -->", "<!-- attack:end -->")
SHARED = "HYPVISION_ATTACK_FOLDER"  # a folder that the cases of one call share
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Skipped(Exception):
    """A case cannot be tried on this machine; the text says why."""


@dataclass(frozen=True)
class Case:
    """One attack.

    Attributes:
        group: what is attacked, a row of the table.
        name: of the case, unique in its group.
        run: gets an empty folder; returns what happened, in a short sentence; raises AssertionError
            if a promise is broken, :class:`Skipped` if the case cannot be tried here. Any other
            error breaks a promise, too.
        seconds: limit of the time.
        megabytes: limit of the resident memory.
    """

    group: str
    name: str
    run: Callable[[Path], str]
    seconds: float = 30
    megabytes: int = 1500


@dataclass(frozen=True)
class Outcome:
    """What a case did: ``verdict`` is ``"kept"``, ``"broken"`` or ``"skipped"``."""

    case: Case
    verdict: str
    said: str
    seconds: float
    megabytes: float


def modules(package: str = __package__ or "tests.hostile") -> list:
    """The modules of this folder that have cases."""
    folder = str(Path(__file__).parent)
    names = sorted(name for _, name, _ in pkgutil.iter_modules([folder]))
    found = [
        importlib.import_module(f"{package}.{name}")
        for name in names
        if name not in ("table", "__main__") and not name.startswith("test_")
    ]
    return [module for module in found if hasattr(module, "cases")]


def all_cases(found: Iterable) -> list[Case]:
    """The cases of modules; two of one name in a group are an error."""
    cases = [case for module in found for case in module.cases()]
    names = [(case.group, case.name) for case in cases]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"Two cases have one name: {twice}"
    return cases


def tried(found: Iterable) -> dict[str, str]:
    """What each group tries: the module's ``TRIED[group]``, or the first line of its docstring."""
    said: dict[str, str] = {}
    for module in found:
        first = (module.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ").rstrip(".")
        for case in module.cases():
            said.setdefault(case.group, getattr(module, "TRIED", {}).get(case.group, first))
    return said


def shared(name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this name that all cases of a call read: the first that asks for it makes it."""
    if SHARED not in os.environ:
        os.environ[SHARED] = tempfile.mkdtemp(prefix="attack-")
    root = Path(os.environ[SHARED])
    folder = root / name
    with FileLock(root / f"{name}.lock"):
        if not (root / f"{name}.made").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a case that was ended
            folder.mkdir()
            make(folder)
            (root / f"{name}.made").touch()
    return folder


def base() -> float:
    """The resident memory of this process, in megabytes: what every case begins with."""
    return _resident(os.getpid()) / 1e6


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


class Attempt:
    """A case in a fork of this process, which is killed, with all that it has started, when it
    exceeds a limit."""

    def __init__(self, case: Case):
        self.case = case
        self._folder = tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._answer = folder / "answer.json"
        (folder / "place").mkdir()
        self._begun = time.monotonic()
        self._child = os.fork()
        if self._child == 0:
            _work(case, folder / "place", self._answer, folder / "output")

    def poll(self) -> Outcome | None:
        """The outcome, or None while the case runs."""
        ended, status, usage = os.wait4(self._child, os.WNOHANG)
        seconds = time.monotonic() - self._begun
        exceeded = ""
        if not ended:
            if seconds > self.case.seconds:
                exceeded = f"not done after {self.case.seconds:.0f} s"
            elif _resident(self._child) > self.case.megabytes * 1e6:
                exceeded = f"more than {self.case.megabytes} MB"
            else:
                return None
            _kill(self._child)
            _, status, usage = os.wait4(self._child, 0)
        _kill(self._child)  # what it may have left behind
        peak = usage.ru_maxrss * 1024 / 1e6
        verdict, said = ("broken", exceeded) if exceeded else self._said(status, peak)
        self._folder.cleanup()
        return Outcome(self.case, verdict, said, seconds, peak)

    def stop(self) -> None:
        """End a case that nobody waits for any longer."""
        _kill(self._child)
        self._folder.cleanup()

    def _said(self, status: int, peak: float) -> tuple[str, str]:
        if os.WIFSIGNALED(status):
            return "broken", f"the process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
        if not self._answer.is_file():
            return (
                "broken",
                f"the process ended with {os.waitstatus_to_exitcode(status)} and no answer",
            )
        found = json.loads(self._answer.read_text())
        if found["verdict"] == "kept" and peak > self.case.megabytes:
            return "broken", f"{peak:.0f} MB, more than {self.case.megabytes}"
        return found["verdict"], found["said"]


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _work(case: Case, place: Path, answer: Path, output: Path) -> None:
    """The forked process: run the case, write its answer, end."""
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        said = os.open(output, os.O_WRONLY | os.O_CREAT)
        silence = os.open(os.devnull, os.O_RDONLY)
        os.dup2(silence, 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdin = os.fdopen(0, "r", closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False, buffering=1)
        sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1)
        try:
            found = ("kept", case.run(place))
        except Skipped as reason:
            found = ("skipped", str(reason))
        except BaseException as error:
            traceback.print_exc()
            sys.stderr.flush()
            text = f"{type(error).__name__}: {error}\n{output.read_text(errors='replace')[-3000:]}"
            found = ("broken", text)
        answer.write_text(json.dumps(dict(verdict=found[0], said=found[1])))
    finally:
        os._exit(0)


def run_all(
    cases: Sequence[Case], jobs: int, quiet: bool = False, log: Path | None = None
) -> list[Outcome]:
    """Run all cases, ``jobs`` at a time, with a progress bar; the outcomes in the order of the
    cases. Each is also written to the file ``log``, a line each."""
    found: dict[int, Outcome] = {}
    running: dict[int, Attempt] = {}
    tqdm.monitor_interval = 0  # no thread while this process forks
    waiting = list(enumerate(cases))[::-1]
    with (
        tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder,
        tqdm(total=len(cases), disable=quiet, unit="case") as bar,
    ):
        os.environ[SHARED] = folder
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    number, case = waiting.pop()
                    running[number] = Attempt(case)
                for number, attempt in list(running.items()):
                    outcome = attempt.poll()
                    if outcome is None:
                        continue
                    del running[number]
                    found[number] = outcome
                    if log is not None:
                        with open(log, "a") as file:
                            file.write(line(outcome))
                    label = f"{outcome.case.group}: {outcome.case.name}"
                    if outcome.verdict != "kept" and not quiet:
                        bar.write(f"{outcome.verdict.upper()} {label}: {outcome.said}")
                    bar.set_postfix_str(label[:50], refresh=False)
                    bar.update()
                time.sleep(0.02)
        finally:
            for attempt in running.values():
                attempt.stop()
        subprocess.run(
            ["rm", "-rf", folder], check=False
        )  # a hundred thousand folders, faster than Python
    return [found[number] for number in sorted(found)]


def line(outcome: Outcome) -> str:
    """What a case did, in a line."""
    case = outcome.case
    said = " ".join(outcome.said.split())
    return (
        f"{outcome.verdict}\t{outcome.seconds:.1f} s\t{outcome.megabytes:.0f} MB\t{case.group}: "
        f"{case.name}\t{said}\n"
    )


def render(outcomes: Sequence[Outcome], what: dict[str, str]) -> str:
    """The table, in Markdown."""
    lines = [
        "| group | what was tried | cases | code run or promise broken | worst seconds | worst "
        "peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for group in dict.fromkeys(outcome.case.group for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.case.group == group]
        done = [outcome for outcome in rows if outcome.verdict != "skipped"]
        skipped = len(rows) - len(done)
        count = f"{len(done)}" + (f" ({skipped} skipped)" if skipped else "")
        broken = sum(outcome.verdict == "broken" for outcome in done)
        seconds = max((outcome.seconds for outcome in done), default=0)
        peak = max((outcome.megabytes for outcome in done), default=0)
        lines.append(
            f"| {group} | {what.get(group, '')} | {count} | {broken} | {seconds:.1f} | {peak:.0f} |"
        )
    return "\n".join(lines)
