"""Trainings that are killed, or meet a full disk, at each call that changes a file.

``PYTHONPATH=tests python -m helpers.kills [KIND ...]`` walks over all kinds, and prints how many
kills lost something.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import mmengine.runner.runner
from helpers.engine import make_images, write_config
from helpers.language import make_text, small
from helpers.processes import Forks
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, METRICS

import hypvision.engine.run
from hypvision.engine.checkpoint import newest_checkpoint
from hypvision.engine.metrics import Metric
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError, explain_machine

# Calls
# --------------------------------------------------------------------------------------------------

_PATHS = {
    "os.remove": 0,
    "os.rename": 1,
    "os.mkdir": 0,
    "os.rmdir": 0,
    "os.truncate": 0,
    "os.link": 1,
}
_REMOVES = ("os.remove", "os.rmdir")


class Calls:
    """Numbers the calls of this process that change what is below a folder, and breaks off one of
    them.

    Names are created, replaced and removed by calls that Python audits; ``write`` and ``fsync`` are
    replaced by others that count. What C++ writes (``torch.save`` to a path) is not seen, but the
    renaming after it is.

    The hook that audits stays in the process, where it does nothing after the block.

    Args:
        folder: what lies in other places is not counted.
        log: a file that gets a line for each call: its number, kind and file.
        at: the number of the call that is broken off, a write in its middle; None: none is.
        error: errno that this call fails with, and all later ones that take space; None: the
            process is killed.
        states: a folder that gets a copy of ``folder`` as a kill would leave it at each call.
    """

    def __init__(self, folder, log, at=None, error=None, states=None):
        self.folder, self.at, self.error, self.states, self.count = (
            str(folder),
            at,
            error,
            states,
            0,
        )
        self.off = False
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._fsync, self._open = os.fsync, io.open

    def __enter__(self):
        sys.addaudithook(self._audit)
        os.fsync = self._flush
        builtins.open = io.open = self._opener(io.open)
        return self

    def __exit__(self, *_):
        self.off = True
        os.fsync, builtins.open, io.open = self._fsync, self._open, self._open
        os.close(self.log)

    def note(self, kind, path):
        """Count a call; whether it is the one that is broken off."""
        path = os.path.abspath(os.fsdecode(path))
        fails = (
            os.path.isdir(path)
            if kind == "os.mkdir"
            else kind in _REMOVES and not os.path.lexists(path)
        )
        if fails or not path.startswith(self.folder) or self.off:
            return False
        if self.states is not None and os.path.isdir(self.folder):
            self.off = True
            shutil.copytree(self.folder, f"{self.states}/{self.count}", copy_function=_kept)
            self.off = False
        os.write(self.log, f"{self.count} {kind} {path}\n".encode())
        self.count += 1
        full = self.error is not None and self.count - 1 > (self.at or 0) and kind not in _REMOVES
        return self.at == self.count - 1 or self.at is not None and full

    def end(self):
        if self.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(self.error, os.strerror(self.error))

    def _audit(self, event, arguments):
        if self.off:
            return
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and self.note(
                "open", arguments[0]
            ):
                self.end()
        elif event in _PATHS and self.note(event, arguments[_PATHS[event]]):
            self.end()

    def _flush(self, descriptor):
        if self.note("fsync", os.readlink(f"/proc/self/fd/{descriptor}")):
            self.end()
        self._fsync(descriptor)

    def _opener(self, opened):
        calls = self

        class Counted(io.FileIO):
            def write(self, data):
                if calls.note("write", self.name):
                    super().write(bytes(data)[: len(data) // 2])
                    calls.end()
                return super().write(data)

        def open_counted(
            file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *args, **options
        ):
            plain = "r" in mode or "+" in mode or buffering == 0 or args or options
            if plain or not isinstance(file, (str, os.PathLike)):
                return opened(file, mode, buffering, encoding, errors, newline, *args, **options)
            buffered = io.BufferedWriter(Counted(file, mode.replace("t", "").replace("b", "")))
            if "b" in mode:
                return buffered
            return io.TextIOWrapper(
                buffered, encoding, errors, newline, line_buffering=buffering == 1
            )

        return open_counted


def _kept(source, target):
    """Copy a file; one that is only ever replaced is linked."""
    return (os.link if source.endswith(".pth") else shutil.copy2)(source, target)


class Call(NamedTuple):
    kind: str
    path: str


def read_calls(log):
    return [Call(*line.split(" ", 2)[1:]) for line in Path(log).read_text().splitlines()]


# Kinds of trainings
# --------------------------------------------------------------------------------------------------


@METRICS.register_module()
class Rising(Metric):
    """A metric that is best at the last validation, so that each one replaces the best weights."""

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        return {"rising": float(self.step)}


@HOOKS.register_module()
class TellStepHook(Hook):
    def before_val(self, runner):
        Rising.step = runner.iter


_NO_VALIDATION = (
    "\nval_dataloader = val_cfg = val_evaluator = test_dataloader = test_cfg = test_evaluator = "
    "None\n"
)
_KEEP = (
    "default_hooks['checkpoint'] = dict(interval=1, max_keep_ckpts=1, by_epoch={}, save_best={})\n"
)
_BEST = (
    "\nval_evaluator = test_evaluator = dict(type='Rising')\ncustom_hooks = "
    "[dict(type='TellStepHook')]\n" + _KEEP.format(True, "'rising'")
)
_STEPS = """
train_cfg = dict(_delete_=True, type="IterBasedTrainLoop", max_iters=2, val_interval=1)
train_dataloader["sampler"] = dict(type="InfiniteSampler", shuffle=True)
log_processor["by_epoch"] = False
param_scheduler = []
"""
_AVERAGED = """
custom_hooks += [dict(type="EMAHook", ema_type="ExponentialMovingAverage", momentum=0.1)]
default_hooks["checkpoint"]["published_keys"] = ["meta", "state_dict"]
"""
IMAGES = {
    "epochs": _NO_VALIDATION + _KEEP.format(True, None),
    "iterations": _STEPS.replace("_delete_=True, ", "")
    + _NO_VALIDATION
    + _KEEP.format(False, None),
    "best": _BEST,
    "averaged": _BEST + _AVERAGED,
    "sharded": _NO_VALIDATION + _KEEP.format(True, None) + "runner_type = 'ShardedRunner'\n",
}


def _images(kind, folder):
    config = folder / f"{kind}.py"
    if not config.exists():
        write_config(config, make_images(folder / "data", per_class=1), epochs=2)
        config.write_text(config.read_text() + IMAGES[kind])
    launcher = "none"
    if kind == "sharded":
        os.environ |= dict(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=_port()
        )
        launcher = "pytorch"
    return lambda work: train(config, work, "auto", launcher=launcher)


def _port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _language(kind, folder):
    if not (folder / "train.txt").exists():
        make_text(folder)
    options = {
        "train_cfg.max_iters": 2, "train_cfg.val_interval": 1,
        "default_hooks.checkpoint.interval": 1, "default_hooks.checkpoint.max_keep_ckpts": 1,
    }  # fmt: skip
    return lambda work: train(
        small("helm-d-tiny_books.py", folder, folder, **options), work, "auto"
    )


def _few_shot(kind, folder):
    from helpers.fewshot import bundle
    from helpers.fewshot_layouts import coop

    from hypvision.clip.prompting import promptkd  # noqa: F401
    from hypvision.tasks import few_shot, few_shot_benchmark

    if not any(folder.iterdir()):
        coop(folder)
    few_shot.create_clip = few_shot_benchmark.create_clip = lambda **options: bundle()
    (cell,) = few_shot_benchmark.plan("shots", ["coop"], ["caltech101"], [1], [2])
    settings = few_shot_benchmark.Settings(
        {}, 64, epochs=2, root=str(folder), host=dict(tokens=2), best_val=True
    )

    def run(work):
        few_shot_benchmark.run_cell(cell, settings, work)

    return run


def _scaling(kind, folder):
    from hypvision.scaling import sweep

    sweep.CHECK_STEPS, sweep.SAVE_SECONDS = 5, -1
    settings = sweep.Settings(n=40, batch=32, steps=15, warmup=3, test_batches=1)
    points = [sweep.Point("power", 1.0, 0.0, -1.0, m) for m in (3, 3 + 2)]

    def run(work):
        sweep.open_results(work, settings)
        sweep.train(str(work), points, settings)

    return run


KINDS = {
    **dict.fromkeys(IMAGES, _images),
    "HELM": _language,
    "few-shot": _few_shot,
    "scaling": _scaling,
}


def training(kind, folder, work, log, at=None, error=None, states=None):
    """Train, or go on with the training in ``work``; a function of
    :class:`helpers.processes.Forks`."""
    run = KINDS[kind](kind, Path(folder))
    hypvision.engine.run.draw_results = lambda runner: None  # of a second each
    mmengine.runner.runner.collect_env = dict
    with Calls(work, log, at, error, states):
        try:
            run(Path(work))
        except HypvisionError as told:
            print(told)
            return 3
        except OSError as error:  # as the command says it
            print(explain_machine(error))
            return 3


# What is left
# --------------------------------------------------------------------------------------------------

_WHOLE = re.compile(r"(?:epoch|iter)_(\d+)\.pth")


def position(kind, work):
    """The number of the epoch or iteration that ``--resume`` goes on from; 0: it begins again; -1:
    it refuses."""
    work = Path(work)
    if kind == "scaling":
        from hypvision.checkpoints.read import read_file

        return sum(read_file(path)["step"] for path in work.glob("points/power*.pt"))
    place = next((path.parent for path in work.rglob("*.pth")), work)
    try:
        newest = newest_checkpoint(place)
    except HypvisionError:
        return -1
    return 0 if newest is None else int(_WHOLE.fullmatch(Path(newest[0]).name)[1])


def written(kind, calls):
    """The number of the newest checkpoint that was complete after these calls."""
    done = [Path(call.path) for call in calls if call.kind == "os.rename"]
    if kind == "scaling":
        saved = [path.name for path in done if path.suffix == ".pt"]
        return sum(min(5 * saved.count(name), 15) for name in set(saved))  # the last is saved twice
    return max(
        (int(match[1]) for path in done if (match := _WHOLE.fullmatch(path.name))), default=0
    )


def lost(kind, work, calls):
    """What a kill after these calls has lost: a list of sentences."""
    work, found, expected = Path(work), position(kind, work), written(kind, calls)
    problems = [] if found == expected else [f"goes on from {found}, not from {expected}"]
    best = [path for path in work.rglob("best_*.pth") if path.stat().st_size]
    if (
        any(call.kind == "os.rename" and Path(call.path).name.startswith("best_") for call in calls)
        and not best
    ):
        problems.append("no best weights are left")
    for pointer in work.rglob("last_checkpoint"):
        if not (pointer.parent / Path(pointer.read_text()).name).is_file():
            problems.append(f"last_checkpoint names '{pointer.read_text()}'")
    return problems


def files(work):
    """The names of the files that a training leaves, without its logs, and without the sums of
    published ones."""
    kept = [path for path in Path(work).rglob("*") if path.suffix in (".pth", ".pt")]
    return sorted({re.sub(r"-[0-9a-f]{8}\.pth", "-SUM.pth", path.name) for path in kept})


def whole(kind, forks, folder, states=None):
    """The calls of a training that is not broken off; what it leaves lies in ``folder/whole``."""
    (folder / "data").mkdir(parents=True)
    work, log = folder / "whole", folder / "log"
    done = forks(
        "training",
        kind,
        str(folder / "data"),
        str(work),
        str(log),
        None,
        None,
        states and str(states),
    )
    assert done.returncode == 0, done.output[-3000:]
    return read_calls(log)


def lost_at_any(kind, states, calls):
    """What a kill would have lost, by the number of the call; temporary files make no
    difference."""
    numbers = [
        n
        for n in range(1, len(calls))
        if "/." not in calls[n - 1].path and Path(states, str(n)).is_dir()
    ]
    found = {number: lost(kind, Path(states, str(number)), calls[:number]) for number in numbers}
    return {number: problems for number, problems in found.items() if problems}


def chosen(calls, removes=True):
    """The numbers of the calls from the first checkpoint on, without those of logs."""
    first = next(number for number, call in enumerate(calls) if call.kind == "os.rename")
    wanted = [
        n for n, call in enumerate(calls) if not re.search(r"\.log$|vis_data|\.py$", call.path)
    ]
    return [n for n in wanted if n >= first - 3 and (removes or calls[n].kind not in _REMOVES)]


class Broken(NamedTuple):
    number: int
    call: Call
    outcome: object
    problems: list


def walk(kind, forks, folder, calls, numbers, error=None):
    """Break off the training at each call of ``numbers``, and look at what is left.

    What was killed is also gone on with, once for each state of the files: temporary ones make no
    difference.
    """
    for number in numbers:
        work, log = folder / f"work{number}", folder / f"log{number}"
        done = forks("training", kind, str(folder / "data"), str(work), str(log), number, error)
        problems = lost(kind, work, read_calls(log)[:number])
        before = calls[number - 1]
        if error is None and before.kind.startswith("os.") and "/." not in before.path:
            again = forks(
                "training", kind, str(folder / "data"), str(work), str(folder / "again.log")
            )
            if again.returncode:
                problems.append(
                    f"the resumed training ended with {again.returncode}: {again.output[-500:]}"
                )
            elif files(work) != files(folder / "whole"):
                problems.append(f"it leaves {files(work)}")
        shutil.rmtree(work, ignore_errors=True)
        yield Broken(number, calls[number], done, problems)


def main(kinds):
    forks, bad = Forks("helpers.kills"), 0
    for error in (None, errno.ENOSPC):
        for kind in kinds or KINDS:
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                calls = whole(kind, forks, folder)
                found = list(walk(kind, forks, folder, calls, chosen(calls, error is None), error))
            broken = [one for one in found if one.problems]
            untold = [
                one for one in found if error is not None and one.outcome.returncode not in (0, 3)
            ]
            told = "kills" if error is None else f"full disks, not told: {len(untold)}"
            print(f"{kind}: {len(found)} {told}, lost: {len(broken)}", flush=True)
            for one in (*broken[:6], *untold[:3]):
                print(
                    f"    {one.number} {one.call.kind} {one.call.path}: {'; '.join(one.problems)}"
                )
            for one in untold[:2]:
                print(one.outcome.output[-900:], flush=True)
            bad += len(broken) + len(untold)
    forks.close()
    return bad


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
