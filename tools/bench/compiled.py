"""Kernels of compiled steps: into how many loops, functions and products inductor turns a layer,
forward and backward, on a CPU, and how long that takes.

Loops are counted from inductor's own counter. The counts need no C++ compiler, which takes most of
the time: its functions are made and counted, but only ``--run`` builds them. Times are seconds of
one core, not of the clock, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import timm
import torch
from torch import Tensor, nn

from hypvision.geometry import Lorentz
from hypvision.nn import ClusterMixer, LorentzBatchNorm2d


class Case(NamedTuple):
    """A layer, the shape of its input, and the most loops that a test allows it."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    most: int | None = None


class Made(NamedTuple):
    """What a compilation makes: loops, functions, and seconds of a core spent in Python and in the
    C++ compiler."""

    loops: int
    functions: int
    python: float
    compiler: float


def _mixer() -> nn.Module:
    network = timm.create_model("hcformer_nano")
    return next(part for part in network.modules() if isinstance(part, ClusterMixer))


def _norm() -> nn.Module:
    return LorentzBatchNorm2d(64, Lorentz(1.0, learnable=True))


CASES = {
    "LorentzBatchNorm2d, 64 x 64 x 32 x 32": Case(_norm, (64, 64, 32, 32), 61),
    "a ClusterMixer of hcformer_nano, 4 x 56 x 56 x 32": Case(_mixer, (4, 56, 56, 32), 121),
}


@contextmanager
def _fresh() -> Iterator[None]:
    """Compile anew, in this process alone."""
    torch._dynamo.reset()
    with (
        torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield
    torch._dynamo.reset()


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Functions that do nothing, in place of those that the C++ compiler builds."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    def nothing(*_: Any, **__: Any) -> Callable[..., None]:
        return lambda *_: None

    with (
        patch.object(CppPythonBindingsCodeCache, "load_pybinding", nothing),
        torch._inductor.config.patch("cpp.vec_isa_ok", True),
    ):
        yield


def _spent() -> tuple[float, float]:
    """Seconds of a core that this process and its children took."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    own, children = (resource.getrusage(each).ru_utime for each in who)
    return own, children


def made(case: Case, build: bool = False) -> Made:
    """Compile a layer, forward and backward; ``build``: with the C++ compiler."""
    from torch._inductor import metrics
    from torch._inductor.async_compile import AsyncCompile

    torch.manual_seed(0)
    layer = case.make().train()
    x: Tensor = torch.randn(case.shape).requires_grad_()
    function = AsyncCompile.cpp_pybinding
    with (
        _fresh(),
        nullcontext() if build else _without_compiler(),
        patch.object(AsyncCompile, "cpp_pybinding", autospec=True, side_effect=function) as calls,
    ):
        metrics.reset()
        before = _spent()
        torch.compile(layer, fullgraph=True)(x).sum().backward()
        own, children = (after - start for after, start in zip(_spent(), before))
        return Made(metrics.generated_kernel_count, calls.call_count, own, children)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--run", action="store_true", help="build by the C++ compiler, too")


def run(args: argparse.Namespace) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    print(
        f"`tools/benchmark.py compiled{' --run' if args.run else ''}`\n\n"
        f"PyTorch {torch.__version__}, inductor on a CPU, one thread; forward and backward.\n\n"
        "| layer | loops | functions | seconds of a core: Python | C++ compiler |\n"
        "|---|--:|--:|--:|--:|"
    )
    for name, case in CASES.items():
        found = made(case, args.run)
        compiler = f"{found.compiler:.1f}" if args.run else ""
        print(f"| {name} | {found.loops} | {found.functions} | {found.python:.1f} | {compiler} |")
