"""Shared by all tests: the literal reference implementations live with the benchmarks."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tools" / "bench"))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
