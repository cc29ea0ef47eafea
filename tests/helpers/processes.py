"""Two gloo processes that run a script."""

import os
import socket
import subprocess
import sys
from pathlib import Path


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
