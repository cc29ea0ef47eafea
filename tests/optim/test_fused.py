"""The step in one kernel of a GPU: Triton's interpreter runs it here, and its compiler compiles it
for two GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hypvision.geometry import Lorentz, ManifoldParameter, PoincareBall
from hypvision.optim import RiemannianAdam, RiemannianAdamW, RiemannianSGD, fused
from hypvision.optim.kernels import kernel_of

CASES = {
    "adam": (RiemannianAdam, dict(lr=0.05)),
    "adam with decay": (RiemannianAdam, dict(lr=0.05, amsgrad=True, weight_decay=0.1)),
    "adamw": (RiemannianAdamW, dict(lr=0.05, weight_decay=0.3)),
    "sgd": (RiemannianSGD, dict(lr=0.02)),
    "momentum": (RiemannianSGD, dict(lr=0.02, momentum=0.9, dampening=0.1, weight_decay=0.1)),
}


def train(name: str, one_kernel: bool) -> list[torch.Tensor]:
    """Points, large and small parameters, and their states after some steps."""
    torch.manual_seed(0)
    kind, options = CASES[name]
    manifold = Lorentz(0.7, learnable=True)
    radii = torch.linspace(0, 12 if kind is not RiemannianSGD else 2, 20).unsqueeze(1)
    starts = [radii * torch.nn.functional.normalize(torch.randn(20, 5), dim=-1), *torch.randn(2, 5)]
    points = [ManifoldParameter(manifold.from_tangent0(u).detach(), manifold) for u in starts]
    optimizer = kind(points, **options)
    fused.fits = (lambda *_: True) if one_kernel else (lambda *_: False)
    for _ in range(4):
        for parameter in points:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    states = [state for parameter in points for state in optimizer.state[parameter].values()]
    return [parameter.detach() for parameter in points] + states


def compare() -> None:
    """Both forms of every case, in a process that interprets kernels."""
    for name in CASES:
        for one, other in zip(train(name, True), train(name, False), strict=True):
            torch.testing.assert_close(
                one, other, rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
            )
    # rows that lie apart, more than a program takes, one of them with a gradient without a number
    torch.manual_seed(0)
    manifold = Lorentz(0.7)
    space = torch.randn(300, 5)
    apart = torch.zeros(300, 12)
    x = apart[:, 3:9]
    whole = manifold.from_space(space).contiguous()
    x.copy_(whole)
    grad = torch.randn(600, 6)[::2]
    grad[7] = float("nan")
    found = []
    for points in (x, whole):
        m, v = torch.zeros(300, 5), torch.zeros(300, 1)
        fused.step_(points, grad, 0.7, m, v, None, 0.1, 0.9, 0.1, 0.001, 1e-8, 0.0, 0.0)
        found.append((points, m))
    for one, other in zip(*found):
        assert torch.equal(one.isnan().any(1), torch.arange(300) == 7)
        torch.testing.assert_close(one, other, equal_nan=True)
    assert not apart[:, [0, 1, 2, 9, 10, 11]].any()
    # products that overflow in float32, and a step that no number holds
    far = Lorentz(1.0).expmap0(torch.tensor([[39.0, 0.0], [0.0, 0.0]]))
    m, v = torch.zeros(2, 2), torch.zeros(2, 1)
    numbers = (1e8, 0.9, 0.1, 0.001, 1e-8, 0.0, 0.0)
    for sign in (1, -1):
        fused.step_(far, sign * torch.full((2, 3), 1e15), 1.0, m, v, None, *numbers)
        Lorentz(1.0).check_point(far)
        assert m.isfinite().all() and v.isfinite().all()


def test_the_kernel_computes_the_plain_step():
    pytest.importorskip("triton")
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join(map(str, (tests.parent, tests, Path(__file__).parent)))
    environment = dict(os.environ, TRITON_INTERPRET="1", PYTHONPATH=paths)
    code = "from test_fused import compare; compare()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("states", [("m", "v", "most"), ("m", "v"), ("m",), ()], ids=len)
def test_it_compiles(architecture, states):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants = {}, {"ROWS": 16, "BLOCK": 64}
    for name in fused._step.arg_names:
        pointer = name in ("x", "grad", "c", *states)
        whole = name in ("rows", "n") or name.endswith("_row")
        signature[name] = "*fp32" if pointer else "i32" if whole else "fp32"
        if name in ("m", "v", "most") and not pointer:
            constants[name] = None
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        fused._step, signature, {(fused._step.arg_names.index(k),): v for k, v in constants.items()}
    )
    assert triton.compile(source, target=GPUTarget("cuda", architecture, 32)).asm["cubin"]


def test_what_it_fits():
    x = torch.empty(3, 5, device="meta")
    lorentz, ball = kernel_of(Lorentz()), kernel_of(PoincareBall())
    assert fused.fits(lorentz, 0.1, x, None)
    assert not fused.fits(ball, 0.1, x)
    assert not fused.fits(lorentz, torch.tensor(0.1), x)  # it would have to be read
    assert not fused.fits(lorentz, 0.1, x.double())
    assert not fused.fits(lorentz, 0.1, x.t())
    assert not fused.fits(lorentz, 0.1, torch.empty(3, fused.WIDEST + 1, device="meta"))
    assert not fused.fits(lorentz, 0.1, torch.empty(3, 5))
