"""Shared by all tests: the literal reference implementations live with the benchmarks."""

import os
import subprocess
import sys
from pathlib import Path

# One thread, here and in subprocesses: the models are tiny, and OpenMP waits badly for cores that others use.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tools" / "bench"))
# helpers of one folder that another uses
sys.path += [str(folder) for folder in sorted(Path(__file__).parent.iterdir()) if folder.is_dir()]


def pytest_configure(config):
    """Import yapf once before the workers start: see hypvision/mm/first_import.py."""
    if not hasattr(config, "workerinput"):
        subprocess.run([sys.executable, "-c", "import yapf"], stderr=subprocess.DEVNULL, check=False)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _scope():
    """mmengine's current default scope is global: what one test leaves there must not decide what the next finds."""
    yield
    if "mmengine.registry" in sys.modules:
        sys.modules["mmengine.registry"].DefaultScope._instance_dict.clear()
