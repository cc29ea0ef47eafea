"""Processes: a copy of this one, which has all imports behind it, and two gloo processes that run a script."""

import os
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace


def forked(work):
    """Run a function in a fork of this process; its ``returncode`` (minus a signal that ended it) and ``output``.

    A new interpreter would spend seconds on importing PyTorch: take one only where starting or importing is tested, or
    where the function trains, which PyTorch refuses in a fork of a process that has trained.
    """
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                sys.stdout = sys.stderr = os.fdopen(2, "w", closefd=False)
                status = work() or 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return SimpleNamespace(returncode=status, output=said.read().decode())


def run_in_two(code, folder, modules):
    """Run ``code`` under ``torchrun`` with two processes, which find the test modules beside ``modules``.

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
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += [f"--master-port={port}", str(script)]
    paths = [Path(modules).parent, Path(__file__).parents[1], *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = dict(
        os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", PYTHONPATH=os.pathsep.join(map(str, paths))
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr[-3000:]
