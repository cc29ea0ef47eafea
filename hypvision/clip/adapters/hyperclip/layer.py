r"""The map of HyperCLIP in closed form: rows times a block-diagonal matrix on the Poincare ball.

HyperCLIP (Peng et al., CVPR 2025) maps a vector :math:`w` to :math:`\log_0(S \otimes_c \exp_0(w))`
with :math:`S = \mathrm{diag}(S_1, ..., S_K)`. The Moebius product is
:math:`\exp_0 \circ S \circ \log_0`, so the curvature cancels and the map is linear, except where
the official code clamps. With all its clamps it is, exactly,

.. math:: w' = S w \cdot \min\left(1, \frac{A_0}{\sqrt c\,|w|}, \frac{A_1}{\sqrt c\,|S w|}\right),
          \quad A_0 = \mathrm{artanh}(1 - 10^{-5}), \; A_1 = \mathrm{artanh}(1 - 10^{-3}):

which is a linear map, clipped to the radius :math:`A_1 / \sqrt c` (38 for c = 0.01, 3.8 for c = 1).
:func:`map_rows` computes it; :func:`map_several` computes it fast for packed q, k, v projections.
:class:`BlockMaps` holds the blocks S of one attention block.

Shapes: rows ``(..., d)``; ``s`` is ``(K, n, n)`` with ``K * n = d``, or ``(n, n)`` for one block in
place of all K. A row of weights ``w`` becomes ``S w``, so a matrix W becomes ``W S^T``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hypvision.clip.memo import Memo
from hypvision.clip.towers import Tower
from hypvision.geometry.numerics import Function, exact, tanhc
from hypvision.io import HypvisionError, Plain

from .config import HyperCLIPConfig

_EPS_ARTANH = 1e-5  # the official code clamps artanh's argument to +-(1 - 1e-5)
_EPS_BALL = 1e-3  # the official code projects points to the radius (1 - 1e-3) / sqrt(c)
CLIP_RADIUS = math.atanh(1 - _EPS_BALL)
"""The largest norm of a mapped row, times sqrt(c): :math:`A_1`."""
_INPUT_RADIUS = math.atanh(1 - _EPS_ARTANH)


def block_product(x: Tensor, s: Tensor) -> Tensor:
    """Return ``x`` ``(..., d)`` times the transposed block-diagonal matrix of ``s``, which is never
    built."""
    n = s.shape[-1]
    if n == 1:
        return x * s.reshape(-1)
    blocks = x.unflatten(-1, (-1, n))
    if s.dim() == 2:
        return (blocks @ s.T).flatten(-2)
    return torch.einsum("...kn,kmn->...km", blocks, s).flatten(-2)


def map_rows(x: Tensor, s: Tensor, c: float, mobius: bool = True) -> Tensor:
    r"""Return rows ``x`` ``(..., d)`` mapped by the closed form, finite with finite gradients for
    every finite input.

    ``mobius=False`` computes :math:`\log_0(S \exp_0(w))`, the plain matrix product on the ball (our
    reading of Table 7). The result has the dtype of ``x`` and is computed at least in float32.
    """
    dtype = torch.promote_types(torch.promote_types(x.dtype, s.dtype), torch.float32)
    with exact(x.device):
        u = x.to(dtype)
        s = s.to(dtype)
        root = math.sqrt(c)
        tiny = torch.finfo(dtype).tiny
        y = block_product(u, s)
        a = root * _norm(u, tiny)
        mapped = root * _norm(y, tiny)
        if mobius:  # The divisors are clamped, as an infinite quotient would make the gradient NaN.
            first = _INPUT_RADIUS / a.clamp(min=_INPUT_RADIUS)
            return (y * torch.minimum(first, CLIP_RADIUS / mapped.clamp(min=CLIP_RADIUS))).to(
                x.dtype
            )
        # exp0 scales w by tanh(a)/a. As S is linear, this scale can be applied after S; then log0
        # scales back.
        shortened = tanhc(a)
        inside = mapped * shortened
        limit = 1 - _EPS_BALL
        lengthened = _atanhc(inside.clamp(max=limit)) * shortened
        return (
            y * torch.where(inside < limit, lengthened, CLIP_RADIUS / mapped.clamp(min=limit))
        ).to(x.dtype)


def _atanhc(z: Tensor) -> Tensor:
    """Return artanh(z) / z for 0 <= z < 1."""
    small = z < 1e-2  # there the next term of the series, z^8 / 9, is below 1e-16
    large = torch.where(small, 0.5, z)
    q = z.square()
    return torch.where(small, 1 + q * (1 / 3 + q * (1 / 5 + q / 7)), torch.atanh(large) / large)


def _norm(x: Tensor, tiny: float) -> Tensor:
    # At 0 the derivative of the norm is NaN, but that of the clamped square is 0.
    largest = x.detach().abs().amax(-1, keepdim=True).clamp(min=tiny)
    return (x / largest).square().sum(-1, keepdim=True).clamp(min=1e-30).sqrt() * largest


# The map of packed projections, computed fast
# -------------------------------------------------------------------------------

# On a CPU, blocks of at least this side are multiplied one by one: a batched product would first
# copy all weights and gradients into another order, which costs as much as the products. Smaller
# blocks are multiplied together: there are too many of them for one call each.
SMALL = 32


def _one_by_one(x: Tensor, side: int) -> bool:
    return x.device.type == "cpu" and side >= SMALL


def _whole(parts: Sequence[Tensor], side: int) -> Sequence[Tensor]:
    """Return matrices ``(P, d, K * n)``, in parts, as they are where blocks are multiplied one by
    one; else joined."""
    return parts if len(parts) == 1 or _one_by_one(parts[0], side) else [torch.cat(list(parts))]


def _product(parts: Sequence[Tensor], s: Tensor) -> Tensor:
    """Return matrices ``(P, d, K * n)``, given in parts, times the transposed blocks ``s`` ``(P, K,
    n, n)``."""
    if not _one_by_one(s, s.shape[-1]):
        blocks = parts[0].unflatten(-1, (s.shape[1], -1)).transpose(1, 2)
        return torch.matmul(blocks, s.mT).transpose(1, 2).flatten(-2)
    out = s.new_empty(len(s), *parts[0].shape[1:])
    for rows, mapped, blocks in zip(itertools.chain(*parts), out, s):
        for a, b, block in zip(rows.split(s.shape[-1], 1), mapped.split(s.shape[-1], 1), blocks):
            torch.mm(a, block.t(), out=b)
    return out


def _product_gradient(grad: Tensor, parts: Sequence[Tensor], side: int) -> Tensor:
    """Return the gradient of :func:`_product` with respect to the blocks, ``(P, K, n, n)``."""
    if not _one_by_one(grad, side):
        a, b = (x.unflatten(-1, (-1, side)).transpose(1, 2) for x in (grad, parts[0]))
        return torch.matmul(a.mT, b)
    found = grad.new_empty(len(grad), grad.shape[-1] // side, side, side)
    for cotangents, rows, blocks in zip(grad, itertools.chain(*parts), found):
        for a, b, block in zip(cotangents.split(side, 1), rows.split(side, 1), blocks):
            torch.mm(a.t(), b, out=block)
    return found


class _MapRows(Function):
    """The map of :func:`map_rows` for frozen matrices; backward needs only these, and outputs that
    were clipped."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, c: float | None, *parts: Tensor) -> Tensor:
        """Return matrices, given in parts of ``(P, d, K * n)``, mapped by the blocks ``s`` ``(P, K,
        n, n)``, as ``(P, d, K * n)``; without ``c`` the map is linear, not clipped."""
        side = s.shape[-1]
        whole = _whole(parts, side)
        out = _product(whole, s)
        scale = None
        if c is not None:
            ctx.clip = CLIP_RADIUS / math.sqrt(c)
            tiny = torch.finfo(out.dtype).tiny
            lengths = torch.cat([torch.linalg.vector_norm(part, dim=-1) for part in whole])
            limit = _INPUT_RADIUS / (math.sqrt(c) * lengths).clamp(min=_INPUT_RADIUS)
            ratio = ctx.clip / torch.linalg.vector_norm(out, dim=-1).clamp(min=tiny)
            scale = torch.minimum(limit, ratio)
            # On a GPU, (scale < 1).any() would wait for the device.
            if out.device.type != "cpu" or (scale < 1).any():
                out.mul_(scale[..., None])
                # A negative scale marks rows that the radial clip shortened.
                scale = torch.where(ratio < limit, -scale, scale)
            else:
                scale = None
        ctx.side = side
        ctx.save_for_backward(None if scale is None else out, scale, *parts)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, scale, *parts = ctx.saved_tensors
        if scale is not None:  # the gradient of a row that was clipped has no radial part
            radial = torch.where(scale < 0, (grad * out).sum(-1) / ctx.clip**2, 0)
            grad = torch.addcmul(grad, out, radial[..., None], value=-1).mul_(
                scale.abs()[..., None]
            )
        found = _product_gradient(grad, _whole(parts, ctx.side), ctx.side)
        return found, None, *(None for _ in parts)


def map_several(
    packed: Sequence[Tensor],
    s: Sequence[Tensor],
    c: float | None,
    thirds: tuple[int, ...] = (0, 1, 2),
) -> Sequence[Tensor]:
    """Return packed projections of one shape with some of their parts mapped as by
    :func:`map_rows`, in a few products for all. Of the stacked q, k, v projections ``packed``
    ``(3d, d)``, which are frozen, the parts ``thirds`` are mapped by the blocks ``s`` ``(P, K, n,
    n)``, at least in float32. Gradients flow to the blocks only. ``c=None``: the Euclidean map,
    which is not clipped."""
    dtype = torch.promote_types(packed[0].dtype, torch.float32)
    every = thirds == (0, 1, 2)
    with exact(packed[0].device):
        rows = [part.detach().unflatten(0, (3, -1)) for part in packed]
        picked = [(part if every else part[list(thirds)]).to(dtype) for part in rows]
        joined = _MapRows.apply(torch.cat(list(s)).to(dtype), c, *picked).to(packed[0].dtype)
        mapped = joined.unflatten(0, (len(packed), -1)).unbind()
        if every:
            return [part.flatten(0, 1) for part in mapped]
        return [
            torch.cat([part[thirds.index(i)] if i in thirds else frozen[i] for i in range(3)])
            for part, frozen in zip(mapped, rows)
        ]


class PackedMap(nn.Module):
    """A trained map of the packed projection ``(3d, d)`` of one attention block to the adapted one
    (:meth:`adapted`).

    Without gradients the result is cached until a weight changes. With gradients it is computed
    once in each forward pass of the attention, between the hooks :meth:`begin` and :meth:`end` on
    the module that owns the projection. With ``dense_only`` the attention itself uses the frozen
    projection; only code outside its forward pass, such as the dense path, reads the adapted one.
    """

    def __init__(self, dense_only: bool = False):
        super().__init__()
        self.dense_only = dense_only
        self._memo = Memo()
        self._running = False
        self._live: Tensor | None = None

    def adapted(self, packed: Tensor) -> Tensor:
        """Compute the adapted projection from the frozen one."""
        raise NotImplementedError

    def fresh(self, packed: Tensor) -> Tensor:
        """Return the adapted projection with gradients; maps that are computed together may already
        have it."""
        return self.adapted(packed)

    def forward(self, packed: Tensor) -> Tensor:
        """Return the adapted projection ``(3d, d)`` for the frozen ``packed``."""
        parameters = list(self.parameters())
        frozen = self.dense_only and self._running
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
            if self._live is None:
                self._live = self._with_gradients(packed, frozen)
            found = self._live
            self._live = found if self._running else None
            return found
        if frozen:
            return packed
        if torch.compiler.is_compiling():  # a compiled graph must not use the cached value
            return self.adapted(packed)
        return self._memo.get([*parameters, packed], lambda: self.adapted(packed))

    def _with_gradients(self, packed: Tensor, frozen: bool) -> Tensor:
        """Return the projection in training: adapted, or frozen with zeros added, because
        distributed training waits for the gradient of every parameter."""
        if not frozen:
            return self.fresh(packed)
        zero = 0 * torch.stack([parameter.sum() for parameter in self.parameters()]).sum()
        return packed + zero.to(packed.dtype)

    # Hooks on the module that owns the projection. They are methods, so that a copy of the module
    # has hooks of its own.

    def begin(self, owner: nn.Module, args: Any) -> None:
        """Drop, as a forward pre-hook, the result that belongs to the last autograd graph."""
        self._running = True
        self._live = None

    def end(self, owner: nn.Module, args: Any, output: Any) -> None:
        """Drop, as a forward hook that runs even after an error, the result of this forward
        pass."""
        self._running = False
        self._live = None

    def train(self, mode: bool = True) -> PackedMap:
        """Set the mode and clear the cached projection, because weights may have been swapped."""
        if mode != self.training:
            self._memo.clear()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._memo.clear()  # Moving or casting the module makes the cached projection invalid.
        return super()._apply(*args, **kwargs)


class BlockMaps(PackedMap):
    """The trained blocks ``q``, ``k``, ``v`` (or some of them) of one attention block with rows of
    length ``dim``, in a tower of curvature ``c``; they start at the identity."""

    def __init__(self, dim: int, config: HyperCLIPConfig, c: float, dense_only: bool = False):
        super().__init__(dense_only)
        n = config.block
        if not isinstance(n, int) or n < 1 or dim % n:
            near = ", ".join(str(i) for i in range(1, dim + 1) if dim % i == 0 and i >= 8)
            raise HypvisionError(
                f"A block of {n} does not divide the width {dim}. Use one of {near}."
            )
        self.dim = dim
        self.config = config
        self.c = float(c)
        self.together: Together | None = None
        eye = torch.eye(n)
        for letter in config.projections:
            self.register_parameter(
                letter, nn.Parameter(eye.clone() if config.shared else eye.repeat(dim // n, 1, 1))
            )

    def fresh(self, packed: Tensor) -> Tensor:
        found = None if self.together is None else self.together.take(self, self._running)
        return self.adapted(packed) if found is None else found

    def blocks(self) -> Tensor:
        """Return the blocks of all adapted projections, ``(P, K, n, n)``."""
        config = self.config
        size = (self.dim // config.block, config.block, config.block)
        return torch.stack([getattr(self, letter).expand(size) for letter in config.projections])

    def adapted(self, packed: Tensor) -> Tensor:
        return self.adapted_together([self], [packed])[0]

    @staticmethod
    def adapted_together(maps: Sequence[BlockMaps], packed: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the adapted projections of several maps with equal configs, for their frozen
        projections."""
        first = maps[0]
        config = first.config
        # A compiler fuses the operations by itself.
        if config.mobius and not torch.compiler.is_compiling():
            c = None if config.geometry == "euclidean" else first.c
            thirds = tuple("qkv".index(letter) for letter in config.projections)
            return map_several(packed, [own.blocks() for own in maps], c, thirds)
        dtype = torch.promote_types(packed[0].dtype, torch.float32)
        found = []
        with exact(packed[0].device):
            for own, part in zip(maps, packed):
                chunks = zip("qkv", part.detach().to(dtype).chunk(3))
                found.append(
                    torch.cat([own.rows(letter, chunk) for letter, chunk in chunks]).to(part.dtype)
                )
        return found

    def rows(self, letter: str, x: Tensor) -> Tensor:
        """Return rows or tokens ``(..., d)`` mapped by the blocks of a projection; unchanged if it
        has none."""
        s = self._parameters.get(letter)
        if s is None:
            return x
        if self.config.geometry == "euclidean":
            return block_product(x.to(torch.promote_types(x.dtype, s.dtype)), s).to(x.dtype)
        return map_rows(x, s, self.c, self.config.mobius)

    def map_attention_inputs(self, owner: nn.Module, args: Any, kwargs: Plain) -> tuple[Any, Plain]:
        """Map the inputs of :class:`torch.nn.MultiheadAttention`, as its forward pre-hook in the
        feature form."""
        query, key, value = args[:3]
        if key is not query or value is not query:
            raise HypvisionError(
                "HyperCLIP's feature form adapts self-attention only, but query, key and value "
                "differ. Use form='weight'."
            )
        return (*(self.rows(letter, query) for letter in "qkv"), *args[3:]), kwargs

    def map_linear_output(self, owner: nn.Linear, args: Any, output: Tensor) -> Tensor:
        """Compute timm's packed ``qkv`` of mapped tokens, as its forward hook in the feature
        form."""
        bias = (None,) * 3 if owner.bias is None else owner.bias.chunk(3)
        chunks = zip("qkv", owner.weight.chunk(3), bias)
        return torch.cat(
            [F.linear(self.rows(letter, args[0]), w, b) for letter, w, b in chunks], dim=-1
        )

    def map_value_input(self, x: Tensor) -> Tensor:
        """Return the mapped input ``x`` of the value projection in the feature form, for a tower's
        dense path."""
        return self.rows("v", x)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, c={self.c:g}, {self.config.geometry}, {self.config.form} form"


class Together:
    """The adapted projections of all blocks of a tower, which are computed at once when the first
    block of a forward pass asks for its own.

    Each block takes its projection once. A block that finds none computes its own, as all blocks do
    where activations are computed again in the backward pass. Projections that no block took are
    dropped in the backward pass.

    Args:
        tower: the tower of the blocks.
        places: numbers of the blocks in the tower.
        maps: the maps of the blocks, with equal configs.
    """

    def __init__(self, tower: Tower, places: Sequence[int], maps: Sequence[BlockMaps]):
        self.tower = tower
        self.places = list(places)
        self.maps = list(maps)
        self.waiting: dict[int, tuple[int, Tensor]] = {}

    def take(self, maps: BlockMaps, running: bool) -> Tensor | None:
        """Return the projection of the block with ``maps``, or None if the block must compute it;
        ``running`` tells that the block's attention asks."""
        # Hooks on saved tensors mean checkpointing, in which each block must be computable again
        # from its own input alone.
        if (
            torch.compiler.is_compiling()
            or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        ):
            return None
        if running and maps is self.maps[0]:
            frozen = [self.tower.frozen(self.tower.blocks[place]) for place in self.places]
            found = BlockMaps.adapted_together(self.maps, frozen)
            for part in found:
                part.register_hook(self._drop)
            self.waiting = {id(own): (_version(own), part) for own, part in zip(self.maps, found)}
        version, found_one = self.waiting.pop(id(maps), (None, None))
        return found_one if version == _version(maps) else None

    def __getstate__(self) -> Plain:
        return {**vars(self), "waiting": {}}  # copies start without projections

    def _drop(self, grad: Tensor) -> None:
        self.waiting = {}


def _version(maps: nn.Module) -> int:
    """Return a number that changes with every change of a parameter in place."""
    return sum(parameter._version for parameter in maps.parameters())


class AdaptedWeight(nn.Module):
    """A parametrisation of a packed projection by a map that the transformer block owns."""

    def __init__(self, maps: PackedMap):
        super().__init__()
        # A tuple keeps PyTorch from registering the maps as a submodule a second time.
        self.maps = (maps,)

    def forward(self, packed: Tensor) -> Tensor:
        return self.maps[0](packed)
