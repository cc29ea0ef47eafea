"""Commands in a working directory that has been removed."""

import subprocess
import sys
from pathlib import Path

import pytest

import hypvision

SCRIPT = Path(hypvision.__file__).parents[1] / "hypvision_cli.py"


@pytest.mark.skipif(sys.platform == "win32", reason="a working directory cannot be removed there")
@pytest.mark.parametrize(
    "command", ["--help", "train config", "zoo list", "predict a.png --model resnet18"]
)
def test_a_gone_working_directory_is_a_sentence(tmp_path, command):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, runpy, sys; os.rmdir(os.getcwd()); del sys.argv[0]; "
        "runpy.run_path(sys.argv[0], None, '__main__')"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT), *command.split()], cwd=gone, capture_output=True,
        text=True, env={"PYTHONPATH": str(SCRIPT.parent)},
    )  # fmt: skip
    assert run.returncode == 2
    assert "working directory no longer exists" in run.stderr and "Traceback" not in run.stderr
