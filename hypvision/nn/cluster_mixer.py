"""The token mixer of HCFormer: two levels of soft clustering, Euclidean in windows and Lorentzian between them.

Paper: "Hyperbolic Hierarchical Clustering for Visual Representation Learning" (Wei et al., ECCV 2026). The map is cut
into ``fold x fold`` windows. At patch level the pixels of a window are softly assigned to ``prop x prop`` centres by
cosine similarity; at window level the windows themselves, lifted to the hyperboloid, are assigned to ``win x win``
centres of the whole map by geodesic distance. Values are averaged into the centres (aggregate) and handed back to the
pixels (dispatch) with the same weights.

How it is computed here: aggregation and dispatch are one batched matrix product each; pooling is a product with a
constant matrix; projections act on channel-major windows, so that splitting the heads moves nothing; and the result of
the window level is constant in a window, so it is added as a bias after the output projection instead of being
up-sampled to pixels and concatenated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from hypvision.checks import at_least, more_than, one_of
from hypvision.errors import ArgumentError
from hypvision.geometry import lorentz
from hypvision.geometry.numerics import clip_norm, exact, safe_sqrt, sinhc

from .checks import check_sizes
from .functional import precise, space_time
from .linear import SharedLinear


class ClusterAssignment(NamedTuple):
    """Soft assignments of one mixer. B images, e heads, M centres a window, K window-level centres.

    ``patch`` has shape ``(B, e, M, H, W)`` and sums to 1 over M at every pixel; which centres are meant depends on the
    window that the pixel lies in: ``window_index`` ``(H, W)`` numbers the windows row by row. ``window`` has shape
    ``(B, e, K, fold, fold)`` and sums to 1 over K, or is None where the mixer has no window level.
    """

    patch: Tensor
    window_index: Tensor
    window: Tensor | None


GEOMETRIES = ("euclidean", "hyperbolic")


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``; a compiler or exporter sees nothing where the dtype is that already."""
    return x if x.dtype == dtype else x.to(dtype)


def _pool_matrix(size: int, bins: int, like: Tensor) -> Tensor:
    """Matrix ``(bins, size)`` of adaptive average pooling: bin i averages [floor(i s / b), ceil((i + 1) s / b))."""
    # The start of cell j relative to the start of bin i, times b; cell and bin overlap if it lies strictly between -b
    # and s.
    behind = torch.arange(size, device=like.device) * bins - torch.arange(bins, device=like.device).unsqueeze(1) * size
    inside = torch.logical_and(behind > -bins, behind < size).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


def _surely_zero(size: int) -> bool:
    """Whether a size is 0; for a free size of an exported file, whether it is 0 for every possible input."""
    if isinstance(size, int):
        return size == 0
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy

    return statically_known_true(size == 0)


def _squared_distances(rows: int, columns: int, bins: int, like: Tensor) -> Tensor:
    """``(bins^2, rows, columns)``: from the middles of bins x bins cells to the pixels of a window, in cells."""

    def along(size: int) -> Tensor:
        cells, pixels = (torch.arange(n, device=like.device, dtype=like.dtype) + 0.5 for n in (bins, size))
        return (pixels * (bins / size) - cells.unsqueeze(1)).pow(2)

    squared = along(rows).reshape(bins, 1, rows, 1) + along(columns).reshape(1, bins, 1, columns)
    return squared.reshape(bins * bins, rows, columns)


def _unit(x: Tensor, dim: int, eps: float) -> Tensor:
    """Vectors along ``dim`` divided by max(length, eps); several times faster than ``F.normalize`` if not the last."""
    return x / safe_sqrt((x * x).sum(dim, keepdim=True)).clamp(min=eps)


class ClusterMixer(nn.Module):
    """Hierarchical clustering token mixer on maps ``(B, H, W, C)`` of any height and width.

    Args:
        dim: channels C of input and output.
        heads: number of heads e, each clustering in its own feature space.
        head_dim: channels d of a head.
        fold: windows per side.
        prop: patch-level centres per side of a window, M = prop^2.
        win: window-level centres per side of the map, K = win^2.
        nominal_size: side F of the patch-level position bias ``(e, M, F, F)``, resized to the map at every call.
        window_level: whether the mixer has the Lorentzian window level.
        curvature: c > 0 of the hyperboloid (sectional curvature -c).
        pad: ``"always"`` pads ``fold - size % fold`` (a whole fold when divisible, as published), ``"minimal"`` only
            up to the next multiple of fold.
        lift: ``"ambient"`` reads the first feature as a time coordinate (as published), ``"space"`` lifts all d
            features with the exponential map at the origin.
        norm: GroupNorm over the concatenated levels before the output projection (in the paper, not in its code).
        alpha, window_alpha: initial values of the two temperatures, which multiply similarity and distance. At the
            published 1 a softmax of cosines is near uniform, and all centres are nearly one.
        center: subtract the mean of the features before comparing them: over the pixels of a window at patch level,
            over the windows at window level. A common part makes all cosines similar.
        locality: initial weight, per head, of the squared distance (in cells) between a pixel and the cell that a
            centre was pooled from; it is subtracted from their similarity, as in superpixels. 0, as published: no such
            term and no parameter.
        patch_geometry, window_geometry: ``"euclidean"``, similarities are cosines of features, or ``"hyperbolic"``,
            minus distances of lifted ones; by default each level has the published one.
        position_bias: whether logits have a learned bias for each place.
        shift: move the map by half a window before it is cut, and back afterwards. What leaves it at one side enters
            at the other, without a mask. The paper's shifted windows, in place of the window level; how they treat
            the border it does not say.
    """

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
            self, dim=dim, heads=heads, head_dim=head_dim, fold=fold, prop=prop, win=win, nominal_size=nominal_size
        )
        more_than(0, **{"curvature, minus the sectional curvature,": curvature}, alpha=alpha, window_alpha=window_alpha)
        at_least(0, locality=locality)
        one_of(("always", "minimal"), pad=pad)
        one_of(("ambient", "space"), lift=lift)
        one_of(GEOMETRIES, patch_geometry=patch_geometry, window_geometry=window_geometry)
        self.hyperbolic_patches = patch_geometry == "hyperbolic"
        self.hyperbolic_windows = window_geometry == "hyperbolic"
        lifted = self.hyperbolic_patches or (window_level and self.hyperbolic_windows)
        if lift == "ambient" and head_dim < 2 and lifted:
            raise ArgumentError("lift='ambient' takes one feature as time and needs head_dim >= 2; use lift='space'.")
        self.heads, self.head_dim = heads, head_dim
        self.fold, self.prop, self.win, self.window_level = fold, prop, win, window_level
        self.curvature, self.shift = float(curvature), shift
        self.pad_always, self.ambient_lift, self.center = pad == "always", lift == "ambient", center
        # With centred features, a window of one colour has only round-off, which must not be scaled to length 1.
        self.eps = 1e-3 if center else 1e-12
        factory: dict[str, Any] = {"device": device, "dtype": dtype}

        def filled(value: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.full(shape, float(value), **factory))

        inner = heads * head_dim
        self.feature = SharedLinear(dim, inner, **factory)
        self.value = SharedLinear(dim, inner, **factory)
        self.alpha = filled(alpha, 1)
        self.locality = filled(locality, heads) if locality > 0 else None
        self.bias = filled(0, heads, prop * prop, nominal_size, nominal_size) if position_bias else None
        self.window_alpha = filled(window_alpha, 1) if window_level else None
        biased = window_level and position_bias
        self.window_bias = filled(0, heads, win * win, fold, fold) if biased else None
        width = inner * (2 if window_level else 1)
        self.norm = nn.GroupNorm(1, width, **factory) if norm else None
        self.proj = SharedLinear(width, dim, **factory)

    def extra_repr(self) -> str:
        return (
            f"heads={self.heads}, head_dim={self.head_dim}, fold={self.fold}, prop={self.prop}, win={self.win}, "
            f"window_level={self.window_level}, curvature={self.curvature}"
        )

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Mix ``x`` of shape ``(B, H, W, C)``; ``scale`` ``(C,)`` multiplies the output channels (layer scale)."""
        height, width, inner = x.shape[1], x.shape[2], self.heads * self.head_dim
        weight: Tensor = self.proj.weight
        bias: Tensor = self.proj.bias
        if scale is not None:
            weight, bias = weight * scale.unsqueeze(1), bias * scale
        windows, padded, top, left = self._windows(x)
        patch = self._patch_level(windows, padded)[0].transpose(1, 2)
        window = self._window_level(windows, padded)[0] if self.window_level else None
        if self.norm is None:
            if window is not None:
                bias = F.linear(window, weight[:, inner:], bias)
            patch = F.linear(patch, weight[:, :inner]) + bias.reshape(-1, 1, x.shape[3])
        elif window is not None:
            # The norm couples all pixels and both levels, so concatenate them as in the paper.
            window = window.reshape(-1, 1, inner).expand(-1, patch.shape[1], inner)
            patch = torch.cat([patch, window], 2)
        out = self._moved(self._to_map(patch, padded), back=True)
        if padded is not x:
            out = out[:, top : top + height, left : left + width]
        if self.norm is None:
            return out
        return F.linear(self.norm(out.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), weight, bias)

    def _sides(self, padded: Tensor) -> tuple[int, int]:
        """Height and width of a window of a padded map."""
        return padded.shape[1] // self.fold, padded.shape[2] // self.fold

    def _to_map(self, windows: Tensor, padded: Tensor) -> Tensor:
        """Windows ``(B * fold^2, N, D)`` put back into a map ``(B, H', W', D)`` of the padded size."""
        out = windows.reshape(-1, self.fold, self.fold, *self._sides(padded), windows.shape[2]).transpose(2, 3)
        return out.reshape(-1, padded.shape[1], padded.shape[2], windows.shape[2])

    def assignments(self, x: Tensor) -> ClusterAssignment:
        """The soft assignments that :meth:`forward` uses for the input ``x`` ``(B, H, W, C)``."""
        batch, height, width, _ = x.shape
        windows, padded, top, left = self._windows(x)
        _, patch = self._patch_level(windows, padded)
        fold, (rows, columns) = self.fold, self._sides(padded)
        patch = patch.reshape(batch, fold, fold, self.heads, self.prop**2, rows, columns)
        patch = patch.permute(0, 3, 4, 1, 5, 2, 6).reshape(batch, self.heads, self.prop**2, fold * rows, fold * columns)
        y, z = (
            self._place(torch.arange(first, first + size, device=x.device), side)
            for first, size, side in ((top, height, rows), (left, width, columns))
        )
        patch = self._moved(patch.permute(0, 3, 4, 1, 2), back=True).permute(0, 3, 4, 1, 2)
        window = None
        if self.window_level:
            _, window = self._window_level(windows, padded)
            window = window.reshape(batch, self.heads, self.win**2, fold, fold)
        patch = patch[..., top : top + height, left : left + width]
        return ClusterAssignment(patch, y.unsqueeze(1) * fold + z, window)

    def _moved(self, x: Tensor, back: bool = False) -> Tensor:
        """A padded map ``(B, H', W', ...)``, with ``shift`` moved by half a window."""
        if not self.shift:
            return x
        step = 1 if back else -1
        return x.roll([step * (x.shape[k] // self.fold // 2) for k in (1, 2)], (1, 2))

    def _place(self, pixels: Tensor, side: int) -> Tensor:
        """Along one axis, the numbers of the windows that pixels of the padded map lie in."""
        if self.shift:
            pixels = (pixels - side // 2) % (side * self.fold)
        return pixels // side

    def _padding(self, size: int) -> tuple[int, int]:
        """Pixels to add before and after an axis of ``size``."""
        if not self.pad_always and _surely_zero(size % self.fold):
            return 0, 0
        # The padded size is written as side * fold, so that torch.export sees that fold divides it.
        side = size // self.fold + 1 if self.pad_always else (size + self.fold - 1) // self.fold
        pad = side * self.fold - size
        return pad // 2, pad - pad // 2

    def _windows(self, x: Tensor) -> tuple[Tensor, Tensor, int, int]:
        """Channels-last windows ``(B * fold^2, N, C)``, the padded map they were cut from, and its top and left pad."""
        batch, height, width, dim = x.shape
        top, bottom = self._padding(height)
        left, right = self._padding(width)
        padded = x
        if not _surely_zero(top + bottom + left + right):
            enough = max(top, bottom) < height and max(left, right) < width  # reflection needs more than the padding
            mode = "reflect" if enough else "replicate"
            padded = F.pad(x.permute(0, 3, 1, 2), (left, right, top, bottom), mode=mode).permute(0, 2, 3, 1)
        padded = self._moved(padded)
        fold, (rows, columns) = self.fold, self._sides(padded)
        windows = padded.reshape(batch, fold, rows, fold, columns, dim).transpose(2, 3)
        return windows.reshape(batch * fold * fold, rows * columns, dim), padded, top, left

    def _project(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Similarity and value features ``(B * fold^2 * e, d, N)`` of windows ``(B * fold^2, N, C)``."""
        count, pixels, _ = windows.shape
        # One product for both, then one copy that splits the heads and moves the pixels to the last dimension.
        weight = torch.cat([self.feature.weight, self.value.weight])
        bias = torch.cat([self.feature.bias, self.value.bias])
        out = F.linear(windows, weight, bias).reshape(count, pixels, 2, self.heads * self.head_dim)
        out = out.permute(2, 0, 3, 1).reshape(2, count * self.heads, self.head_dim, pixels)
        return out[0], out[1]

    def _patch_level(self, windows: Tensor, padded: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed values ``(Bw, e * d, N)`` and assignments ``(B, fold^2, e, M, N)`` of the pixels of each window."""
        fold, (rows, columns) = self.fold, self._sides(padded)
        count, pixels, _ = windows.shape
        centers = self.prop * self.prop
        feature, value = self._project(windows)
        if self.center:
            feature = feature - feature.mean(2, keepdim=True)
        pools = _pool_matrix(rows, self.prop, feature), _pool_matrix(columns, self.prop, feature)
        pool = torch.einsum("ph,qw->hwpq", *pools).reshape(pixels, centers)
        feature_centers, value_centers = torch.matmul(feature, pool), torch.matmul(value, pool)

        if self.hyperbolic_patches:
            points = torch.cat([feature, feature_centers], 2).transpose(1, 2)
            similarity = -self.alpha * self._distance(points, pixels)
        else:
            centers_unit, unit = _unit(feature_centers, 1, self.eps), _unit(feature, 1, self.eps)
            similarity = torch.bmm((centers_unit * self.alpha).transpose(1, 2), unit)
        logits = similarity.reshape(-1, fold * fold * self.heads, centers, pixels)
        bias = self._patch_bias(padded, feature)
        if bias is not None:
            logits = logits + bias
        assignment = logits.softmax(2)
        weights = as_dtype(assignment.reshape(-1, centers, pixels), value.dtype)
        total = weights.sum(2).unsqueeze(1)
        updated = (torch.bmm(value, weights.transpose(1, 2)) + value_centers) / (total + 1)
        mixed = torch.bmm(as_dtype(updated, value.dtype), weights)
        return mixed.reshape(count, self.heads * self.head_dim, pixels), assignment

    def _patch_bias(self, padded: Tensor, like: Tensor) -> Tensor | None:
        """What is added to the logits by place, ``(1, fold^2 * e, M, N)``, in the order of the windows."""
        fold, (rows, columns) = self.fold, self._sides(padded)
        centers, bias = self.prop * self.prop, None
        if self.bias is not None:
            size = (padded.shape[1], padded.shape[2])
            bias = F.interpolate(self.bias, size=size, mode="bilinear", align_corners=True)
            bias = bias.reshape(self.heads, centers, fold, rows, fold, columns).permute(2, 4, 0, 1, 3, 5)
        if self.locality is not None:
            near = self.locality.reshape(-1, 1, 1, 1) * _squared_distances(rows, columns, self.prop, like)
            near = near.expand(fold, fold, -1, -1, -1, -1)
            bias = -near if bias is None else bias - near
        return None if bias is None else bias.reshape(1, fold * fold * self.heads, centers, rows * columns)

    def _window_level(self, windows: Tensor, padded: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed values ``(B, fold^2, e * d)`` and assignments ``(B, e, K, fold^2)`` of the windows."""
        assert self.window_alpha is not None
        batch, height, width, dim = padded.shape
        count, points = self.fold * self.fold, self.win * self.win
        # Means commute with the (affine) projections, so average the input first and project only fold^2 + K tokens.
        means = windows.mean(1).reshape(batch, count, dim)
        if self.fold % self.win == 0:  # a cell consists of whole windows, all of one size
            part = self.fold // self.win
            pooled = means.reshape(batch, self.win, part, self.win, part, dim).mean((2, 4)).reshape(batch, points, dim)
        else:
            rows, columns = _pool_matrix(height, self.win, padded), _pool_matrix(width, self.win, padded)
            pooled = torch.matmul(rows, padded.reshape(batch, height, width * dim)).reshape(batch, self.win, width, dim)
            pooled = torch.matmul(columns, pooled).reshape(batch, points, dim)
        tokens = torch.cat([means, as_dtype(pooled, means.dtype)], 1)
        feature = self._split_heads(F.linear(tokens, self.feature.weight, self.feature.bias))
        value = self._split_heads(F.linear(tokens, self.value.weight, self.value.bias))
        if self.center:
            feature = feature - feature.narrow(2, 0, count).mean(2, keepdim=True)

        if self.hyperbolic_windows:
            similarity = -self._distance(feature, count)
        else:
            own, centers = _unit(feature, 3, self.eps).split([count, points], 2)
            similarity = torch.matmul(centers, own.transpose(2, 3))
        logits = self.window_alpha * similarity
        if self.window_bias is not None:
            logits = self.window_bias.flatten(2) + logits
        assignment = logits.softmax(2)
        weights = as_dtype(assignment, value.dtype)
        total = weights.sum(3, keepdim=True)
        own, centers = value.split([count, points], 2)
        updated = (torch.matmul(weights, own) + centers) / (total + 1)
        mixed = torch.matmul(weights.transpose(2, 3), as_dtype(updated, value.dtype))
        return mixed.transpose(1, 2).reshape(batch, count, self.heads * self.head_dim), assignment

    def _split_heads(self, tokens: Tensor) -> Tensor:
        batch, count, _ = tokens.shape
        return tokens.reshape(batch, count, self.heads, self.head_dim).transpose(1, 2)

    def _distance(self, feature: Tensor, count: int) -> Tensor:
        """Geodesic distances ``(..., K, count)`` of lifted features ``(..., count + K, d)``, centres last.

        In float32 at least, also under autocast.
        """
        with exact(feature.device):
            lifted = self._lift(precise(feature))
            own, centers = lifted.split([count, feature.shape[-2] - count], -2)
            return as_dtype(lorentz.cdist(centers, own, self.curvature), feature.dtype)

    def _lift(self, u: Tensor) -> Tensor:
        """Points of the hyperboloid for features ``(..., d)`` clipped to the unit ball."""
        u, c = clip_norm(u), self.curvature
        if not self.ambient_lift:
            return lorentz.expmap0(u, c)
        time, space = u.split([1, u.shape[-1] - 1], -1)
        squared = (space * space).sum(-1, keepdim=True) - time * time
        norm = torch.sqrt(squared.clamp(min=1e-8))  # the official code's clamp; active for norms below 1e-4
        space = sinhc(norm * c**0.5) * space
        return torch.cat([space_time(space, c), space], -1)
