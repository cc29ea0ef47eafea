"""Measure once per process whether a CPU is fast in bfloat16.

A CPU without instructions for bfloat16 emulates them and is more than ten times slower in it than
in float32. A CPU with such instructions may be slower, too: 1 to 1.8 times was measured on CPUs
with vector (AVX-512) but no tile instructions. Code that uses bfloat16 only for speed asks this
module.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from unittest.mock import patch

import torch
from timm.optim import Muon as TimmMuon
from timm.optim import muon as _muon

_SIZE = 256
_TRIES = 5
# The limit of bfloat16's time divided by float32's: CPUs with bfloat16 instructions are below 2,
# others above 10.
_LIMIT = 2.0
# A margin for noise, so that all processes of a machine decide alike.
_GAIN = 0.8


@lru_cache(maxsize=1)
def slowness_of_bfloat16() -> float:
    """Return how many times longer a product of matrices takes in bfloat16 than in float32 on this
    CPU."""
    return _seconds(torch.bfloat16) / _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    matrix = torch.ones(_SIZE, _SIZE, dtype=dtype)
    matrix @ matrix  # The first call includes set-up.
    best = float("inf")
    for _ in range(_TRIES):
        begin = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - begin)
    return best


def has_fast_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16, judged by its speed."""
    return slowness_of_bfloat16() <= _LIMIT


class Muon(TimmMuon):
    """timm's Muon, which orthogonalises in bfloat16; here it does so in float32 on a CPU that is
    not faster in bfloat16."""

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Do one step of the optimiser; see :class:`timm.optim.Muon`."""
        on_cpu = all(p.device.type == "cpu" for group in self.param_groups for p in group["params"])
        if not on_cpu or slowness_of_bfloat16() < _GAIN:
            return super().step(closure)
        # timm has no option for the dtype, so its function is replaced during the step.
        with patch.object(_muon, "zeropower_via_newtonschulz", _in_float32):
            return super().step(closure)


_orthogonalised = _muon.zeropower_via_newtonschulz


def _in_float32(*args, **kwargs):
    return _orthogonalised(*args, **{**kwargs, "dtype": torch.float32})
