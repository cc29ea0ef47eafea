"""One suite over all layers: equal to a reference implementation, finite, and good citizens of
PyTorch."""

import copy
import io
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from helpers.cases import each
from references import layers as reference
from torch import nn

from hypvision import compat as pub
from hypvision import nn as hnn
from hypvision.geometry import Euclidean, Lorentz, PoincareBall, Product, named_manifold_parameters

C = 0.7


def maps(batch=3, channels=6, side=7):
    return torch.randn(batch, channels, side, side)


def tokens(batch=3, length=5, dim=6):
    return torch.randn(batch, length, dim)


def sequences(batch=3, channels=6, length=9):
    return torch.randn(batch, channels, length)


def rows():
    return torch.randn(5, 6)


def indices():
    return torch.tensor([[1, 2, 2], [0, 9, 4]])


def ball_points(batch=5, dim=6):
    return PoincareBall(C).from_tangent0(torch.randn(batch, dim))


def ball_maps():
    return PoincareBall(C).from_tangent0(torch.randn(3, 5, 4, 6)).movedim(-1, 1)


def lorentz_points():
    return Lorentz(C).from_tangent0(torch.randn(5, 6))


def conv_patches(layer, x):
    columns = F.unfold(x, layer.kernel_size, 1, layer.padding, layer.stride)
    return columns.transpose(1, 2)


def run_efficient_conv(layer, x, c):
    out = reference.efficient(layer, x, c, conv_patches(layer, x))
    side = (x.shape[2] + 2 * layer.padding[0] - layer.kernel_size[0]) // layer.stride[0] + 1
    return out.transpose(1, 2).unflatten(2, (side, -1))


def run_transposed(layer, x, c):
    rows = torch.zeros(
        *x.shape[:2], (x.shape[2] - 1) * 2 + 1, (x.shape[3] - 1) * 2 + 1, dtype=x.dtype
    )
    rows[..., ::2, ::2] = x
    return F.pad(reference.lorentz_conv2d(layer.conv, rows, c), (0, 1, 0, 1))


def channels_last(function):
    def apply(layer, x, c):
        return function(layer, x.flatten(2).transpose(1, 2), c).transpose(1, 2).reshape(x.shape)

    return apply


class Residual(hnn.LorentzResidual):
    """Of ``x`` and a function of itself."""

    def forward(self, x):
        return super().forward(x, 0.5 * x.flip(0))


def conv1d_patches(layer, x):
    padded = F.pad(x, (layer.padding[0],) * 2).unfold(2, layer.kernel_size[0], layer.stride[0])
    return padded.transpose(1, 2).flatten(2)


def on_space(layer, x, c):
    return reference.points(layer.module(x[:, 1:]), c)


def on_hyperboloid(layer, x, c):
    return reference.points(
        reference.exponential(layer.module(reference.logarithm(x[:, 1:], c)), c), c
    )


def paired(layer, x, c):
    return reference.residual(layer, x, 0.5 * x.flip(0), c)


class Case(NamedTuple):
    """A layer in the suite.

    ``make`` builds it on a manifold of this ``kind``; ``reference`` computes the same. ``gives``
    says what comes out: ``"space"`` parts, ``"points"`` or ``"numbers"``, along dimension ``dim``.
    ``block`` builds a layer, with the inits that it has by default, that takes what it gives, to be
    stacked.
    """

    make: Callable
    inputs: Callable
    reference: Callable
    kind: type = Lorentz
    gives: str = "space"
    dim: int = -1
    block: Callable | None = None
    # whether the test of compilation takes it: variants that run the same operations do not
    compiled: bool = True
    # whether radii stay because of the layer; else it has no parameters that could see to that
    keeps: bool = True
    # what comes before the layer, or behind, 50 times, where it does not go with itself
    before: Callable | None = None
    behind: Callable | None = None

    def network(self, manifold):
        """50 blocks, or None for variants of a layer that another case stacks."""
        if self.block is not None:
            return [self.block(manifold) for _ in range(50)]
        if self.before is not None:
            return [*(self.before(manifold) for _ in range(50)), self.make(manifold)]
        return self.behind and [self.make(manifold), *(self.behind(manifold) for _ in range(50))]


B = PoincareBall
lin, efficient_linear = (
    reference.lorentz_linear,
    (lambda layer, x, c: reference.efficient(layer, x, c, x)),
)
other = {"compiled": False}
LAYERS = {
    "linear": Case(lambda m: hnn.LorentzLinear(6, 9, m), tokens, lin,
    block=lambda m: hnn.LorentzLinear(6, 6, m)),
    "linear_uniform": Case(lambda m: hnn.LorentzLinear(6, 9, m, init="uniform"), tokens, lin,
    **other),
    "linear_xavier": Case(lambda m: hnn.LorentzLinear(6, 9, m, init="xavier"), tokens, lin,
    **other),
    "linear_orthogonal": Case(
        lambda m: hnn.LorentzLinear(6, 4, m, bias=False, init="orthogonal"), tokens, lin, **other,
        block=lambda m: hnn.LorentzLinear(6, 6, m, init="orthogonal"),
    ),
    "linear_between_manifolds": Case(lambda m: hnn.LorentzLinear(6, 9, m,
    manifold_out=Lorentz(1.3)), tokens, lin),
    "linear_normalized": Case(
        lambda m: hnn.LorentzLinear(6, 9, m, normalize=True), tokens, lin,
        block=lambda m: hnn.LorentzLinear(6, 6, m, normalize=True),
    ),
    "linear_chen": Case(
        lambda m: hnn.LorentzLinear(6, 9, m, normalize="time", learn_scale=True), tokens, lin,
        block=lambda m: hnn.LorentzLinear(6, 6, m, normalize="time"),
    ),
    "fgg": Case(
        lambda m: pub.FGGLinear(6, 9, m), tokens, reference.fgg_linear,
        block=lambda m: pub.FGGLinear(6, 6, m)
    ),
    "fgg_identity": Case(lambda m: pub.FGGLinear(6, 9, m, init="identity"), tokens,
    reference.fgg_linear, **other),
    "fgg_kaiming": Case(lambda m: pub.FGGLinear(6, 4, m, init="kaiming"), tokens,
    reference.fgg_linear, **other),
    "fgg_mlr": Case(lambda m: pub.FGGLinear(6, 4, m, init="mlr"), tokens, reference.fgg_linear,
    **other),
    "fgg_weight_norm": Case(
        lambda m: pub.FGGLinear(6, 9, m, weight_norm=True), tokens, reference.fgg_linear,
        block=lambda m: pub.FGGLinear(6, 6, m, weight_norm=True),
    ),
    "fgg_weight_norm_xavier": Case(
        lambda m: pub.FGGLinear(6, 9, m, nn.ReLU(), "xavier", weight_norm=True), tokens,
        reference.fgg_linear, **other
    ),
    "plfc": Case(
        lambda m: pub.PLFCLinear(6, 9, m), tokens, reference.plfc, block=lambda m: pub.PLFCLinear(6,
        6, m)
    ),
    "plfc_normal": Case(lambda m: pub.PLFCLinear(6, 4, m, init="normal"), tokens, reference.plfc,
    **other),
    "conv1d": Case(
        lambda m: hnn.LorentzConv1d(6, 8, 3, m, 2, 1, 2), sequences, reference.lorentz_conv1d,
        dim=1, block=lambda m: hnn.LorentzConv1d(6, 6, 3, m, padding=1),
    ),
    "conv2d": Case(
        lambda m: hnn.LorentzConv2d(6, 8, 3, m, padding=1), maps, reference.lorentz_conv2d, dim=1,
        block=lambda m: hnn.LorentzConv2d(6, 6, 3, m, padding=1),
    ),
    "conv2d_strided": Case(
        lambda m: hnn.LorentzConv2d(6, 8, 3, m, stride=2, bias=False), maps,
        reference.lorentz_conv2d, dim=1, **other
    ),
    "conv2d_dilated": Case(
        lambda m: hnn.LorentzConv2d(6, 8, (3, 2), m, 1, (2, 1), (2, 1)), maps,
        reference.lorentz_conv2d, dim=1
    ),
    "conv2d_shortcut": Case(
        lambda m: hnn.LorentzConv2d(6, 8, 1, m, stride=2), maps, reference.lorentz_conv2d, dim=1,
        **other
    ),
    "conv_transpose": Case(
        lambda m: hnn.LorentzConvTranspose2d(6, 8, 3, m, stride=2, padding=1, output_padding=1),
        maps, run_transposed, dim=1,
        block=lambda m: hnn.LorentzConvTranspose2d(6, 6, 3, m, padding=1),
    ),
    "patch_embed": Case(
        lambda m: pub.LorentzPatchEmbed(6, 8, 3, m), maps,
        lambda layer, x, c: reference.lorentz_conv2d(layer.proj, x, c).flatten(2).transpose(1, 2),
        block=lambda m: pub.LorentzPatchEmbed(6, 6, 1, m, flatten=False),
    ),
    "efficient_conv1d": Case(
        lambda m: hnn.EfficientLorentzConv1d(6, 8, 3, m, 2, 1), sequences, lambda layer, x,
        c: reference.efficient(layer, x, c, conv1d_patches(layer, x)).transpose(1, 2), dim=1,
        block=lambda m: hnn.EfficientLorentzConv1d(6, 6, 3, m, padding=1),
    ),
    "efficient_conv": Case(
        lambda m: hnn.EfficientLorentzConv2d(6, 8, 3, m, padding=1), maps, run_efficient_conv,
        dim=1, block=lambda m: hnn.EfficientLorentzConv2d(6, 6, 3, m, padding=1),
    ),
    "efficient_conv_cayley": Case(
        lambda m: hnn.EfficientLorentzConv2d(6, 16, 1, m, stride=2), maps, run_efficient_conv, dim=1
    ),
    "efficient_linear": Case(
        lambda m: hnn.EfficientLorentzLinear(6, 4, m, boost="full"), tokens, efficient_linear,
        block=lambda m: hnn.EfficientLorentzLinear(6, 6, m),
    ),
    "efficient_linear_cayley": Case(
        lambda m: hnn.EfficientLorentzLinear(6, 8, m, boost="scale", slope=3.0), tokens,
        efficient_linear, block=lambda m: hnn.EfficientLorentzLinear(6, 6, m, boost="scale"),
    ),
    "batch_norm2d": Case(
        lambda m: hnn.LorentzBatchNorm2d(6, m), maps, channels_last(reference.batch_norm), dim=1,
        block=lambda m: hnn.LorentzBatchNorm2d(6, m),
    ),
    "batch_norm2d_rescaled": Case(
        lambda m: hnn.LorentzBatchNorm2d(6, m, slope=2.0), maps,
        channels_last(reference.batch_norm), dim=1,
        block=lambda m: hnn.LorentzBatchNorm2d(6, m, slope=2.0),
    ),
    "batch_norm1d": Case(
        lambda m: hnn.LorentzBatchNorm1d(6, m), tokens, reference.batch_norm,
        block=lambda m: hnn.LorentzBatchNorm1d(6, m),
    ),
    "gyro_batch_norm2d": Case(
        lambda m: pub.GyroLorentzBatchNorm2d(6, m), maps, channels_last(reference.batch_norm),
        dim=1, block=lambda m: pub.GyroLorentzBatchNorm2d(6, m),
    ),
    "gyro_batch_norm1d": Case(
        lambda m: pub.GyroLorentzBatchNorm1d(6, m), tokens, reference.batch_norm,
        block=lambda m: pub.GyroLorentzBatchNorm1d(6, m),
    ),
    "layer_norm": Case(
        lambda m: hnn.LorentzLayerNorm(6), tokens, reference.layer_norm,
        block=lambda m: hnn.LorentzLayerNorm(6)
    ),
    "rms_norm": Case(
        lambda m: hnn.LorentzRMSNorm(6), tokens, reference.rms_norm,
        block=lambda m: hnn.LorentzRMSNorm(6)
    ),
    "global_pool": Case(
        lambda m: hnn.LorentzGlobalAvgPool2d(m), maps, lambda layer, x,
        c: reference.global_pool(x, c), before=lambda m: hnn.LorentzConv2d(6, 6, 3, m, padding=1),
    ),
    "average_pool": Case(
        lambda m: hnn.LorentzAvgPool2d(3, m, 2, 1), maps, reference.average_pool, dim=1,
        block=lambda m: hnn.LorentzAvgPool2d(3, m, 1, 1), keeps=False,
    ),
    "residual_space": Case(
        lambda m: Residual(m), tokens, paired, block=lambda m: Residual(m, slope=2.0), keeps=False
    ),
    "residual_space_rescaled": Case(lambda m: Residual(m, slope=2.0), tokens, paired, **other),
    "residual_average": Case(
        lambda m: Residual(m, "average"), tokens, paired, block=lambda m: Residual(m, "average"),
        keeps=False
    ),
    "residual_average_scaled": Case(
        lambda m: Residual(m, "average", scale="learned"), tokens, paired, **other,
        block=lambda m: Residual(m, "average", scale="learned", slope=2.0),
    ),
    "residual_average_number": Case(lambda m: Residual(m, "average", scale=2.5), tokens, paired,
    **other),
    "residual_boost": Case(
        lambda m: Residual(m, "boost"), tokens, paired, block=lambda m: Residual(m, "boost",
        slope=2.0), keeps=False
    ),
    "to_lorentz": Case(
        lambda m: hnn.ToLorentz(m, clip=2.0), rows, reference.to_lorentz, dim=1,
        block=lambda m: hnn.ToLorentz(m)
    ),
    "to_lorentz_rescaled": Case(
        lambda m: hnn.ToLorentz(m, slope=2.0), maps, channels_last(reference.to_lorentz), dim=1,
        **other
    ),
    "to_tangent": Case(
        lambda m: hnn.ToTangent(m), maps,
        channels_last(lambda layer, x, c: reference.logarithm(x, c)), dim=1, gives="numbers",
        block=lambda m: nn.Sequential(hnn.ToTangent(m), hnn.ToLorentz(m, clip=3.0)),
    ),
    "change_manifold": Case(
        lambda m: hnn.ChangeManifold(m, Lorentz(1.3)), rows, reference.change_manifold, dim=1,
        block=lambda m: nn.Sequential(hnn.ChangeManifold(m, Lorentz(1.3)),
        hnn.ChangeManifold(Lorentz(1.3), m)),
    ),
    "change_manifold_rescaled": Case(
        lambda m: hnn.ChangeManifold(m, Lorentz(1.3), slope=2.0), rows, reference.change_manifold,
        dim=1, **other
    ),
    "on_space": Case(
        lambda m: hnn.OnSpace(nn.Sequential(nn.Linear(6, 4), nn.GELU()), m), lorentz_points,
        on_space, gives="points", block=lambda m: hnn.OnSpace(nn.Tanh(), m), keeps=False,
    ),
    "on_tangent": Case(
        lambda m: hnn.OnTangent(nn.Sequential(nn.Linear(6, 4), nn.GELU()), m), lorentz_points,
        on_hyperboloid, gives="points", block=lambda m: hnn.OnTangent(nn.Tanh(), m), keeps=False,
    ),
    "on_tangent_ball": Case(
        lambda m: hnn.OnTangent(nn.Linear(6, 4), m), ball_points, reference.on_tangent, B,
        gives="points", **other, block=lambda m: hnn.OnTangent(nn.Tanh(), m), keeps=False,
    ),
    "embedding": Case(
        lambda m: hnn.HyperbolicEmbedding(10, 6, m), indices, reference.embedding, gives="points",
        behind=lambda m: hnn.OnTangent(nn.Tanh(), m),
    ),
    "embedding_ball": Case(
        lambda m: hnn.HyperbolicEmbedding(10, 6, m), indices, reference.embedding, B,
        gives="points", **other
    ),
    "mlr": Case(
        lambda m: hnn.LorentzMLR(6, 9, m), rows, reference.lorentz_mlr, gives="numbers",
        before=lambda m: hnn.LorentzLinear(6, 6, m),
    ),
    "hypformer_lift": Case(
        lambda m: pub.HypformerLift(m), rows, reference.hypformer_lift,
        block=lambda m: nn.Sequential(pub.HypformerLift(m), hnn.LorentzRMSNorm(6)),
    ),
    "prototype_head": Case(
        lambda m: pub.LorentzPrototypeHead(6, 9, m), rows, reference.prototype_head,
        gives="numbers", before=lambda m: hnn.LorentzLinear(6, 6, m),
    ),
    "prototype_head_inverse": Case(
        lambda m: pub.LorentzPrototypeHead(6, 9, m, "inverse", 10.0), rows,
        reference.prototype_head, gives="numbers", **other
    ),
    "prototype_head_log": Case(
        lambda m: pub.LorentzPrototypeHead(6, 9, m, "log"), rows, reference.prototype_head,
        gives="numbers", **other
    ),
    "busemann_mlr": Case(
        lambda m: hnn.BusemannMLR(6, 9, m), rows, reference.busemann_mlr, gives="numbers",
        before=lambda m: hnn.LorentzLinear(6, 6, m),
    ),
    "busemann_mlr_ball": Case(
        lambda m: hnn.BusemannMLR(6, 9, m), ball_points, reference.busemann_mlr, B, "numbers",
        before=lambda m: pub.PoincareFullyConnected(6, 6, m),
    ),
    "busemann_linear": Case(
        lambda m: hnn.BusemannLinear(6, 4, m, nn.Tanh()), tokens, reference.busemann_linear,
        block=lambda m: nn.Sequential(hnn.BusemannLinear(6, 6, m), hnn.LorentzRMSNorm(6)),
    ),
    "busemann_linear_ball": Case(
        lambda m: hnn.BusemannLinear(6, 4, m), ball_points, reference.busemann_linear, B, "points",
        block=lambda m: nn.Sequential(
            hnn.BusemannLinear(6, 6, m), pub.PoincareBatchNorm1d(6, m)
        ),
    ),
    "fgg_classifier": Case(
        lambda m: pub.FGGMLR(6, 9, m), rows, reference.fgg_mlr, gives="numbers",
        before=lambda m: pub.FGGLinear(6, 6, m),
    ),
    "attention": Case(
        lambda m: hnn.LorentzAttention(6, 2, m), tokens, reference.attention,
        block=lambda m: hnn.LorentzAttention(6, 2, m),
    ),
    "attention_of_points": Case(
        lambda m: hnn.LorentzAttention(6, 2, m, head_dim=2, join="points", init="xavier"), tokens,
        reference.attention,
        block=lambda m: hnn.LorentzAttention(6, 2, m, head_dim=3, join="points"),
    ),
    "attention_centroid": Case(
        lambda m: hnn.LorentzAttention(6, 2, m, head_dim=6, join="centroid"), tokens,
        reference.attention, **other,
        block=lambda m: nn.Sequential(
            hnn.LorentzAttention(6, 2, m, head_dim=6, join="centroid"), hnn.LorentzRMSNorm(6)
        ),
    ),
    "linear_attention": Case(
        lambda m: pub.LorentzLinearAttention(6, 2, m), tokens, reference.linear_attention,
        block=lambda m: nn.Sequential(pub.LorentzLinearAttention(6, 2, m), hnn.LorentzRMSNorm(6)),
    ),
    "ganea_mlr": Case(
        lambda m: pub.GaneaMLR(6, 9, m), ball_points, reference.ganea_mlr, B, "numbers",
        before=lambda m: pub.PoincareFullyConnected(6, 6, m),
    ),
    "poincare_mlr": Case(
        lambda m: pub.PoincareMLR(6, 9, m), ball_points, reference.poincare_mlr, B, "numbers",
        before=lambda m: pub.PoincareFullyConnected(6, 6, m),
    ),
    "poincare_fc": Case(
        lambda m: pub.PoincareFullyConnected(6, 9, m), ball_points, reference.poincare_fc, B,
        "points", block=lambda m: pub.PoincareFullyConnected(6, 6, m),
    ),
    "poincare_fc_normal": Case(
        lambda m: pub.PoincareFullyConnected(6, 4, m, init="normal"), ball_points,
        reference.poincare_fc, B, "points", **other,
    ),
    "poincare_linear": Case(
        lambda m: pub.PoincareLinear(6, 9, m), ball_points, reference.poincare_linear, B, "points",
        block=lambda m: pub.PoincareLinear(6, 6, m),
    ),
    "poincare_conv": Case(
        lambda m: pub.PoincareConv2d(6, 8, 3, m, 2, 1), ball_maps, reference.poincare_conv2d, B,
        "points", dim=1,
        block=lambda m: nn.Sequential(pub.PoincareConv2d(6, 6, 3, m, padding=1),
        pub.PoincareBatchNorm2d(6, m)),
    ),
    "poincare_batch_norm1d": Case(
        lambda m: pub.PoincareBatchNorm1d(6, m), ball_points, reference.poincare_batch_norm, B,
        "points", block=lambda m: pub.PoincareBatchNorm1d(6, m),
    ),
    "poincare_batch_norm2d": Case(
        lambda m: pub.PoincareBatchNorm2d(6, m), ball_maps,
        channels_last(reference.poincare_batch_norm), B, "points", dim=1,
        block=lambda m: pub.PoincareBatchNorm2d(6, m),
    ),
}  # fmt: skip


def build(name, learnable=False):
    """The layer, its parameters shaken so that none is at a special value, an input and the
    reference."""
    torch.manual_seed(len(name))
    case = LAYERS[name]
    layer = case.make(case.kind(C, learnable=learnable))
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            if "log_c" not in key:
                parameter += 0.1 * torch.randn_like(parameter)
        for _, parameter, manifold in named_manifold_parameters(layer):
            parameter.copy_(manifold.projx(parameter))
    x = case.inputs()
    return layer, x.requires_grad_() if x.is_floating_point() else x, case.reference


def double(x):
    """A tensor of floating point numbers in float64, that wants a gradient."""
    return x.detach().double().requires_grad_() if x.is_floating_point() else x


def wanting(layer, x):
    """What gradients are taken with respect to."""
    return [t for t in (x, *layer.parameters()) if t.requires_grad]


every_layer = each("name", LAYERS)

# ClusterAssignment is a tuple; the mixer has its reference implementation and its suite in
# test_cluster_mixer.py
ELSEWHERE = {"ClusterAssignment", "ClusterMixer"}


def test_every_public_layer_has_a_case():
    made, deep, compiled = set(), set(), set()

    def kinds(modules):
        return {
            kind.__name__
            for module in modules
            for inner in module.modules()
            for kind in type(inner).__mro__
        }

    for case in LAYERS.values():
        manifold = case.kind(C)
        found = kinds([case.make(manifold)])
        made |= found
        compiled |= found if case.compiled else set()
        deep |= kinds(case.network(manifold) or [])
    layers = {name for name in hnn.__all__ if isinstance(getattr(hnn, name), type)}
    wanted = layers - ELSEWHERE
    assert wanted <= made, f"no case: {wanted - made}"
    assert wanted <= deep, f"no case with 50 layers: {wanted - deep}"
    assert wanted <= compiled, f"no case that compiles: {wanted - compiled}"


@every_layer
def test_equals_the_reference(name):
    layer, x, written_out = build(name)
    layer, x = layer.double(), double(x)
    for _, parameter, manifold in named_manifold_parameters(layer):
        with torch.no_grad():
            parameter.copy_(manifold.projx(parameter))
    out, expected = layer(x), written_out(layer, x, C)
    torch.testing.assert_close(out, expected, rtol=1e-8, atol=1e-9)
    weight, inputs = torch.randn_like(out), wanting(layer, x)
    if not inputs:
        return
    found = torch.autograd.grad((out * weight).sum(), inputs, allow_unused=True)
    truth = torch.autograd.grad((expected * weight).sum(), inputs, allow_unused=True)
    for one, other in zip(found, truth):
        if one is None or other is None:
            assert one is other
            continue
        if hasattr(layer, "beta") and one.shape == layer.beta.shape:
            # the reference implementation reads the time of beta as well: compare what moves along
            # the hyperboloid
            time, space = layer.beta[:1], layer.beta[1:]
            one, other = (g[1:] + g[:1] * space / time for g in (one, other))
        torch.testing.assert_close(
            one, other, rtol=1e-6, atol=1e-7 * other.abs().max().item() + 1e-12
        )


@every_layer
def test_output_lies_on_the_manifold(name):
    """At the origin, near it and far from it; with gradients that are finite."""
    for size in (0.0, 1.0, 1e3):
        check_output(name, size)


def check_output(name, size):
    layer, x, _ = build(name)
    case, manifold = LAYERS[name], LAYERS[name].kind(C)
    if x.is_floating_point():
        with torch.no_grad():
            x *= size
            if case.kind is B:
                x = manifold.projx(x.movedim(case.dim, -1)).movedim(-1, case.dim)
            elif case.gives == "points":
                x = manifold.projx(x)
        x = x.detach().requires_grad_()
    out = layer(x)
    assert out.isfinite().all()
    if case.gives == "points":
        manifold.check_point(out.movedim(case.dim, -1))
    elif case.gives == "space":
        manifold.check_point(manifold.from_space(out.movedim(case.dim, -1)))
    inputs = wanting(layer, x)
    grads = torch.autograd.grad(out.sum(), inputs, allow_unused=True) if inputs else ()
    assert all(g is None or g.isfinite().all() for g in grads)


def rescales(layer):
    return any(getattr(module, "slope", None) is not None for module in layer.modules())


@every_layer
def test_curvature_is_learned(name):
    """The gradient with respect to log c against a central difference."""
    layer, x, _ = build(name, learnable=True)
    layer, x = layer.double(), double(x)
    keys = [key for key, _ in layer.named_parameters() if key.endswith("log_c")]
    if not keys or rescales(
        layer
    ):  # the limit of the rescaling follows the curvature without a gradient
        assert rescales(layer) or name in ("layer_norm", "rms_norm")
        return
    log_c = layer.get_parameter(keys[0])
    weight = torch.randn_like(layer(x))

    def value(shift):
        with torch.no_grad():
            log_c.add_(shift)
            out = (layer(x) * weight).sum()
            log_c.sub_(shift)
        return out

    (found,) = torch.autograd.grad((layer(x) * weight).sum(), log_c, materialize_grads=True)
    expected = (value(1e-5) - value(-1e-5)) / 2e-5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_layer
def test_autocast_stays_close(name, dtype):
    layer, x, _ = build(name)
    expected = layer(x)
    with torch.autocast("cpu", dtype):
        found = layer(x)
    if found.requires_grad:
        found.float().sum().backward()
    unit = torch.finfo(dtype).eps
    assert (found.float() - expected).abs().max() <= 16 * unit * max(1, expected.abs().max().item())
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)


# A compiler takes seconds for each: those with a backward or branches of their own, the others
# among the slow tests.
QUICK = {"conv2d", "embedding", "residual_space", "to_lorentz"}


@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize("name", [name for name, case in LAYERS.items() if case.compiled])
def test_compiles_in_one_graph(name):
    layer, x, _ = build(name)
    expected = layer(x)
    weight, inputs = torch.randn_like(expected), wanting(layer, x)
    truth = (
        torch.autograd.grad((expected * weight).sum(), inputs, allow_unused=True) if inputs else ()
    )
    torch._dynamo.reset()
    out = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(out, expected, rtol=2e-4, atol=2e-4)
    found = torch.autograd.grad((out * weight).sum(), inputs, allow_unused=True) if inputs else ()
    for one, other in zip(found, truth):
        if other is not None:
            torch.testing.assert_close(
                one, other, rtol=2e-3, atol=2e-3 * other.abs().max().item() + 1e-6
            )


@pytest.mark.slow
@every_layer
def test_exports(name):
    layer, x, _ = build(name)
    layer, x = layer.eval(), x.detach()
    program = torch.export.export(layer, (x,))
    torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-5, atol=1e-5)


@every_layer
def test_differentiates_twice(name):
    """Double backward against differences of the gradient, in eager."""
    layer, x, _ = build(name)
    if not x.is_floating_point():
        return  # the rows of a table are linear in it
    layer, x = layer.double(), double(x)
    weight, along = torch.randn_like(layer(x)), torch.randn_like(x)
    parameters = [p for p in layer.parameters() if p.requires_grad]
    # the kernel of attention that keeps nothing has no double backward in PyTorch
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):

        def gradients(x, create_graph=False):
            loss = (layer(x) * weight).sin().sum()
            return torch.autograd.grad(
                loss, [x, *parameters], create_graph=create_graph, allow_unused=True
            )

        first = gradients(x, True)
        slope = sum(
            (g * torch.cos(torch.arange(g.numel()).view_as(g))).sum()
            for g in first
            if g is not None
        )
        (found,) = torch.autograd.grad(slope, x)

        def value(shift):
            grads = gradients((x + shift * along).detach().requires_grad_())
            return sum(
                (g * torch.cos(torch.arange(g.numel()).view_as(g))).sum()
                for g in grads
                if g is not None
            )

        expected = (value(1e-5) - value(-1e-5)) / 2e-5
    total = (found * along).sum()
    torch.testing.assert_close(
        total, expected, rtol=1e-4, atol=1e-5 * (1 + found.abs().sum().item())
    )


def test_differentiates_twice_through_shared_parameters():
    """What enters a layer depends on the parameters that it uses itself: no share is counted
    twice."""
    torch.manual_seed(0)
    manifold = Lorentz(C, learnable=True)
    convolution, norm = (
        hnn.LorentzConv2d(2, 2, 2, manifold, padding=1),
        hnn.LorentzBatchNorm2d(2, manifold),
    )
    network = nn.Sequential(convolution, norm, convolution, norm).double()
    x, weight = (
        torch.randn(2, 2, 2, 2, dtype=torch.float64),
        torch.randn(2, 2, 4, 4, dtype=torch.float64),
    )
    parameters = [p for name, p in network.named_parameters() if "log_c" not in name]

    def gradients(create_graph=False):
        loss = (network(x) * weight).sin().sum()
        return torch.autograd.grad(loss, parameters, create_graph=create_graph)

    along = [torch.randn_like(p) for p in parameters]
    slope = sum((g * a).sum() for g, a in zip(gradients(True), along))
    found = torch.autograd.grad(slope, parameters)

    def value(index, shift):
        with torch.no_grad():
            parameters[index] += shift * along[index]
        out = sum((g * a).sum() for g, a in zip(gradients(), along))
        with torch.no_grad():
            parameters[index] -= shift * along[index]
        return out

    for i in range(len(parameters)):
        expected = (value(i, 1e-6) - value(i, -1e-6)) / 2e-6
        torch.testing.assert_close((found[i] * along[i]).sum(), expected, rtol=1e-5, atol=1e-6)


# PyTorch has no rule for the CPU's attention kernel and falls back to a loop, with a warning
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@every_layer
def test_function_transforms(name):
    """vmap over a batch of batches, and the gradient of torch.func."""
    layer, x, _ = build(name)
    layer.eval()
    x = x.detach()
    batch = torch.stack([x, x.flip(0)])
    torch.testing.assert_close(
        torch.func.vmap(layer)(batch)[1], layer(batch[1]), rtol=1e-4, atol=1e-5
    )
    if x.is_floating_point():
        weight = torch.randn_like(layer(x))
        found = torch.func.grad(lambda x: (layer(x) * weight).sum())(x)
        (expected,) = torch.autograd.grad((layer(x.requires_grad_()) * weight).sum(), x)
        torch.testing.assert_close(
            found, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item()
        )


@every_layer
def test_state_dict_and_copies(name):
    layer, x, _ = build(name, learnable=True)
    layer(x)  # running statistics
    layer.eval()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    torch.manual_seed(99)
    other = LAYERS[name].make(LAYERS[name].kind(1.3, learnable=True)).eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other(x), layer(x))
    copied = copy.deepcopy(layer)
    torch.testing.assert_close(copied(x), layer(x))
    assert {type(p) for p in copied.parameters()} == {type(p) for p in layer.parameters()}


@every_layer
def test_wrong_input_is_named(name):
    """Integers, and features of another width, get an error that says what was expected."""
    layer, x, _ = build(name)
    case = LAYERS[name]
    if name.startswith("embedding"):
        with pytest.raises(TypeError, match="index must be a tensor of integers"):
            layer(x.float())
        return
    if name in ("layer_norm", "rms_norm"):
        return  # torch's own
    with pytest.raises(
        TypeError, match="x must be a tensor of floating point numbers, got torch.int64"
    ):
        layer(x.long())
    if isinstance(
        layer,
        (
            hnn.OnSpace,
            hnn.OnTangent,
            hnn.ToLorentz,
            hnn.ToTangent,
            hnn.ChangeManifold,
            Residual,
            pub.HypformerLift,
        ),
    ):
        return  # these take any width
    if "pool" in name:
        with pytest.raises(ValueError, match="x must have 4 dimensions"):
            layer(x[0])
        return
    # the width is in dimension 1 of maps and sequences
    dim = 1 if x.dim() == 4 or "conv1d" in name else -1
    wrong = torch.cat([x, x.narrow(dim, 0, 1)], dim)
    with pytest.raises(
        ValueError, match=f"x must have {x.shape[dim]} features in dimension"
    ) as error:
        layer(wrong)
    if case.kind is Lorentz:
        assert "points with time" in str(error.value)


@every_layer
def test_wrong_manifolds_are_named(name):
    """A ball for a layer of the hyperboloid, the class instead of an object, a number."""
    case = LAYERS[name]
    if name in ("layer_norm", "rms_norm"):
        return  # of the space part alone
    any_manifold = isinstance(case.make(case.kind(C)), (hnn.OnTangent, hnn.HyperbolicEmbedding))
    on_both = isinstance(case.make(case.kind(C)), hnn.BusemannMLR)
    wrong = B(C) if case.kind is Lorentz else Lorentz(C)
    wrong = Euclidean() if on_both else wrong
    for manifold in (case.kind, 1.0, None, *([] if any_manifold else [wrong])):
        kind = "Manifold" if any_manifold else case.kind.__name__
        kind = "Lorentz" if on_both else kind
        with pytest.raises(
            TypeError, match=f"(manifold|source) must be a hypvision.geometry.{kind}, got"
        ):
            case.make(manifold)


def radii(case, manifold, out):
    """``sqrt(c)`` times the distances from the origin."""
    out = out.detach().float().movedim(case.dim, -1)
    if case.kind is Lorentz and case.gives != "points":
        out = manifold.from_space(out)
    return manifold.dist0(out) * C**0.5


DEEP = [name for name, case in LAYERS.items() if case.block or case.before or case.behind]


def is_published(name):
    """Whether a layer is one of other code bases, which no model here uses."""
    layer = LAYERS[name].make(LAYERS[name].kind(C))
    return type(layer).__module__.startswith(pub.__name__)


@pytest.mark.parametrize("amp", [False, pytest.param(True, marks=pytest.mark.slow)])
@each("name", [name for name in DEEP if not is_published(name)])
def test_fifty_layers_deep(name, amp):
    check_fifty(name, amp)


@pytest.mark.slow
@pytest.mark.parametrize("amp", [False, True])
@each("name", [name for name in DEEP if is_published(name)])
def test_fifty_published_layers_deep(name, amp):
    check_fifty(name, amp)


def check_fifty(name, amp):
    """With default inits radii stay in range on the whole way down, and gradients are finite."""
    torch.manual_seed(1)
    case = LAYERS[name]
    manifold, x = case.kind(C), case.inputs()
    network, seen = nn.ModuleList(case.network(manifold)), []
    assert len(network) >= 50
    if x.is_floating_point():
        x.requires_grad_()
    start = x
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        for layer in network:
            x = layer(x)
            if case.block is not None:
                seen.append(radii(case, manifold, x).mean().item())
    assert x.isfinite().all()
    if seen and case.keeps:
        assert min(seen) > 0.2 and max(seen) < 8, seen
    inputs = wanting(network, start)
    weight = torch.randn_like(x.float())
    grads = torch.autograd.grad((x.float() * weight).sum(), inputs, allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in grads)
    if case.keeps:
        assert any(g is not None and g.abs().max() > 0 for g in grads[:3]), (
            "nothing arrives at the first layer"
        )


@each(
    "make",
    [
        lambda m: hnn.LorentzLinear(6, 6, m, init="uniform"),
        lambda m: hnn.LorentzLinear(6, 6, m, init="xavier"),
        lambda m: pub.FGGLinear(6, 6, m, init="identity"),
        lambda m: pub.PLFCLinear(6, 6, m, init="normal"),
        lambda m: pub.PoincareLinear(6, 6, m, init="kaiming"),
        lambda m: pub.PoincareFullyConnected(6, 6, m, init="normal"),
    ],
)
def test_published_inits_leave_the_range(make):
    """Why they are not the defaults; their gradients are finite all the same."""
    torch.manual_seed(1)
    ball = "Poincare" in make.__code__.co_names[1]
    manifold = (PoincareBall if ball else Lorentz)(C)
    x = start = (ball_points() if ball else tokens()).requires_grad_()
    network = nn.Sequential(*(make(manifold) for _ in range(50)))
    out = network(x)
    radius = radii(LAYERS["poincare_fc" if ball else "linear"], manifold, out).mean()
    assert radius < 0.1 or radius > 10
    grads = torch.autograd.grad(out.sum(), [start, *network.parameters()])
    assert all(g.isfinite().all() for g in grads)


def test_radii_stay_where_the_dimension_changes():
    """The inits that keep the radius, through widths that grow and shrink."""
    manifold, ball = Lorentz(C), PoincareBall(C)
    widths = [16, 32, 24, 8] * 12 + [16]
    for make, space in (
        (lambda n, m: hnn.LorentzLinear(n, m, manifold), manifold),
        (lambda n, m: pub.FGGLinear(n, m, manifold), manifold),
        (lambda n, m: pub.PLFCLinear(n, m, manifold), manifold),
        (lambda n, m: pub.PoincareLinear(n, m, ball), ball),
        (lambda n, m: pub.PoincareFullyConnected(n, m, ball), ball),
    ):
        torch.manual_seed(0)
        x = (
            torch.randn(64, 16)
            if space is manifold
            else ball.from_tangent0(torch.randn(64, 16) / 2)
        )
        for n, m in zip(widths, widths[1:]):
            x = make(n, m)(x)
        radius = space.dist0(x if space is ball else space.from_space(x)).median()
        assert 0.2 < radius < 8, (make(2, 2), radius)


@pytest.mark.parametrize("kind", [hnn.LorentzBatchNorm2d, pub.GyroLorentzBatchNorm2d])
def test_running_statistics_follow(kind):
    """After many batches of one distribution, evaluation does what training does."""
    torch.manual_seed(0)
    layer, x = kind(6, Lorentz(C)), 0.3 * torch.randn(16, 6, 5, 5) + 0.2
    for _ in range(100):
        expected = layer(x)
    layer.eval()
    torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=1e-4)


def test_a_linear_layer_with_an_activation_and_heads_is_hexformers():
    """Its formula (arXiv 2601.19849), written out; the heads share their time."""
    manifold = Lorentz(0.7)
    layer = hnn.LorentzLinear(
        5, 6, manifold, normalize="time", margin=0.5, activation=nn.GELU(), heads=2
    ).double()
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    time = torch.sqrt(x.square().sum(-1, keepdim=True) + 1 / 0.7)
    vector = F.gelu(x @ layer.weight.T + time * layer.time_weight + layer.bias)
    gate = x @ layer.norm_weight[1:] + time[..., 0] * layer.norm_weight[0] + layer.norm_bias
    times = math.exp(2.3) * torch.sigmoid(gate) + 0.7**-0.5 + 0.5
    wanted = torch.sqrt(times.square() - 1 / 0.7)[..., None]
    out = layer(x)
    assert out.shape == (3, 4, 2, 3)
    for head, part in enumerate(vector.split(3, -1)):
        expected = part / part.norm(dim=-1, keepdim=True) * wanted
        torch.testing.assert_close(out[..., head, :], expected)
    with pytest.raises(ValueError, match="heads"):
        hnn.LorentzLinear(5, 6, manifold, heads=4)


def test_residual_scales_start_as_published_or_as_told():
    for options, start in (({}, 4.0), ({"scale_init": 2.0}, math.log(2))):
        layer = hnn.LorentzResidual(Lorentz(C), "average", scale="learned", **options)
        assert layer.log_scale.item() == pytest.approx(start)


@each("mode", ["space", "average", "boost"])
def test_residual_modes_are_finite_at_the_origin(mode):
    layer = hnn.LorentzResidual(Lorentz(C), mode, slope=2.0, dim=1)
    x = torch.zeros(2, 6, 3, 3, requires_grad=True)
    layer(x, x * 2).sum().backward()
    assert x.grad.isfinite().all()


@each("mode", ["space", "average", "boost"])
def test_a_residual_without_its_branch_is_its_first_point(mode):
    """Scaled as the connection scales; the branch does not move it towards the origin."""
    layer = hnn.LorentzResidual(Lorentz(C), mode, scale=3.0 if mode == "average" else None, dim=1)
    x, y = torch.randn(2, 4, 6, 3, 3)
    keep = torch.tensor([1.0, 0.0, 1.0, 0.0]).reshape(4, 1, 1, 1)
    out = layer(x, y, keep)
    torch.testing.assert_close(out[::2], layer(x, y)[::2])
    torch.testing.assert_close(out[1::2], x[1::2] * (3 if mode == "average" else 1))
    with pytest.raises(ValueError, match="keep"):
        layer(x, y, keep.flatten())


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_attention_drops_weights_and_keeps_radii(scale):
    """A centroid lies no farther out than its points, also if some of their weights are 0 and the
    others larger."""
    torch.manual_seed(0)
    manifold = Lorentz(C)
    layer = hnn.LorentzAttention(6, 1, manifold, dropout=0.5, head_dim=6, join="centroid")
    x = scale * torch.randn(4, 8, 6)
    limit = manifold.dist0(manifold.from_space(layer.value(x))).max()
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    assert manifold.dist0(manifold.from_space(first)).max() <= limit * 1.01
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    assert manifold.dist0(manifold.from_space(layer(x))).max() <= limit * 1.01


def test_far_points_have_a_centroid():
    """In float32 nothing is left of the norm of a mean of points this far out."""
    manifold = Lorentz(C)
    x = 1e5 * torch.randn(2, 6, 4, 4)
    limit = manifold.dist0(manifold.from_space(x.movedim(1, -1))).max()
    for pooled in (
        hnn.LorentzGlobalAvgPool2d(manifold, keepdim=True)(x),
        hnn.LorentzAvgPool2d(2, manifold)(x),
    ):
        assert manifold.dist0(manifold.from_space(pooled.movedim(1, -1))).max() <= limit


def test_cayley_columns_are_orthonormal():
    for fan_in, fan_out in ((5, 7), (3, 40)):
        layer = hnn.EfficientLorentzLinear(fan_in, fan_out, Lorentz())
        matrix = layer.matrix()
        torch.testing.assert_close(matrix.t() @ matrix, torch.eye(fan_in), rtol=1e-5, atol=1e-5)


def test_the_gradient_of_an_angle_keeps_its_digits():
    """Where the gradients of all pixels cancel to a thousandth, as those before a norm do; float32
    against float64."""
    errors = []
    for seed in range(5):
        torch.manual_seed(seed)
        layer = hnn.EfficientLorentzConv2d(16, 16, 3, Lorentz(10.0, learnable=True), padding=1)
        exact, x = copy.deepcopy(layer).double(), torch.randn(8, 16, 16, 16).relu() / 3
        out = exact(x.double())
        cotangents = torch.randn_like(out), out.detach()
        one, radial = (
            torch.autograd.grad(out, exact.boost_weight, g, retain_graph=True)[0]
            for g in cotangents
        )
        cotangent = (cotangents[0] - cotangents[1] * (one / radial * (1 - 1e-3))).float()
        (expected,) = torch.autograd.grad(out, exact.boost_weight, cotangent.double())
        (found,) = torch.autograd.grad(layer(x), layer.boost_weight, cotangent)
        errors.append(((found - expected) / expected).abs().item())
    assert sorted(errors)[2] < 1e-4, errors


def test_scaling_boost_without_rescaling():
    """Doubling every radius: far points leave the range that a rescaling keeps to."""
    layer = hnn.EfficientLorentzLinear(4, 4, Lorentz(), boost="scale", slope=None)
    nn.init.eye_(layer.weight)
    nn.init.constant_(layer.boost_weight, 2.0)
    x = torch.tensor([[0.0, 30.0, 0.0, 40.0]])
    # sinh(2 r) = 2 sinh(r) cosh(r)
    torch.testing.assert_close(layer(x), 2 * x * (1 + 50.0**2) ** 0.5)


@each("stride, extra", [((1, 1), (0, 0)), ((2, 3), (1, 0)), ((2, 3), (0, 2)), ((1, 2), (0, 1))])
@each("padding", [0, (1, 0)])
def test_transposed_convolution_lays_maps_out_as_the_euclidean_one(stride, extra, padding):
    layer = hnn.LorentzConvTranspose2d(2, 3, 3, Lorentz(), stride, padding, extra, bias=False)
    nn.init.zeros_(layer.conv.time_weight)
    flipped = layer.conv.weight.flip(2, 3).transpose(0, 1)
    x = torch.randn(1, 2, 4, 3)
    expected = F.conv_transpose2d(x, flipped, None, stride, padding)
    expected = F.pad(expected, (0, extra[1], 0, extra[0]))  # the published code pads the result
    torch.testing.assert_close(layer(x), expected)


@each(
    "make, space",
    [
        (lambda m: hnn.LorentzLinear(4, 3, m), Lorentz(C)),
        (lambda m: hnn.LorentzLinear(4, 3, m, bias=False, normalize="time"), Lorentz(C)),
        (lambda m: hnn.LorentzMLR(4, 3, m), Lorentz(C)),
        (lambda m: hnn.BusemannLinear(4, 3, m), Lorentz(C)),
        (lambda m: pub.FGGLinear(4, 3, m), Lorentz(C)),
        (lambda m: pub.PLFCLinear(4, 3, m, bias=False), Lorentz(C)),
        (lambda m: pub.PoincareLinear(4, 3, m), PoincareBall(C)),
        (lambda m: pub.PoincareFullyConnected(4, 3, m), PoincareBall(C)),
        (lambda m: pub.PoincareMLR(4, 3, m), PoincareBall(C)),
        (lambda m: pub.GaneaMLR(4, 3, m), PoincareBall(C)),
    ],
)
def test_a_point_alone_is_a_batch_of_one(make, space):
    torch.manual_seed(0)
    layer, x = make(space), 0.3 * torch.randn(4)
    torch.testing.assert_close(layer(x), layer(x.unsqueeze(0)).squeeze(0))


@each("kind", [hnn.LorentzConv2d, hnn.EfficientLorentzConv2d])
def test_dilation_convolves_every_second_pixel(kind):
    """A convolution of dilation 2 is the plain one on each of the four maps of every second row and
    column."""
    near = kind(3, 3, 3, Lorentz(C), padding=1)
    far = kind(3, 3, 3, Lorentz(C), padding=2, dilation=2)
    far.load_state_dict(near.state_dict())
    x = torch.randn(2, 3, 6, 8)
    found = far(x)
    for row in (0, 1):
        for column in (0, 1):
            part = near(x[..., row::2, column::2])
            torch.testing.assert_close(found[..., row::2, column::2], part, rtol=1e-5, atol=1e-6)


def test_sum_norm_matching():
    layer = hnn.EfficientLorentzConv2d(
        2, 3, 3, Lorentz(), norm_match="sum", boost="none", slope=None
    )
    x = torch.randn(1, 2, 3, 3)
    torch.testing.assert_close(layer(x).norm(dim=1).squeeze(), x.norm(dim=1).sum())


@pytest.mark.parametrize("manifold", [Lorentz(C), PoincareBall(C)])
def test_embedding(manifold):
    table = hnn.HyperbolicEmbedding(10, 4, manifold, padding_idx=3)
    manifold.check_point(table.weight)
    torch.testing.assert_close(manifold.dist0(table.weight)[3].item(), 0.0, rtol=0, atol=1e-6)
    assert 0.01 < manifold.dist0(table.weight).median() < 0.3
    assert table(torch.tensor([[1, 2], [3, 4]])).shape == (2, 2, 4 + manifold.extra)
    assert [name for name, _, _ in named_manifold_parameters(table)] == ["weight"]


@each(
    "make, message",
    [
        (lambda m: hnn.LorentzLinear(0, 3, m), "in_features"),
        (lambda m: hnn.LorentzLinear(2, 3, m, init="zeros"), "init"),
        (lambda m: pub.FGGLinear(2, 3, m, init="zeros"), "init"),
        (lambda m: hnn.LorentzConv2d(2, 3, 0, m), "kernel_size"),
        (lambda m: hnn.LorentzConv2d(2, 3, (1, 2, 3), m), "kernel_size"),
        (lambda m: hnn.LorentzConvTranspose2d(2, 3, 3, m, padding=(0, 3)), "padding"),
        (lambda m: hnn.EfficientLorentzConv2d(2, 3, 3, m, norm_match="all"), "norm_match"),
        (lambda m: hnn.EfficientLorentzConv2d(2, 3, 3, m, boost="all"), "boost"),
        (lambda m: hnn.EfficientLorentzConv2d(2, 3, 3, m, slope=-1), "slope"),
        (lambda m: hnn.LorentzBatchNorm2d(0, m), "num_features"),
        (lambda m: hnn.LorentzBatchNorm2d(3, m, momentum=2), "momentum"),
        (lambda m: hnn.LorentzBatchNorm2d(3, m, limit=0), "limit must"),
        (lambda m: hnn.LorentzBatchNorm2d(3, m, slope=0), "slope must"),
        (lambda m: hnn.LorentzBatchNorm2d(3, m)(torch.zeros(2, 4, 5, 5)), "3 features.*time"),
        (lambda m: hnn.LorentzBatchNorm1d(3, m)(torch.zeros(2, 4)), "3 features"),
        (lambda m: hnn.LorentzResidual(m, "sum"), "mode"),
        (lambda m: hnn.LorentzAttention(6, 4, m), "num_heads"),
        (lambda m: hnn.HyperbolicEmbedding(0, 4, m), "num_embeddings"),
        (lambda m: hnn.HyperbolicEmbedding(5, 4, m, padding_idx=5), "padding_idx.*5"),
        (lambda m: hnn.HyperbolicEmbedding(5, 4, m, std=-1.0), "std"),
        (lambda m: hnn.HyperbolicEmbedding(5, 4, Product((m, 2), (m, 3))), "dimension 5"),
        (lambda m: pub.LorentzPatchEmbed(3, 0, 4, m), "embed_dim"),
        (lambda m: pub.LorentzPatchEmbed(3, 8, 0, m), "kernel_size"),
        (lambda m: hnn.LorentzLinear(2, 2.5, m), "out_features.*2.5"),
        (lambda m: hnn.LorentzLinear(2, 3, m, normalize="space"), "normalize"),
        (lambda m: hnn.LorentzLinear(2, 3, m, normalize="time", margin=0.0), "margin"),
        (lambda m: pub.PoincareLinear(2, 3, PoincareBall(), init="normal"), "'isometric'"),
        (lambda m: pub.PoincareFullyConnected(2, 3, PoincareBall(), init="zeros"), "init"),
        (lambda m: pub.PoincareConv2d(2, 3, 3, PoincareBall(), padding=-1), "padding"),
        (lambda m: pub.PoincareBatchNorm2d(2, PoincareBall(), mean="median"), "mean"),
        (lambda m: hnn.LorentzMLR(3, 0, m), "LorentzMLR: num_classes.*0"),
        (lambda m: hnn.BusemannMLR(3, 0, m), "BusemannMLR: num_classes.*0"),
        (lambda m: pub.GaneaMLR(3, 0, PoincareBall()), "num_classes"),
        (lambda m: pub.PoincareMLR(0, 3, PoincareBall()), "in_features"),
        (lambda m: hnn.ToLorentz(m, clip=0.0), "ToLorentz: clip.*0.0"),
        (lambda m: hnn.ToLorentz(m, slope=0.0), "slope"),
        (lambda m: hnn.ToLorentz(m, slope=2.0, clip=0.1), "clip=0.1"),
        (lambda m: hnn.LorentzLinear(2, 3, m, learn_scale=True), "learn_scale=True is for"),
        (lambda m: hnn.ChangeManifold(m, m, slope=-1.0), "slope"),
        (lambda m: hnn.ChangeManifold(m, m, slope=2.0, limit=0), "limit must"),
        (lambda m: hnn.LorentzResidual(m, "average", scale="learned", scale_init=0), "scale_init"),
        (lambda m: hnn.LorentzResidual(m, "average", scale="big"), 'scale.*"learned"'),
        (lambda m: hnn.LorentzResidual(m, "average", scale=-1.0), "scale"),
        (lambda m: hnn.LorentzResidual(m, "space", scale=1.0), "scale is for"),
        (lambda m: hnn.LorentzResidual(m, slope=0), "slope"),
        (lambda m: hnn.LorentzResidual(m)(torch.zeros(2, 3), torch.zeros(2, 4)), "same shape"),
        (lambda m: hnn.LorentzAttention(6, 2, m, dropout=-0.1), "dropout"),
        (lambda m: hnn.LorentzAttention(6, 2, m, scale=0.0), "scale"),
        (lambda m: hnn.LorentzAttention(6, 2, m, join="time"), "join"),
        (lambda m: hnn.LorentzAttention(6, 0, m), "num_heads"),
        (
            lambda m: hnn.LorentzAttention(6, 2, m)(torch.zeros(2, 3, 6), torch.zeros(2, 3, 5)),
            "context must have 6",
        ),
        (lambda m: pub.LorentzLinearAttention(6, 2, m, power=0.5), "power"),
        (
            lambda m: pub.LorentzLinearAttention(6, 2, m)(
                torch.zeros(2, 3, 6), torch.zeros(2, 4, 6)
            ),
            "as many tokens",
        ),
        (lambda m: hnn.LorentzBatchNorm2d(3, m, eps=-1.0), "eps"),
        (lambda m: hnn.LorentzAvgPool2d(0, m), "kernel_size"),
        (lambda m: hnn.LorentzConv2d(3, 4, 3, m)(torch.zeros(3, 8, 8)), "4 dimensions"),
        (lambda m: hnn.LorentzConv1d(3, 4, 3, m)(torch.zeros(2, 3, 8, 8)), "3 dimensions"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make(Lorentz())


def test_a_fixed_scale_is_written_into_weights_and_read_from_them():
    layer = hnn.LorentzResidual(Lorentz(C), "average", scale=2.0)
    other = hnn.LorentzResidual(Lorentz(C), "average", scale=3.0)
    layer.load_state_dict(other.state_dict())
    assert layer.scale == pytest.approx(3.0)
    x, y = torch.randn(2, 5, 4)
    torch.testing.assert_close(layer(x, y), other(x, y))
