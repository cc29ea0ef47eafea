"""Shared by all tests, which import the packages `references` and `helpers` beside this file (see `pythonpath`)."""

import gc
import os
import re
import subprocess
import sys

# One thread, here and in subprocesses: the models are tiny, and OpenMP waits badly for cores that others use.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


def pytest_configure(config):
    """Import yapf once before the workers start: see hypvision/engine/mmengine_import.py."""
    if not hasattr(config, "workerinput"):
        subprocess.run([sys.executable, "-c", "import yapf"], stderr=subprocess.DEVNULL, check=False)


def pytest_collection_finish():
    """What is imported by now stays: gc.collect(), which mmengine calls for every data set, need not look at it."""
    gc.collect()
    gc.freeze()


def lay_out(text, **_):
    """Instead of yapf, which takes longer for the config of a run than a small training: ``NAME = VALUE`` in lines."""
    return re.sub(r"^(\w+)=", r"\1 = ", text, flags=re.M), True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if "hypvision.engine.checkpoint" in sys.modules:
        sys.modules["mmengine.config.config"].FormatCode = lay_out


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _scope():
    """mmengine's scope and logger are global: what one test leaves there must not decide what the next finds."""
    yield
    if "mmengine.registry" in sys.modules:
        sys.modules["mmengine.registry"].DefaultScope._instance_dict.clear()
    if "mmengine.logging" in sys.modules:  # its log file may be closed by then, which mmengine does not expect
        sys.modules["mmengine.logging"].MMLogger._instance_dict.clear()
