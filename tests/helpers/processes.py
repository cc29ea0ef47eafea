"""Processes: copies of this one or of a fresh one, with all imports behind them; two gloo ones that
run a script."""

import importlib
import json
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace


def forked(work):
    """Run a function in a fork of this process; its ``returncode`` (minus a signal that ended it)
    and ``output``.

    A new interpreter would spend seconds on importing PyTorch: take one only where starting or
    importing is tested, or where the function trains, which PyTorch refuses in a fork of a process
    that has trained.
    """
    reading, writing = os.pipe()  # not a file, of which a test may have forbidden the writing
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os.close(writing)
            sys.stdout = sys.stderr = os.fdopen(2, "w", closefd=False)
            status = work() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        output = said.read().decode(errors="replace")
    return SimpleNamespace(
        returncode=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output=output
    )


class Forks:
    """Runs functions of a module in forks of a process that has imported the module and done
    nothing else.

    For what trains, which PyTorch refuses in a fork of a process that has trained.
    """

    def __init__(self, module):
        tests = Path(__file__).parents[1]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, (tests, tests.parent))))
        code = f"from helpers.processes import serve; serve({module!r})"
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, text=True, **pipes
        )

    def __call__(self, name, *arguments):
        """The outcome of a function, as of :func:`forked`; the arguments are such as JSON takes."""
        print(json.dumps([name, arguments]), file=self._process.stdin, flush=True)
        return SimpleNamespace(**json.loads(self._process.stdout.readline()))

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def serve(module):
    """What the process of :class:`Forks` does."""
    asked, answers = sys.stdin, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imports print
    functions = importlib.import_module(module)
    for line in asked:
        name, arguments = json.loads(line)
        done = forked(lambda name=name, arguments=arguments: getattr(functions, name)(*arguments))
        print(json.dumps(vars(done)), file=answers, flush=True)


# What ``torchrun`` does, but the two processes are forks of one that has imported what both need.
TWO = """
import os, runpy, signal, sys, traceback
import hypvision, torch, torch.distributed

waiting = {}
for rank in range(2):
    child = os.fork()
    if child:
        waiting[child] = rank
        continue
    status = 1
    try:
        os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank))
        runpy.run_path(sys.argv[1], run_name="__main__")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
failed = False
while waiting:
    child, status = os.wait()
    del waiting[child]
    if status and not failed:
        failed = True
        for other in waiting:
            os.kill(other, signal.SIGKILL)
sys.exit(failed)
"""


def run_in_two(code, folder, modules):
    """Run ``code`` in two processes of one group, which find the test modules beside ``modules``.

    Args:
        code: a script.
        folder: where it is written to.
        modules: a file in the folder of the modules that it imports.
    """
    script = folder / "worker.py"
    script.write_text(code)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = [
        Path(modules).parent,
        Path(__file__).parents[1],
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    environment = dict(
        os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
        PYTHONPATH=os.pathsep.join(map(str, paths)), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
    )  # fmt: skip
    command = [sys.executable, "-c", TWO, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr[-3000:]
