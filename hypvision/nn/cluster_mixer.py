"""The token mixer of HCFormer: soft clustering, Euclidean in windows, Lorentzian between them.

Paper: "Hyperbolic Hierarchical Clustering for Visual Representation Learning" (Wei et al., ECCV
2026). The map is cut into ``fold x fold`` windows. At patch level the pixels of a window are softly
assigned to ``prop x prop`` centres by cosine similarity. At window level the windows themselves,
lifted to the hyperboloid, are assigned to ``win x win`` centres of the whole map by geodesic
distance. Values are averaged into the centres (aggregation) and handed back to the pixels with the
same weights (dispatch).

How the mixer is computed here: aggregation and dispatch are one batched matrix product each, and
one function serves both levels; the projections to features and values are one product, and one
copy splits windows and heads. The result of the window level is constant in a window, so it is
added as a bias after the output projection instead of being up-sampled to pixels and concatenated.
A single centre at window level is the mean of the map, whatever its distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import exportable
from hypvision.geometry.numerics import (
    Function,
    backward_of,
    dot,
    exact,
    has_float64,
    length,
    plain,
    square_norm,
)
from hypvision.io import ArgumentError, Plain, at_least, more_than, one_of

from .checks import check_sizes
from .functional import Attached, precise
from .linear import SharedLinear


class ClusterAssignment(NamedTuple):
    """Soft assignments of one mixer, for B images, e heads, M centres in a window and K
    window-level centres.

    ``patch`` has shape ``(B, e, M, H, W)`` and sums to 1 over M at every pixel. To which centres a
    pixel is assigned depends on its window: ``window_index`` ``(H, W)`` holds the windows' numbers,
    counted row by row. ``window`` has shape ``(B, e, K, fold, fold)`` and sums to 1 over K, or is
    None if the mixer has no window level.
    """

    patch: Tensor
    window_index: Tensor
    window: Tensor | None


GEOMETRIES = ("euclidean", "hyperbolic")


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``x`` in a dtype; a compiler or exporter sees no operation if ``x`` has that dtype
    already."""
    return x if x.dtype == dtype else x.to(dtype)


# the least cosh of a distance: below, the distance counts as 0
NEAREST = 1 + 2.0**-52
# the least squared norm of a lifted feature: this is the clamp of the official code, active for
# norms below 1e-4
SHORTEST = 1e-8
_ONE = torch.tensor(1.0)


def _lifted(u: Tensor, c: float, ambient: bool) -> Tensor:
    """Return the points ``[t, s]``, scaled to curvature -1, to which features ``(..., d)``, clipped
    to the unit ball, are lifted; in float64 where the device has it.

    Args:
        u: features.
        c: curvature of the points before the scaling.
        ambient: whether the first feature is read as a time, so that ``s`` has d - 1 numbers.
    """
    u = _wide(u)
    u = u / F.threshold(length(u), 1.0, 1.0)
    norm = square_norm(u)
    if ambient:
        norm = torch.sub(norm, u[..., :1].square(), alpha=2)
        u = u[..., 1:]
    root = torch.sqrt(F.threshold(norm, SHORTEST, SHORTEST))
    space = u * (exportable.sinh(root * c**0.5) / root)
    return torch.cat([torch.sqrt(square_norm(space) + 1), space], -1)


def _wide(u: Tensor) -> Tensor:
    return as_dtype(u, torch.float64 if has_float64(u) else torch.float32)


class _Lifted(Function):
    """Compute :func:`_lifted` with a hand-written backward of half as many operations."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, c: float, ambient: bool) -> Tensor:
        wide = _wide(u)
        size = length(wide)
        longest = F.threshold(size, 1.0, 1.0)
        ball = wide / longest
        norm = square_norm(ball)
        space = ball
        if ambient:
            norm = torch.sub(norm, ball[..., :1].square(), alpha=2)
            space = ball[..., 1:]
        square = F.threshold(norm, SHORTEST, SHORTEST)
        root = torch.sqrt(square)
        angle = root * c**0.5
        factor = torch.sinh(angle) / root
        space = space * factor
        points = torch.cat([torch.hypot(length(space), _ONE), space], -1)
        ctx.save_for_backward(u, size, longest, ball, norm, square, angle, factor, points)
        ctx.c = c
        ctx.ambient = ambient
        return points

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        u, size, longest, ball, norm, square, angle, factor, points = ctx.saved_tensors
        if torch.is_grad_enabled():
            [by_u, *_] = backward_of(_lifted, [u, ctx.c, ctx.ambient], ctx.needs_input_grad, grad)
            return by_u, None, None
        threshold_backward = torch.ops.aten.threshold_backward
        start = int(ctx.ambient)
        of_space = torch.addcmul(grad[..., 1:], points[..., 1:], grad[..., :1] / points[..., :1])
        # minus the gradient of the squared norm, times 2
        bend = torch.sub(factor, torch.cosh(angle), alpha=ctx.c**0.5)
        pull = dot(of_space, ball[..., start:]) * bend / square
        of_ball = ball * threshold_backward(pull, norm, SHORTEST)
        of_ball[..., start:].neg_().addcmul_(of_space, factor)
        # Clipped features do not change with their length.
        along = threshold_backward(dot(of_ball, ball), size, 1.0)
        by_u = of_ball.addcmul_(ball, along, value=-1) / longest
        return as_dtype(by_u, u.dtype), None, None


class _Shared(Function):
    """Aggregation and dispatch of soft clustering: means of values at the centres, handed back with
    the same weights.

    With weights ``A`` ``(G, M, N)``, values ``v`` ``(G, N, d)`` and centres ``c`` ``(G, M, d)`` the
    means are ``u = (A v + c) / (A 1 + 1)``. The gradient of the quotient takes three operations
    here, seven of autograd's.

    Returns:
        ``A' u`` ``(G, N, d)``, the means ``u`` ``(G, M, d)`` and the divisors ``(G, M, 1)``.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(weights: Tensor, values: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with exact(values.device):
            sizes = weights.sum(2, keepdim=True) + 1
            means = torch.baddbmm(centers, weights, values) / sizes
            return torch.bmm(weights.transpose(1, 2), means), means, sizes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        weights, values, _ = inputs
        _, means, sizes = output
        ctx.save_for_backward(weights, values, means, sizes)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, of_means: Tensor | None, of_sizes: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights, values, means, sizes = ctx.saved_tensors
        grad = torch.zeros_like(values) if grad is None else grad
        gathered = torch.bmm(weights, grad)
        gathered = (gathered if of_means is None else gathered + of_means) / sizes
        total = (gathered * means).sum(2, keepdim=True)
        total = total if of_sizes is None else total - of_sizes
        # The gradient of the weights has three parts: of the product A v, of the divisor, and of
        # the product A' u.
        of_weights = torch.baddbmm(total, gathered, values.transpose(1, 2), beta=-1)
        of_weights = torch.baddbmm(of_weights, means, grad.transpose(1, 2))
        return of_weights, torch.bmm(weights.transpose(1, 2), gathered), gathered


class _Cropped(Function):
    """Return the rows and columns of a map ``(B, H, W, C)`` from ``top`` and ``left`` on; the
    backward fills the gradient's border in one operation, not in two."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
        return x[:, top : top + height, left : left + width]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, top, left, height, width = inputs
        bottom = x.shape[1] - top - height
        right = x.shape[2] - left - width
        ctx.border = (0, 0, left, right, top, bottom)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        return F.pad(grad, ctx.border), None, None, None, None


def _surely_zero(size: int) -> bool:
    """Return whether a size is 0; for a free size of an exported program, whether it is known to be
    0."""
    if isinstance(size, int):
        return size == 0
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy

    return statically_known_true(size == 0)


def _squared_distances(rows: int, columns: int, bins: int, like: Tensor) -> Tensor:
    """Return the squared distances ``(bins^2, rows, columns)`` between the middles of ``bins`` x
    ``bins`` cells of a window and its pixels, in units of a cell."""

    def along(size: int) -> Tensor:
        cells, pixels = (
            torch.arange(n, device=like.device, dtype=like.dtype) + 0.5 for n in (bins, size)
        )
        return (pixels * (bins / size) - cells.unsqueeze(1)).pow(2)

    squared = along(rows).reshape(bins, 1, rows, 1) + along(columns).reshape(1, bins, 1, columns)
    return squared.reshape(bins * bins, rows, columns)


def _pool(x: Tensor, side: int) -> Tensor:
    """Return averages ``(B, side^2, C)`` over ``side`` x ``side`` cells of a map ``(B, H, W, C)``,
    by adaptive average pooling."""
    if not exportable.exporting():
        return F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), side).flatten(2).transpose(1, 2)
    # ONNX has no adaptive pooling of maps of any size, so the map is multiplied by matrices
    # instead.
    batch, height, width, dim = x.shape
    rows = torch.matmul(_pool_matrix(height, side, x), x.reshape(batch, height, width * dim))
    return torch.matmul(
        _pool_matrix(width, side, x), rows.reshape(batch, side, width, dim)
    ).flatten(1, 2)


def _pool_matrix(size: int, bins: int, like: Tensor) -> Tensor:
    """Return the matrix ``(bins, size)`` of adaptive average pooling: bin i averages the pixels
    [floor(i s / b), ceil((i + 1) s / b)) of s."""
    # ``behind`` is the start of pixel j relative to the start of bin i, times b: the two overlap if
    # it lies strictly between -b and s.
    starts = torch.arange(bins, device=like.device).unsqueeze(1) * size
    behind = torch.arange(size, device=like.device) * bins - starts
    inside = torch.logical_and(behind > -bins, behind < size).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


class ClusterMixer(nn.Module):
    """Token mixer by hierarchical clustering, on maps ``(B, H, W, C)`` of any height and width.

    Args:
        dim: channels C of input and output.
        heads: number of heads e, each clustering in its own feature space.
        head_dim: channels d of a head.
        fold: number of windows per side of the map.
        prop: number of patch-level centres per side of a window, M = prop^2.
        win: number of window-level centres per side of the map, K = win^2.
        nominal_size: side F of the patch-level position bias ``(e, M, F, F)``, resized to the map
            at every call.
        window_level: whether the mixer has the Lorentzian window level.
        curvature: c > 0 of the hyperboloid (sectional curvature -c).
        pad: ``"always"`` adds ``fold - size % fold`` pixels to an axis (a whole fold if divisible,
            as published), ``"minimal"`` only those up to the next multiple of fold.
        lift: ``"ambient"`` reads the first feature as a time coordinate (as published), ``"space"``
            lifts all d features with the exponential map at the origin.
        norm: whether a GroupNorm over the concatenated levels precedes the output projection (as in
            the paper, but not in its code).
        alpha, window_alpha: initial values of the two temperatures, which multiply similarity and
            distance. At 1, as published, a softmax of cosines is almost uniform, and all centres
            are almost the same.
        center: whether the mean of the features is subtracted before they are compared: the mean
            over the pixels of a window at patch level, over the windows at window level. A common
            part of the features would make all cosines similar.
        locality: initial weight, per head, of the squared distance (in cells) between a pixel and
            the cell from which a centre was pooled; it is subtracted from their similarity, as in
            superpixels. 0, as published, for no such term and no parameter.
        patch_geometry, window_geometry: ``"euclidean"`` for cosines of features as similarities, or
            ``"hyperbolic"`` for minus distances of lifted features; by default each level has the
            published one.
        position_bias: whether logits have a learned bias for each position of the map.
        shift: whether the map is moved by half a window before it is cut into windows, and back
            afterwards. Pixels that leave at one side enter at the other, without a mask. These are
            the paper's shifted windows in place of the window level; the paper does not say how
            they treat the border.
    """

    share: Tensor
    bias: nn.Parameter | None
    window_alpha: nn.Parameter | None
    window_bias: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        head_dim: int = 16,
        fold: int = 7,
        prop: int = 4,
        win: int = 4,
        nominal_size: int = 56,
        window_level: bool = True,
        curvature: float = 1.0,
        pad: str = "always",
        lift: str = "ambient",
        norm: bool = False,
        alpha: float = 1.0,
        window_alpha: float = 1.0,
        center: bool = False,
        locality: float = 0.0,
        patch_geometry: str = "euclidean",
        window_geometry: str = "hyperbolic",
        position_bias: bool = True,
        shift: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_sizes(
            self,
            dim=dim,
            heads=heads,
            head_dim=head_dim,
            fold=fold,
            prop=prop,
            win=win,
            nominal_size=nominal_size,
        )
        more_than(
            0,
            **{"curvature, minus the sectional curvature,": curvature},
            alpha=alpha,
            window_alpha=window_alpha,
        )
        at_least(0, locality=locality)
        one_of(("always", "minimal"), pad=pad)
        one_of(("ambient", "space"), lift=lift)
        one_of(GEOMETRIES, patch_geometry=patch_geometry, window_geometry=window_geometry)
        self.hyperbolic_patches = patch_geometry == "hyperbolic"
        self.hyperbolic_windows = window_geometry == "hyperbolic"
        self.heads = heads
        self.head_dim = head_dim
        self.fold = fold
        self.prop = prop
        self.win = win
        self.window_level = window_level
        self.curvature = float(curvature)
        self.shift = shift
        self.pad_always = pad == "always"
        self.ambient_lift = lift == "ambient"
        self._check_lift()
        self.center = center
        # With centred features a window of one colour holds only round-off, which must not be
        # scaled to length 1.
        self.eps = 1e-3 if center else 1e-12
        factory: Plain = {"device": device, "dtype": dtype}

        def filled(value: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.full(shape, float(value), **factory))

        inner = heads * head_dim
        self.feature = SharedLinear(dim, inner, **factory)
        self.value = SharedLinear(dim, inner, **factory)
        self.alpha = filled(alpha, 1)
        self.locality = filled(locality, heads) if locality > 0 else None
        self.bias = (
            filled(0, heads, prop * prop, nominal_size, nominal_size) if position_bias else None
        )
        self.window_alpha = filled(window_alpha, 1) if window_level else None
        biased = window_level and position_bias
        self.window_bias = filled(0, heads, win * win, fold, fold) if biased else None
        width = inner * (1 + window_level)
        self.norm = nn.GroupNorm(1, width, **factory) if norm else None
        self.proj = SharedLinear(width, dim, **factory)
        share = torch.full((head_dim,), 1 / head_dim, **factory)
        self.register_buffer("share", share, persistent=False)

    def init_non_persistent_buffers(self) -> None:
        """Fill the buffer, which no checkpoint has: timm and transformers call this method after
        they made a network on the device ``meta``."""
        self.share.fill_(1 / self.head_dim)

    def _check_lift(self) -> None:
        lifted = self.hyperbolic_patches or (self.window_level and self.hyperbolic_windows)
        if self.ambient_lift and self.head_dim < 2 and lifted:
            raise ArgumentError(
                "lift='ambient' takes one feature as time and needs head_dim >= 2. Give a larger "
                "head_dim, or lift='space'."
            )

    def extra_repr(self) -> str:
        return (
            f"heads={self.heads}, head_dim={self.head_dim}, fold={self.fold}, prop={self.prop}, "
            f"win={self.win}, window_level={self.window_level}, curvature={self.curvature}"
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed map, of the shape ``(B, H, W, C)`` of ``x``."""
        padded, top, left = self._features(x)
        (out, _), (window, _) = self._levels(padded)
        if self.norm is None:
            out = self._project(out, window)
        elif window is not None:
            # The norm couples all pixels and both levels, so they are concatenated as in the paper.
            out = torch.cat([out, window.expand_as(out)], 5)
        out = self._moved(out.reshape(*padded.shape[:3], out.shape[5]), back=True)
        if padded.shape[1:3] != x.shape[1:3]:
            out = _Cropped.apply(out, top, left, x.shape[1], x.shape[2])
        if self.norm is not None:
            out = self._project(self.norm(out.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
        return out

    def assignments(self, x: Tensor) -> ClusterAssignment:
        """Return the soft assignments that :meth:`forward` uses for the map ``x``
        ``(B, H, W, C)``."""
        batch, height, width, _ = x.shape
        padded, top, left = self._features(x)
        (_, patch), (_, window) = self._levels(padded)
        fold = self.fold
        if self.window_alpha is not None and window is None:  # a single centre takes all
            window = x.new_ones(batch, self.heads, 1, fold, fold)
        rows, columns = self._sides(padded)
        patch = patch.reshape(batch, fold, fold, self.heads, self.prop**2, rows, columns)
        patch = patch.permute(0, 1, 5, 2, 6, 3, 4).reshape(
            *padded.shape[:3], self.heads, self.prop**2
        )
        patch = self._moved(patch, back=True)[:, top : top + height, left : left + width]
        y, z = (
            self._place(torch.arange(first, first + size, device=x.device), side)
            for first, size, side in ((top, height, rows), (left, width, columns))
        )
        return ClusterAssignment(patch.permute(0, 3, 4, 1, 2), y.unsqueeze(1) * fold + z, window)

    def _sides(self, padded: Tensor) -> tuple[int, int]:
        """Return the height and the width of a window of a padded map, in pixels."""
        return padded.shape[1] // self.fold, padded.shape[2] // self.fold

    def _moved(self, x: Tensor, back: bool = False) -> Tensor:
        """Return a padded map ``(B, H', W', ...)``, moved by half a window (or ``back``) if the
        mixer has ``shift``."""
        if not self.shift:
            return x
        step = 1 if back else -1
        return x.roll([step * (x.shape[k] // self.fold // 2) for k in (1, 2)], (1, 2))

    def _place(self, pixels: Tensor, side: int) -> Tensor:
        """Return, along one axis, the numbers of the windows in which ``pixels`` of the padded map
        lie."""
        if self.shift:
            pixels = (pixels - side // 2) % (side * self.fold)
        return pixels // side

    def _padding(self, size: int) -> tuple[int, int]:
        """Return how many pixels are added before and after an axis of ``size`` pixels."""
        if not self.pad_always and _surely_zero(size % self.fold):
            return 0, 0
        # The padded size is written as side * fold, so that torch.export sees that fold divides it.
        side = size // self.fold + 1 if self.pad_always else (size + self.fold - 1) // self.fold
        pad = side * self.fold - size
        return pad // 2, pad - pad // 2

    def _features(self, x: Tensor) -> tuple[Tensor, int, int]:
        """Return features and values ``(B, H', W', 2 e d)`` of the map, padded so that windows
        divide it, and the numbers of pixels added at the top and at the left."""
        height = x.shape[1]
        width = x.shape[2]
        top, bottom = self._padding(height)
        left, right = self._padding(width)
        weight = torch.cat([self.feature.weight, self.value.weight])
        bias = torch.cat([self.feature.bias, self.value.bias])
        # The projection comes before the padding, so that repeated pixels are projected once.
        padded = F.linear(x, weight, bias)
        if not _surely_zero(top + bottom + left + right):
            # Reflection needs more pixels than it adds.
            enough = max(top, bottom) < height and max(left, right) < width
            mode = "reflect" if enough else "replicate"
            # The channels take the place of a third space dimension, so that they stay side by side
            # in memory.
            sides = (0, 0, left, right, top, bottom)
            padded = F.pad(padded.unsqueeze(1), sides, mode=mode).squeeze(1)
        return self._moved(padded), top, left

    def _project(self, out: Tensor, window: Tensor | None = None) -> Tensor:
        """Return the output projection of values ``(..., inner)``, or of these and the windows'
        values ``window``, which broadcast, side by side."""
        if window is None:
            return F.linear(out, self.proj.weight, self.proj.bias)
        first, second = self.proj.weight.split(self.heads * self.head_dim, 1)
        return F.linear(out, first) + F.linear(window, second, self.proj.bias)

    def _levels(
        self, padded: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor | None, Tensor | None]]:
        """Return mixed values and assignments of both levels, each as a pair.

        Values have shape ``(B, fold, h, fold, w, e * d)`` at patch level and
        ``(B, fold, 1, fold, 1, e * d)`` at window level (``(B, 1, 1, 1, 1, e * d)`` if all windows
        get the same); assignments ``(B * fold^2 * e, M, h * w)`` and ``(B, e, K, fold, fold)``.
        """
        fold = self.fold
        heads = self.heads
        rows, columns = self._sides(padded)
        both = padded.reshape(-1, fold, rows, fold, columns, 2, heads, self.head_dim)
        both = both.permute(5, 0, 1, 3, 6, 2, 4, 7).reshape(-1, rows, columns, self.head_dim)
        pixels = both.reshape(2, -1, rows * columns, self.head_dim).unbind()
        centers = _pool(both, self.prop).reshape(2, -1, self.prop**2, self.head_dim).unbind()
        place = self._patch_bias(padded, both)
        mixed, assignment = self._mix(pixels, centers, self.hyperbolic_patches, self.alpha, place)
        mixed = mixed.reshape(-1, fold, fold, heads, rows, columns, self.head_dim).permute(
            0, 1, 4, 2, 5, 3, 6
        )
        patch = mixed.reshape(-1, fold, rows, fold, columns, heads * self.head_dim), assignment
        if self.window_alpha is None:
            return patch, (None, None)
        if self.win == 1:
            return patch, (self._one_center(pixels[1], self.window_alpha), None)

        tokens = torch.cat([_pool(padded, fold), _pool(padded, self.win)], 1)
        tokens = tokens.reshape(*tokens.shape[:2], 2, heads, self.head_dim).permute(2, 0, 3, 1, 4)
        windows, centers = tokens.flatten(1, 2).split([fold**2, self.win**2], 2)
        place = None if self.window_bias is None else self.window_bias.flatten(2)
        mixed, assignment = self._mix(
            windows.unbind(), centers.unbind(), self.hyperbolic_windows, self.window_alpha, place
        )
        mixed = mixed.reshape(-1, heads, fold, fold, self.head_dim).permute(0, 2, 3, 1, 4)
        assignment = assignment.reshape(-1, heads, self.win**2, fold, fold)
        return patch, (mixed.reshape(-1, fold, 1, fold, 1, heads * self.head_dim), assignment)

    def _one_center(self, value: Tensor, unused: Tensor) -> Tensor:
        """Return the values ``(B, 1, 1, 1, 1, e * d)`` of a window level with one centre: the mean
        of the map for all windows, whatever their distance.

        Args:
            value: values of the pixels, ``(B * fold^2 * e, N, d)``.
            unused: a parameter that has no effect and, like the position bias, gets the gradient 0,
                because training on several devices needs a gradient of every parameter.
        """
        parts = value.reshape(-1, self.fold**2, self.heads, value.shape[1], self.head_dim)
        rest = [unused] if self.window_bias is None else [unused, self.window_bias]
        mean: Tensor = Attached.apply(parts.mean((1, 3)), *rest)
        return mean.reshape(-1, 1, 1, 1, 1, self.heads * self.head_dim)

    def _mix(
        self,
        tokens: Sequence[Tensor],
        centers: Sequence[Tensor],
        hyperbolic: bool,
        scale: Tensor,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the values averaged into the centres and handed back, ``(G, N, d)``, and the soft
        assignments ``(G, M, N)``.

        Args:
            tokens, centers: the features and the values of tokens ``(G, N, d)`` and of centres
                ``(G, M, d)``.
            hyperbolic: whether similarities are minus distances instead of cosines.
            scale: factor of the similarities, ``(1,)``.
            bias: numbers added to the logits, ``(g, M, N)`` for a g that divides G; or None.
        """
        feature, value = tokens
        own, updated = centers
        if self.center:
            middle = feature.mean(1, keepdim=True)
            feature = feature - middle
            own = own - middle
        logits = (
            self._nearness(feature, own, scale) if hyperbolic else self._cosine(feature, own, scale)
        )
        if bias is not None:
            logits = (logits.reshape(-1, *bias.shape) + bias).flatten(0, 1)
        assignment = logits.softmax(1)
        weights = as_dtype(assignment, value.dtype)
        mixed: Tensor = _Shared.apply(weights, value, updated)[0]
        return mixed, assignment

    def _cosine(self, feature: Tensor, centers: Tensor, scale: Tensor) -> Tensor:
        """Return the cosines ``(G, M, N)`` of features ``(G, N, d)`` and centres ``(G, M, d)``,
        times ``scale`` ``(1,)``."""
        shape = (self.head_dim,)
        eps = self.eps**2 / self.head_dim
        gain = as_dtype(scale.expand(shape), centers.dtype)
        # The features get the length 1 / sqrt(d), but for those shorter than eps, and the centres
        # sqrt(d) times the scale.
        unit = F.rms_norm(feature, shape, as_dtype(self.share, feature.dtype), eps=eps)
        return torch.bmm(F.rms_norm(centers, shape, gain, eps=eps), unit.transpose(1, 2))

    def _patch_bias(self, padded: Tensor, like: Tensor) -> Tensor | None:
        """Return the part of the logits that depends on positions alone, ``(fold^2 * e, M, N)``, in
        the order of the windows; None if there is none."""
        fold = self.fold
        rows, columns = self._sides(padded)
        centers = self.prop * self.prop
        bias = None
        if self.bias is not None:
            size = (padded.shape[1], padded.shape[2])
            bias = F.interpolate(self.bias, size=size, mode="bilinear", align_corners=True)
            bias = bias.reshape(self.heads, centers, fold, rows, fold, columns).permute(
                2, 4, 0, 1, 3, 5
            )
        if self.locality is not None:
            near = self.locality.reshape(-1, 1, 1, 1) * _squared_distances(
                rows, columns, self.prop, like
            )
            near = near.expand(fold, fold, -1, -1, -1, -1)
            bias = -near if bias is None else bias - near
        return (
            None
            if bias is None
            else bias.reshape(fold * fold * self.heads, centers, rows * columns)
        )

    def _nearness(self, feature: Tensor, centers: Tensor, scale: Tensor) -> Tensor:
        r"""Return minus the geodesic distances ``(G, M, N)`` between lifted features ``(G, N, d)``
        and lifted centres ``(G, M, d)``, times ``scale`` ``(1,)``.

        With points :math:`(t, s)` scaled to curvature -1, a distance is :math:`\mathrm{arcosh}(t t'
        - s \cdot s')`, computed in float64. Features are clipped to the unit ball, so the error of
        the bracket is at most ``1e-15 cosh(sqrt c)^2``, and that of a distance at most its root.
        """
        with exact(feature.device):
            # The point of -u has the opposite space part; the product of rows is then the bracket.
            u = precise(torch.cat([feature, -centers], 1))
            lift = _lifted if plain(u) else _Lifted.apply
            points = lift(u, self.curvature, self.ambient_lift)
            own, centers = points.split([feature.shape[1], centers.shape[1]], 1)
            cosh = F.threshold(torch.bmm(centers, own.transpose(1, 2)), NEAREST, NEAREST)
            distance = as_dtype(exportable.acosh(cosh), feature.dtype)
            return distance * as_dtype(scale * -(self.curvature**-0.5), feature.dtype)
