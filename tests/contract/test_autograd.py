"""What is differentiated by hand: its backward is the same inside autocast, where users call it,
and outside.

Every such function of the package has a row in ``CASES``; a new one fails
``test_the_table_is_complete`` until it has.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers.cases import each
from torch import Tensor

import hypvision
from hypvision.clip.adapters.hyperclip import layer as hyperclip
from hypvision.geometry import Lorentz, lorentz, numerics, rows
from hypvision.geometry.lorentz import distances
from hypvision.helm import attention, head
from hypvision.helm import rows as helm
from hypvision.helm.experts import grouped_linear
from hypvision.losses import hier
from hypvision.models import hcformer
from hypvision.nn import LorentzBatchNorm2d, cluster_mixer, conv, functional, norm

OWN = Path(hypvision.__file__).parent


def leaf(*shape: int, size: float = 0.5) -> Tensor:
    return (size * torch.randn(shape)).requires_grad_()


def point(*shape: int) -> Tensor:
    """Points of dimension ``shape[-1]``, as leaves."""
    return lorentz.expmap0(leaf(*shape).detach(), 1.0).requires_grad_()


def curvature() -> Tensor:
    return torch.tensor(0.7, requires_grad=True)


def of(function: Callable, *args, **kwargs) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """A row of the table: what is called, and what it is differentiated by."""
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    return lambda: function(*args, **kwargs), leaves


def fresh(function: Callable, *args) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """As before, of a function that writes into its first arguments."""
    return of(
        lambda *given: function(
            *(g * 1.0 if isinstance(g, Tensor) and g.requires_grad else g for g in given)
        ),
        *args,
    )


def batch_norm() -> tuple:
    layer = LorentzBatchNorm2d(4, Lorentz(0.7, learnable=True))
    x = leaf(2, 4, 3, 3)
    return lambda: layer(x), [x, *layer.parameters()]


def turning(length: int, half: int) -> tuple[Tensor, Tensor]:
    angles = torch.randn(length, 1, half)
    return torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)


def full_heads() -> tuple:
    cos, sin = (t[:, None] for t in turning(5, 1))
    return fresh(attention._Heads.apply, leaf(2, 5, 3 * 2 * 4 + 8), cos, sin, 2, 4, 3)


def latent_heads() -> tuple:
    given = (leaf(2, 5, 2 * 6), leaf(2, 5, 2 * 2 * 6), leaf(2, 5, 2))
    return fresh(attention._LatentHeads.apply, *given, *turning(5, 1), 2, 3, 4, 1)


def cross_entropy() -> tuple:
    target = torch.arange(6)
    return of(head._CrossEntropy.apply, leaf(6, 8), leaf(10, 8), target, torch.float32, 4, True)


def triplets() -> tuple:
    drawn = torch.tensor([[0, 1, 4], [2, 3, 5], [5, 0, 2]])
    return of(hier.lca_triplet_loss, leaf(6, 4), drawn, gumbel=torch.randn(2, 3, 4))


CASES = {
    numerics._AddScaled: lambda: of(numerics.add_scaled, leaf(3, 4), leaf(3, 4), leaf(4)),
    functional._Timed: lambda: of(functional.space_time, leaf(3, 4), curvature()),
    functional._Averaged: lambda: of(
        functional.averaged, leaf(3, 4), leaf(3, 4), leaf(), curvature(), 1e-4
    ),
    numerics._Divided: lambda: of(numerics.divided, leaf(3, 4), curvature()),
    functional._Sized: lambda: of(functional.sized, point(3, 4), curvature(), 1.0),
    norm._BatchNorm: batch_norm,
    hier._TripletLoss: triplets,
    rows._InBlocks: lambda: of(
        lorentz.expmap, leaf(1024, 257, size=0.05), leaf(1024, 257, size=0.05), curvature()
    ),
    numerics._Straight: lambda: of(numerics.held, leaf(3, 4), -0.1, 0.4),
    numerics._Convert: lambda: of(lorentz.dist, point(3, 4), point(3, 4), curvature()),
    numerics._ConvertForward: lambda: of(
        numerics._ConvertForward.apply, leaf(3, 4), torch.float64, None, 1e18
    ),
    numerics._SquareNorm: lambda: of(lorentz.sqdist, point(3, 4), point(3, 4), curvature()),
    numerics._Hypotenuse: lambda: of(lorentz.projx, point(3, 4), curvature()),
    distances._AsinhRoot: lambda: of(lorentz.cdist, point(3, 4), point(5, 4), curvature()),
    numerics._Heading: lambda: of(lambda x: torch.cat(numerics.heading(x), -1), leaf(3, 4)),
    hyperclip._MapRows: lambda: of(
        lambda packed, s: hyperclip.map_several([packed], [s], 0.01)[0],
        torch.randn(12, 4),
        leaf(3, 2, 2, 2),
    ),
    hcformer._GeluLinear: lambda: of(hcformer._GeluLinear.apply, leaf(3, 4), leaf(5, 4), leaf(5)),
    functional.Attached: lambda: of(functional.Attached.apply, leaf(3, 4), leaf(5)),
    cluster_mixer._Cropped: lambda: of(cluster_mixer._Cropped.apply, leaf(2, 5, 6, 3), 1, 0, 3, 4),
    cluster_mixer._Lifted: lambda: of(cluster_mixer._Lifted.apply, leaf(3, 4), 0.7, True),
    cluster_mixer._Shared: lambda: of(
        cluster_mixer._Shared.apply, leaf(2, 3, 5), leaf(2, 5, 4), leaf(2, 3, 4)
    ),
    helm._Lift: lambda: fresh(helm._Lift.apply, leaf(3, 8), 5, curvature(), True, 0),
    head._CrossEntropy: cross_entropy,
    attention._Heads: full_heads,
    attention._LatentHeads: latent_heads,
}
every = each("function", CASES)


def subclasses(function: type) -> Iterator[type]:
    for own in function.__subclasses__():
        yield own
        yield from subclasses(own)


def test_the_table_is_complete():
    """And every function inherits from the one whose backward runs without autocast."""
    for path in OWN.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^class \w+\(.*\bFunction\)", text, re.MULTILINE):
            importlib.import_module(
                ".".join(("hypvision", *path.relative_to(OWN).with_suffix("").parts))
            )
        for given in re.findall(r"\.register_autograd\((\w+)", text):
            assert given == "without_autocast", path
    found = {
        f for f in subclasses(torch.autograd.Function) if f.__module__.startswith("hypvision.")
    }
    # what a GPU computes is tested beside the plain form, in Triton's interpreter
    assert found - {numerics.Function, norm._Fused, conv._FusedBoost} == set(CASES)
    assert all(issubclass(f, numerics.Function) for f in found)


def reaches(out: Tensor, function: type) -> bool:
    """Whether the graph of ``out`` has a node of the function."""
    queue, seen = [out.grad_fn], set()
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        if getattr(node, "_forward_cls", None) is function:
            return True
        seen.add(node)
        queue.extend(n for n, _ in node.next_functions)
    return False


def half(on: bool = True):
    return torch.autocast("cpu", torch.bfloat16, enabled=on)


def differentiated(
    call: Callable, leaves: list[Tensor], forward: bool, backward: bool, twice: bool = False
) -> list:
    """Outputs and gradients; forward and backward each inside autocast or outside, ``twice`` second
    derivatives."""

    def gradients(outs: list[Tensor], **kwargs) -> list:
        generator = torch.Generator().manual_seed(1)
        weights = [torch.randn(o.shape, generator=generator).to(o.dtype) for o in outs]
        return list(torch.autograd.grad(outs, leaves, weights, allow_unused=True, **kwargs))

    torch.manual_seed(2)
    with half(forward):
        out = call()
    outs = [o for o in (out if isinstance(out, tuple) else (out,)) if o is not None]
    with half(backward):
        if twice:
            first = [
                g for g in gradients(outs, create_graph=True) if g is not None and g.requires_grad
            ]
            return [outs, gradients(first)]
        return [outs, gradients(outs)]


@every
def test_a_backward_inside_autocast_is_that_outside(function):
    torch.manual_seed(0)
    call, leaves = CASES[function]()
    for forward in (True, False):
        outs, expected = differentiated(call, leaves, forward, backward=False)
        assert any(reaches(o, function) for o in outs), "the case does not reach the function"
        _, found = differentiated(call, leaves, forward, backward=True)
        for a, b in zip(found, expected, strict=True):
            assert (a is None) == (b is None)
            assert a is None or a.dtype == b.dtype and torch.equal(a, b)


@each("function", [f for f in CASES if "@once_differentiable" not in inspect.getsource(f)])
def test_second_derivatives_inside_autocast(function):
    """They come from plain operations, whose own products PyTorch takes in half precision there."""
    torch.manual_seed(0)
    call, leaves = CASES[function]()
    _, expected = differentiated(call, leaves, True, backward=False, twice=True)
    _, found = differentiated(call, leaves, True, backward=True, twice=True)
    for a, b in zip(found, expected, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.05 * b.abs().max().item())


def test_operations_of_compilers_too():
    """An operation with a registered backward, as :func:`hypvision.helm.experts.grouped_linear`."""
    torch.manual_seed(0)
    x, weights = leaf(5, 4), [leaf(3, 4), leaf(3, 4)]

    def call() -> Tensor:
        return grouped_linear(x, torch.tensor([2, 3]), weights, [])

    _, expected = differentiated(call, [x, *weights], False, backward=False)
    _, found = differentiated(call, [x, *weights], False, backward=True)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.slow
def test_compiled_functions_too():
    torch.manual_seed(0)
    call, leaves = CASES[numerics._Convert]()
    _, expected = differentiated(call, leaves, True, backward=False)
    torch._dynamo.reset()
    _, found = differentiated(
        torch.compile(call, backend="aot_eager", fullgraph=True), leaves, True, backward=True
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
