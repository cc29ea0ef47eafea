"""Convert weights of single layers from other libraries to the layers of :mod:`hypvision.nn`.

    >>> layer = LorentzConv2d(64, 128, 3, manifold)
    >>> layer.load_state_dict(layer_state(layer, published, "hyperboliccv"))

The libraries, and the layers of ours for which each has a counterpart:

- ``hyperboliccv`` (Bdeir et al., ICLR 2024): LorentzLinear, LorentzConv1d/2d,
  LorentzConvTranspose2d, LorentzBatchNorm1d/2d, LorentzMLR;
- ``lhier`` (Bdeir et al., NeurIPS 2025): EfficientLorentzConv2d and EfficientLorentzLinear, and all
  layers of ``hyperboliccv``, which its networks use, too;
- ``fully-hyperbolic-nn`` (Chen et al., ACL 2022): LorentzLinear with ``normalize="time"``;
- ``hypercore`` (He et al., 2025): LorentzLinear (that of Hypformer), LorentzConv2d,
  LorentzAttention, LorentzResidual;
- ``fgg`` (van der Klis et al., 2026): FGGLinear, FGGMLR;
- ``geoopt`` (its layers of 2026): PLFCLinear, GyroLorentzBatchNorm1d/2d;
- ``hyptorch`` (Khrulkov et al., CVPR 2020): PoincareLinear, GaneaMLR;
- ``hnn++`` (Shimizu et al., ICLR 2021): PoincareMLR;
- ``hypll`` (van Spengler et al., 2023): PoincareFullyConnected, PoincareConv2d,
  PoincareBatchNorm1d/2d, HyperbolicEmbedding.

hyptorch adds the bias of a linear layer as if ``c`` were 1; our layer uses the manifold's ``c``. If
``c`` is not 1, the two agree only without a bias, and :func:`layer_state` warns.

Whole networks have converters of their own: :mod:`hypvision.zoo.convert`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hypvision.io import HypvisionError, one_of
from hypvision.nn import (
    EfficientLorentzConv2d,
    EfficientLorentzLinear,
    HyperbolicEmbedding,
    LorentzAttention,
    LorentzBatchNorm1d,
    LorentzBatchNorm2d,
    LorentzConv1d,
    LorentzConv2d,
    LorentzConvTranspose2d,
    LorentzLinear,
    LorentzMLR,
    LorentzResidual,
)

from .ball import PoincareBatchNorm1d, PoincareBatchNorm2d, PoincareConv2d
from .linear import FGGLinear, PLFCLinear, PoincareFullyConnected, PoincareLinear
from .mlr import FGGMLR, GaneaMLR, PoincareMLR
from .norm import GyroLorentzBatchNorm1d, GyroLorentzBatchNorm2d

_State = dict[str, Tensor | None]  # None: the published layer lacks this optional weight


class _Entries:
    """The published tensors of a layer, of which each must be used, or be known to be redundant."""

    def __init__(self, state: Mapping[str, Tensor], ignored: tuple[str, ...]):
        self.rest = {
            name: value for name, value in state.items() if not f".{name}".endswith(ignored)
        }
        self.names = sorted(state)

    def take(self, name: str) -> Tensor:
        if name not in self.rest:
            raise HypvisionError(
                f"The layer has no '{name}', but {', '.join(self.names) or 'nothing'}."
            )
        value = self.rest.pop(name)
        plain: Tensor = getattr(value, "tensor", value)  # HypLL's points hold a tensor
        return plain.detach().clone()

    def maybe(self, name: str) -> Tensor | None:
        return self.take(name) if name in self.rest else None

    def finish(self, layer: str) -> None:
        """Raise an error for entries that nothing has taken."""
        if self.rest:
            raise HypvisionError(
                f"These tensors are no part of {layer}: {', '.join(sorted(self.rest))}. Give the "
                "state dict of this layer alone."
            )


def _with_gate(
    layer: LorentzLinear, entries: _Entries, library: str, normalize: tuple[bool | str, ...]
) -> _State:
    """Convert the published matrix ``(m + 1, n + 1)``, whose first row is the gate of the norm, or
    unused."""
    if layer.normalize not in normalize:
        raise HypvisionError(
            f"{library} has no linear layer with normalize={layer.normalize!r}. Create the layer "
            f"with normalize={' or '.join(map(repr, normalize))}."
        )
    matrix = entries.take("weight.weight")
    offset = entries.maybe("weight.bias")
    scale = entries.maybe("scale")
    out: _State = {"weight": matrix[1:, 1:], "time_weight": matrix[1:, 0]}
    if offset is not None:
        out["bias"] = offset[1:]
    if layer.normalize:
        out["norm_weight"] = matrix[0]
        out["scale"] = scale
        out["norm_bias"] = None if offset is None else offset[:1]
    return out


def _kernel(layer: LorentzConv1d | LorentzConv2d, name: str, matrix: Tensor) -> _State:
    """Convert a matrix ``(C', k k C + 1)``, whose columns are the time of a patch and then its
    space part by position and channel (in 1D by channel and position)."""
    positions = math.prod(layer.kernel_size)
    if (matrix.shape[1] - 1) % positions:
        raise HypvisionError(
            f"'{name}' has {matrix.shape[1]} columns, which do not divide into {positions} "
            f"positions of the kernel {layer.kernel_size} and a time. Create the layer with its "
            "kernel."
        )
    if isinstance(layer, LorentzConv1d):
        weight = matrix[:, 1:].reshape(len(matrix), -1, positions)
    else:
        by_position = matrix[:, 1:].reshape(len(matrix), *layer.kernel_size, -1)
        weight = by_position.movedim(-1, 1)
    return {"weight": weight.contiguous(), "time_weight": matrix[:, 0]}


def _lorentz_conv(
    layer: LorentzConv1d | LorentzConv2d, entries: _Entries, prefix: str = ""
) -> _State:
    """Convert the published matrix of a convolution, which has an extra first row that is
    unused."""
    name = f"{prefix}linearized_kernel.weight.weight"
    matrix = entries.take(name)
    offset = entries.maybe(f"{prefix}linearized_kernel.weight.bias")
    entries.maybe(f"{prefix}linearized_kernel.scale")
    return {**_kernel(layer, name, matrix[1:]), "bias": None if offset is None else offset[1:]}


def _efficient(layer: EfficientLorentzConv2d | EfficientLorentzLinear, entries: _Entries) -> _State:
    """Convert the linear map, or the free matrix of its Cayley transform, and the parameter of the
    boost."""
    raw = entries.maybe("rotate.parametrizations.weight.original")
    weight = entries.take("rotate.weight") if raw is None else raw
    return {"weight": weight, "boost_weight": entries.maybe("boost.weight")}


def _transposed(layer: LorentzConvTranspose2d, entries: _Entries) -> _State:
    entries.maybe("pad_weight")  # constant ones, which insert zeros between the pixels
    return {
        f"conv.{name}": value for name, value in _lorentz_conv(layer.conv, entries, "conv.").items()
    }


def _batch_norm(layer: nn.Module, entries: _Entries) -> _State:
    found = _renamed(beta="beta", gamma="gamma", running_var="running_var")(layer, entries)
    # drop the time, which is 0 in a tangent vector at the origin
    return {**found, "running_mean": entries.take("running_mean")[1:]}


def _gyro_norm(layer: GyroLorentzBatchNorm1d | GyroLorentzBatchNorm2d, entries: _Entries) -> _State:
    """Convert geoopt's batch norm, whose running mean is a point; ours is the tangent vector at the
    origin that leads to this point."""
    found = _renamed(beta="bias", gamma="log_scale", running_var="running_var")(layer, entries)
    mean = layer.manifold.logmap0(entries.take("running_mean")).detach()
    return {**found, "running_mean": mean}


def _hypll_linear(layer: PoincareFullyConnected, entries: _Entries) -> _State:
    return {"weight": entries.take("z").t(), "bias": entries.maybe("bias")}


def _hypll_conv(layer: PoincareConv2d, entries: _Entries) -> _State:
    """Convert HypLL's matrix ``(C k k, C')``, whose rows are ordered by channel and then by
    position."""
    matrix = entries.take("weights").t()
    size = (layer.in_channels, *layer.kernel_size)
    if matrix.shape[1] != math.prod(size):
        raise HypvisionError(
            f"'weights' has {matrix.shape[1]} rows where the layer has {math.prod(size)}, the "
            f"channels and the kernel {layer.kernel_size}. Create the layer with the published "
            "sizes."
        )
    return {"weight": matrix.reshape(-1, *size), "bias": entries.maybe("bias")}


def _hypll_norm(layer: PoincareBatchNorm1d | PoincareBatchNorm2d, entries: _Entries) -> _State:
    if layer.track_running_stats:
        raise HypvisionError(
            "hypll's batch norm has no running statistics: create the layer with "
            "track_running_stats=False."
        )
    prefix = "norm." if "norm.bias" in entries.rest else ""
    return {name: entries.take(f"{prefix}{name}") for name in ("bias", "weight")}


def _hypercore_linear(layer: LorentzLinear, entries: _Entries, prefix: str = "linear.") -> _State:
    matrix = entries.take(f"{prefix}weight")
    return {
        "weight": matrix[:, 1:],
        "time_weight": matrix[:, 0],
        "bias": entries.maybe(f"{prefix}bias"),
    }


def _hypercore_conv(layer: LorentzConv2d, entries: _Entries) -> _State:
    name = "linearized_kernel.linear.weight"
    return {
        **_kernel(layer, name, entries.take(name)),
        "bias": entries.maybe("linearized_kernel.linear.bias"),
    }


def _hypercore_attention(layer: LorentzAttention, entries: _Entries) -> _State:
    if layer.join == "space":
        raise HypvisionError(
            "hypercore's attention reads the times of the heads: create the layer with "
            "join='points' (its trans_heads_concat) or 'centroid', and with head_dim one less than "
            "its channels per head."
        )
    entries.maybe("bias")  # drop the constant bias of the scores, which the softmax ignores
    out: _State = {"scale": entries.take("scale")}
    for ours, theirs, part in (
        ("query", "Wq", layer.query),
        ("key", "Wk", layer.key),
        ("value", "Wv", layer.value),
    ):
        found = _hypercore_linear(part, entries, f"{theirs}.")
        out |= {f"{ours}.{name}": value for name, value in found.items()}
    if layer.join == "points":
        out |= {
            "out.weight": entries.take("final_linear.weight"),
            "out.bias": entries.maybe("final_linear.bias"),
        }
    return out


def _fgg(layer: FGGLinear, entries: _Entries) -> _State:
    """Convert normals ``(n, m)``, or directions and lengths; the planes that are stored beside them
    are computed again."""
    entries.maybe("V_auxiliary")
    normed = layer.gain is not None
    return {
        "offset": entries.take("a"),
        "weight": entries.take("v" if normed else "U").t(),
        "gain": entries.take("g") if normed else None,
    }


def _renamed(**names: str) -> Callable[[nn.Module, _Entries], _State]:
    """A reader of entries by our names; a ``?`` behind the published name: it may be missing."""
    return lambda layer, entries: {
        ours: entries.maybe(name[:-1]) if name.endswith("?") else entries.take(name)
        for ours, name in names.items()
    }


def _hyptorch_linear(layer: PoincareLinear, entries: _Entries) -> _State:
    weight = entries.take("weight")
    bias = entries.maybe("bias")
    if bias is not None and bias.any() and layer.manifold.c != 1:
        warnings.warn(
            "hyptorch adds the bias of its linear layer as if c were 1, ours with c = "
            f"{float(layer.manifold.c):g}: outputs differ from hyptorch's.",
            stacklevel=3,
        )
    return {"weight": weight, "bias": bias}


def _hnn_mlr(layer: PoincareMLR, entries: _Entries) -> _State:
    g = entries.take("weight_g")
    bias = entries.maybe("bias")
    v = entries.take("weight_v").t()
    return {"g": g, "v": v, "r": torch.zeros_like(g) if bias is None else bias}


_Readers = dict[type[nn.Module], Callable[[Any, _Entries], _State]]

_HYPERBOLICCV: _Readers = {
    LorentzLinear: partial(_with_gate, library="hyperboliccv", normalize=(False, True)),
    LorentzConvTranspose2d: _transposed,
    LorentzConv1d: _lorentz_conv,
    LorentzConv2d: _lorentz_conv,
    LorentzBatchNorm1d: _batch_norm,
    LorentzBatchNorm2d: _batch_norm,
    LorentzMLR: _renamed(a="a", z="z"),
}
# From a library's name to the functions that convert its layers, and the suffixes of names of
# tensors that only repeat the curvature.
LAYOUTS: dict[str, tuple[_Readers, tuple[str, ...]]] = {
    "hyperboliccv": (_HYPERBOLICCV, (".manifold.k",)),
    "lhier": (
        _HYPERBOLICCV | {EfficientLorentzConv2d: _efficient, EfficientLorentzLinear: _efficient},
        (".manifold.k",),
    ),
    "fully-hyperbolic-nn": (
        {LorentzLinear: partial(_with_gate, library="fully-hyperbolic-nn", normalize=("time",))},
        (".manifold.k",),
    ),
    "hypercore": (
        {
            LorentzLinear: _hypercore_linear,
            LorentzConv2d: _hypercore_conv,
            LorentzAttention: _hypercore_attention,
            LorentzResidual: _renamed(weight="w_y", log_scale="scale?"),
        },
        (".c", ".k"),
    ),
    "geoopt": (
        {
            PLFCLinear: _renamed(z="z", a="a", bias="bias?"),
            GyroLorentzBatchNorm1d: _gyro_norm,
            GyroLorentzBatchNorm2d: _gyro_norm,
        },
        (".manifold.k",),
    ),
    "fgg": ({FGGLinear: _fgg, FGGMLR: _fgg}, (".manifold._k",)),
    "hyptorch": (
        {PoincareLinear: _hyptorch_linear, GaneaMLR: _renamed(a="a_vals", p="p_vals")},
        (".c",),
    ),
    "hnn++": ({PoincareMLR: _hnn_mlr}, (".isp_c",)),
    "hypll": (
        {
            PoincareFullyConnected: _hypll_linear,
            PoincareConv2d: _hypll_conv,
            PoincareBatchNorm1d: _hypll_norm,
            PoincareBatchNorm2d: _hypll_norm,
            HyperbolicEmbedding: _renamed(weight="weight"),
        },
        (".c.value",),
    ),
}


def layer_state(
    layer: nn.Module, published: Mapping[str, Tensor], library: str
) -> dict[str, Tensor]:
    """Return the state dict of a layer of ours from that of its published counterpart.

    The curvature is that of the layer's manifold. Libraries store it in units of their own (``k = 1
    / c``, or before a softplus), so create the manifold with the published curvature.

    Args:
        layer: a layer of :mod:`hypvision.nn` or :mod:`hypvision.compat`, created with the sizes of
            the published one.
        published: the state dict of the published layer alone, without a prefix in its names.
        library: ``"hyperboliccv"``, ``"lhier"``, ``"fully-hyperbolic-nn"``, ``"hypercore"``,
            ``"fgg"``, ``"geoopt"``, ``"hyptorch"``, ``"hnn++"`` or ``"hypll"``.

    Returns:
        The state dict for ``layer.load_state_dict``; the layer's learned curvature is in it with
        its present value.
    """
    one_of(LAYOUTS, library=library)
    readers, ignored = LAYOUTS[library]
    kind = type(layer).__name__
    if type(layer) not in readers:
        raise HypvisionError(
            f"{library} has no counterpart of {kind}. "
            f"Known: {', '.join(reader.__name__ for reader in readers)}."
        )
    entries = _Entries(published, ignored)
    read = readers[type(layer)](layer, entries)
    found = {name: value for name, value in read.items() if value is not None}
    entries.finish(f"{library}'s {kind}")
    own = layer.state_dict()
    for name, value in found.items():
        if name in own and value.squeeze().shape == own[name].squeeze().shape:
            found[name] = value.reshape(own[name].shape).contiguous()
        else:
            expected = tuple(own[name].shape) if name in own else "nothing"
            raise HypvisionError(
                f"'{name}' has the shape {tuple(value.shape)} where the layer has {expected}. "
                "Create the layer with the published sizes and bias."
            )
    missing = sorted(name for name in own.keys() - found.keys() if not name.endswith("log_c"))
    if missing:
        raise HypvisionError(
            f"The published layer lacks {', '.join(missing)}. Create the layer without them."
        )
    return {**own, **found}
