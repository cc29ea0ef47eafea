"""Measure once per process whether a CPU is fast in bfloat16.

A CPU without instructions for bfloat16 emulates them and is more than ten times slower in it than
in float32. One with them may be slower, too: 1 to 1.8 times was measured on CPUs with vector
(AVX-512) but no tile instructions. Code that uses bfloat16 only for speed asks this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import torch
from timm.optim import Muon as TimmMuon
from timm.optim import muon as _muon

_SIZE = 256
_TRIES = 5
_LIMIT = 2.0  # ratio of times: below 2 on CPUs with bfloat16 instructions, above 10 on others
_GAIN = 0.8  # margin for noise, so that all processes of a machine decide alike


@lru_cache(maxsize=1)
def slowness_of_bfloat16() -> float:
    """How many times longer a product of matrices takes in bfloat16 than in float32 on this CPU."""
    return _seconds(torch.bfloat16) / _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    matrix = torch.ones(_SIZE, _SIZE, dtype=dtype)
    matrix @ matrix  # the first call includes set-up
    best = float("inf")
    for _ in range(_TRIES):
        begin = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - begin)
    return best


def has_fast_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16, going by its speed."""
    return slowness_of_bfloat16() <= _LIMIT


class Muon(TimmMuon):
    """timm's, which orthogonalises in bfloat16, but in float32 on a CPU that is not faster in
    bfloat16."""

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """One step; see :class:`timm.optim.Muon`."""
        on_cpu = all(p.device.type == "cpu" for group in self.param_groups for p in group["params"])
        if not on_cpu or slowness_of_bfloat16() < _GAIN:
            return super().step(closure)
        _muon.zeropower_via_newtonschulz = _in_float32  # timm has no option for it
        try:
            return super().step(closure)
        finally:
            _muon.zeropower_via_newtonschulz = _orthogonalised


_orthogonalised = _muon.zeropower_via_newtonschulz


def _in_float32(*args, **kwargs):
    return _orthogonalised(*args, **{**kwargs, "dtype": torch.float32})
