"""Triton kernels: right in Triton's interpreter, and they compile for GPUs."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hypvision import nn as hnn
from hypvision.geometry import Lorentz
from hypvision.nn import conv, norm

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from hypvision.nn import kernels  # noqa: E402


@pytest.mark.slow
def test_the_interpreter_agrees_with_the_plain_form():
    file = Path(__file__).with_name("interpreted_kernels.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    run = subprocess.run(
        command, env=dict(os.environ, TRITON_INTERPRET="1"), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert "passed" in run.stdout and "skipped" not in run.stdout


class Compiled:
    """In place of a kernel: compiles it for a GPU with the arguments of a launch."""

    types = {torch.float32: "*fp32", torch.float64: "*fp64"}

    def __init__(self, kernel, target, names):
        self.kernel, self.target, self.names = kernel, target, names

    def __getitem__(self, grid):
        return self.call

    def call(self, *args, **kwargs):
        given = inspect.signature(self.kernel.fn).bind(*args, **kwargs).arguments
        fixed = {p.name for p in self.kernel.params if p.is_constexpr}
        # a launch compiles the number 1 as a constant, too
        fixed |= {name for name, value in given.items() if isinstance(value, int) and value == 1}
        kinds = {
            name: self.types[value.dtype]
            for name, value in given.items()
            if isinstance(value, torch.Tensor)
        }
        signature = {
            name: "constexpr" if name in fixed else kinds.get(name, "i32") for name in given
        }
        source = ASTSource(self.kernel, signature, {name: given[name] for name in fixed})
        assert len(triton.compile(source, target=self.target).asm["ptx"]) > 0
        self.names.append(self.kernel.fn.__name__)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize(("shape", "slope"), [((4, 64, 16, 16), None), ((1, 5, 1, 7), 2.0)])
def test_they_compile_for_gpus(shape, slope, architecture, monkeypatch, tmp_path):
    """Without one: a launch on tensors without data compiles."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    names = []
    for name, kernel in list(vars(kernels).items()):
        if isinstance(kernel, triton.JITFunction) and not name.startswith("_"):
            monkeypatch.setattr(
                kernels, name, Compiled(kernel, GPUTarget("cuda", architecture, 32), names)
            )
    for module in (norm, conv):
        monkeypatch.setattr(module, "on_gpu", lambda x: True)
    layer = hnn.LorentzBatchNorm2d(shape[1], Lorentz(0.7, learnable=True), slope=slope).to("meta")
    x = torch.empty(shape, device="meta", requires_grad=True)
    layer(x).sum().backward()
    with torch.no_grad():
        layer.eval()(x)
    assert len(names) == 4 + 6 + 2 and len(set(names)) == 9
    names.clear()
    convolution = hnn.EfficientLorentzConv2d(
        shape[1], 4, 1, Lorentz(0.7, learnable=True), slope=slope
    ).to("meta")
    convolution(x).sum().backward()
    assert names == ["boost_numbers", "boost_numbers_back"]
