"""Weights of single layers as other libraries store them, for the layers of :mod:`hypvision.nn`.

    >>> layer = LorentzConv2d(64, 128, 3, manifold)
    >>> layer.load_state_dict(layer_state(layer, published, "hyperboliccv"))

=============== ==================================================================================================
``hyperboliccv`` LorentzLinear, LorentzConv2d, LorentzConvTranspose2d, LorentzBatchNorm1d/2d, LorentzMLR
                (Bdeir et al., ICLR 2024)
``hypercore``    LorentzLinear (He et al., 2025; that of Hypformer)
``hyptorch``     PoincareLinear, GaneaMLR (Khrulkov et al., CVPR 2020)
``hnn++``        PoincareMLR (Shimizu et al., ICLR 2021)
``hypll``        PoincareFullyConnected, HyperbolicEmbedding (van Spengler et al., 2023)
=============== ==================================================================================================

Whole networks have converters of their own: :mod:`hypvision.zoo.convert`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from hypvision.errors import HypvisionError
from hypvision.nn import (
    GaneaMLR,
    HyperbolicEmbedding,
    LorentzBatchNorm1d,
    LorentzBatchNorm2d,
    LorentzConv2d,
    LorentzConvTranspose2d,
    LorentzLinear,
    LorentzMLR,
    PoincareFullyConnected,
    PoincareLinear,
    PoincareMLR,
)

__all__ = ["layer_state"]


class _Entries:
    """The published tensors of a layer; every one must be taken, or be known to carry nothing."""

    def __init__(self, state: Mapping[str, Tensor], ignored: tuple[str, ...] = ()):
        self.rest = {name: value for name, value in state.items() if not name.endswith(ignored or ("\0",))}
        self.names = sorted(state)

    def take(self, name: str) -> Tensor:
        if name not in self.rest:
            raise HypvisionError(f"The layer has no '{name}', but {', '.join(self.names) or 'nothing'}.")
        return self.rest.pop(name).detach().clone()

    def maybe(self, name: str) -> Tensor | None:
        return self.take(name) if name in self.rest else None


def _lorentz_matrix(layer: LorentzLinear, entries: _Entries, weight: str, bias: str) -> dict[str, Tensor]:
    """The published matrix ``(m + 1, n + 1)``: its first row is the norm's gate, or was never used."""
    matrix, offset = entries.take(weight), entries.maybe(bias)
    entries.maybe("scale") if not layer.normalize else None
    out = {"weight": matrix[1:, 1:], "time_weight": matrix[1:, 0]}
    if layer.bias is not None and offset is not None:
        out["bias"] = offset[1:]
    if layer.normalize:
        out["norm_weight"], out["scale"] = matrix[0], entries.take("scale").reshape(())
        if offset is not None:
            out["norm_bias"] = offset[:1]
    return out


def _lorentz_conv(layer: LorentzConv2d, entries: _Entries, prefix: str = "") -> dict[str, Tensor]:
    """``(C' + 1, k k C + 1)``, the time of the patch first, its space by position, then channel."""
    matrix = entries.take(f"{prefix}linearized_kernel.weight.weight")
    offset = entries.maybe(f"{prefix}linearized_kernel.weight.bias")
    entries.maybe(f"{prefix}linearized_kernel.scale")
    positions = math.prod(layer.kernel_size)
    if (matrix.shape[1] - 1) % positions:
        raise HypvisionError(
            f"'{prefix}linearized_kernel.weight.weight' has {matrix.shape[1]} columns, which do not divide into "
            f"{positions} positions of the kernel {layer.kernel_size} and a time. Create the layer with its kernel."
        )
    space = matrix[1:, 1:].unflatten(1, (positions, -1)).transpose(1, 2)
    out = {"weight": space.unflatten(2, layer.kernel_size).contiguous(), "time_weight": matrix[1:, 0]}
    if offset is not None:
        out["bias"] = offset[1:]
    return out


def _transposed(layer: LorentzConvTranspose2d, entries: _Entries) -> dict[str, Tensor]:
    entries.maybe("pad_weight")  # ones that spread the pixels
    found = _lorentz_conv(layer.conv, entries, "conv.")
    return {f"conv.{name}": value for name, value in found.items()}


def _batch_norm(layer: nn.Module, entries: _Entries) -> dict[str, Tensor]:
    return {
        "beta": entries.take("beta"),
        "gamma": entries.take("gamma").reshape(1),
        "running_mean": entries.take("running_mean")[1:],  # a tangent vector at the origin, whose time is 0
        "running_var": entries.take("running_var").reshape(1),
    }


def _hypll_linear(layer: PoincareFullyConnected, entries: _Entries) -> dict[str, Tensor]:
    out, bias = {"weight": entries.take("z").t().contiguous()}, entries.maybe("bias")
    return out if bias is None else {**out, "bias": bias}


def _hypercore(layer: LorentzLinear, entries: _Entries) -> dict[str, Tensor]:
    matrix, bias = entries.take("linear.weight"), entries.maybe("linear.bias")
    out = {"weight": matrix[:, 1:], "time_weight": matrix[:, 0]}
    return out if bias is None else {**out, "bias": bias}


def _renamed(**names: str) -> Callable[[nn.Module, _Entries], dict[str, Tensor]]:
    return lambda layer, entries: {ours: entries.take(theirs) for ours, theirs in names.items()}


def _hyptorch_linear(layer: PoincareLinear, entries: _Entries) -> dict[str, Tensor]:
    out, bias = {"weight": entries.take("weight")}, entries.maybe("bias")
    return out if bias is None else {**out, "bias": bias}


def _hnn_mlr(layer: PoincareMLR, entries: _Entries) -> dict[str, Tensor]:
    out = {"g": entries.take("weight_g"), "v": entries.take("weight_v").t().contiguous()}
    bias = entries.maybe("bias")
    return {**out, "r": out["g"].new_zeros(out["g"].shape) if bias is None else bias}


# Library -> how its layers are read, and the ends of names that only repeat the curvature.
LAYOUTS: dict[str, tuple[dict[type, Callable[[Any, _Entries], dict[str, Tensor]]], tuple[str, ...]]] = {
    "hyperboliccv": (
        {
            LorentzLinear: lambda layer, entries: _lorentz_matrix(layer, entries, "weight.weight", "weight.bias"),
            LorentzConvTranspose2d: _transposed,
            LorentzConv2d: _lorentz_conv,
            LorentzBatchNorm1d: _batch_norm,
            LorentzBatchNorm2d: _batch_norm,
            LorentzMLR: _renamed(a="a", z="z"),
        },
        ("manifold.k",),
    ),
    "hypercore": ({LorentzLinear: _hypercore}, ("manifold.k", "manifold.c", ".c")),
    "hyptorch": (
        {PoincareLinear: _hyptorch_linear, GaneaMLR: _renamed(a="a_vals", p="p_vals")},
        ("c",),
    ),
    "hnn++": ({PoincareMLR: _hnn_mlr}, ("isp_c",)),
    "hypll": (
        {PoincareFullyConnected: _hypll_linear, HyperbolicEmbedding: _renamed(weight="weight")},
        ("c.value",),
    ),
}


def layer_state(layer: nn.Module, published: Mapping[str, Tensor], library: str) -> dict[str, Tensor]:
    """State dict of a layer from that of its published counterpart.

    The curvature is that of the layer's manifold: libraries store it in units of their own (``k = 1 / c``, or before a
    softplus), so create the manifold with it.

    Args:
        layer: one of :mod:`hypvision.nn`, created with the sizes of the published one.
        published: the state dict of that layer alone, without a prefix.
        library: ``"hyperboliccv"``, ``"hypercore"``, ``"hyptorch"``, ``"hnn++"`` or ``"hypll"``.

    Returns:
        What ``layer.load_state_dict`` takes; a learned curvature of the layer keeps its value.

    Raises:
        HypvisionError: there is no such library, it has no such layer, or names or shapes do not fit.
    """
    if library not in LAYOUTS:
        raise HypvisionError(f"There is no layout '{library}'. Known: {', '.join(LAYOUTS)}.")
    readers, ignored = LAYOUTS[library]
    if type(layer) not in readers:
        raise HypvisionError(
            f"{library} has no counterpart of {type(layer).__name__}. "
            f"Known: {', '.join(kind.__name__ for kind in readers)}."
        )
    entries = _Entries(published, ignored)
    found = readers[type(layer)](layer, entries)
    if entries.rest:
        raise HypvisionError(f"Not an entry of {library}'s {type(layer).__name__}: {', '.join(sorted(entries.rest))}.")
    own = layer.state_dict()
    for name, value in found.items():
        if name not in own or own[name].shape != value.shape:
            expected = f"{tuple(own[name].shape)}" if name in own else "nothing"
            raise HypvisionError(
                f"'{name}' has the shape {tuple(value.shape)} where the layer has {expected}. "
                "Create the layer with the published sizes and bias."
            )
    missing = [name for name in own if name not in found and not name.endswith("log_c")]
    if missing:
        raise HypvisionError(f"The published layer lacks {', '.join(missing)}. Create the layer without them.")
    return {**{name: value for name, value in own.items() if name.endswith("log_c")}, **found}
