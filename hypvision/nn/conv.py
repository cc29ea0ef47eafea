"""Convolutions on the hyperboloid, over maps ``(B, C, H, W)`` of space parts, by Euclidean
kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from hypvision.geometry import Lorentz
from hypvision.geometry.numerics import Function, backward_of, exact, safe_sqrt
from hypvision.io import ArgumentError, Plain, one_of

from .checks import check_features, check_manifold, check_rescaling, check_sizes, integers
from .functional import (
    axial_map,
    of_kernels,
    on_gpu,
    precise,
    radial_numbers,
    radial_rescale,
    rescale_factor,
    space_square,
)  # fmt: skip

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d}


def box_sum(
    x: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """Return the sums over the windows of a convolution of maps ``(B, 1, ...)``; numbers outside of
    the map count as 0."""
    if max(kernel) == 1 and max(padding) == 0:
        return x[tuple(slice(None, None, step) for step in (1, 1, *stride))]
    fits = (
        max(dilation) == 1 and len(kernel) == 2 and all(2 * p <= k for p, k in zip(padding, kernel))
    )
    # The ONNX exporter would drop the divisor without notice.
    if fits and not torch.compiler.is_exporting():
        return F.avg_pool2d(x, kernel, stride, padding, divisor_override=1)
    ones = torch.ones(1, 1, *kernel, dtype=x.dtype, device=x.device)
    return _CONVOLUTIONS[len(kernel)](x, ones, None, stride, padding, dilation)


class _LorentzConv(nn.Module):
    """The published Lorentz convolution, computed without concatenating the points of a patch."""

    rank: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        manifold: Lorentz,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        check_sizes(self, in_channels=in_channels, out_channels=out_channels)
        factory: Plain = {"device": device, "dtype": dtype}
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = integers(kernel_size, self.rank, "kernel_size", 1)
        self.stride = integers(stride, self.rank, "stride", 1)
        self.padding = integers(padding, self.rank, "padding", 0)
        self.dilation = integers(dilation, self.rank, "dilation", 1)
        self.manifold = manifold
        self.weight = nn.Parameter(
            torch.empty(out_channels, in_channels, *self.kernel_size, **factory)
        )
        self.time_weight = nn.Parameter(torch.empty(out_channels, **factory))
        self.bias = nn.Parameter(torch.empty(out_channels, **factory)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters uniformly in +-sqrt(2 / fan_in), as published.

        Without a norm between the layers the mean square of the space parts grows by at most 4/3 a
        layer, less at the border: 50 layers of 16 to 64 channels take a radius of 2 to between 4
        and 8.
        """
        bound = math.sqrt(2 / (self.in_channels * math.prod(self.kernel_size)))
        for parameter in (self.weight, self.time_weight, self.bias):
            if parameter is not None:
                nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.in_channels, 1, self.rank + 2)
        geometry = (self.stride, self.padding, self.dilation)
        out = _CONVOLUTIONS[self.rank](x, self.weight, self.bias, *geometry)
        # This is the time of the concatenated patch; pixels outside of the map are origins, with
        # the space part 0.
        time = torch.sqrt(
            box_sum(space_square(x, 1), self.kernel_size, *geometry) + 1 / self.manifold.c
        ).to(out.dtype)
        return torch.addcmul(out, self.time_weight.to(out.dtype).view(-1, *[1] * self.rank), time)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"bias={self.bias is not None}"
        )


class LorentzConv2d(_LorentzConv):
    r"""Lorentz convolution of fully hyperbolic CNNs (Bdeir et al., ICLR 2024), exactly and in one
    Euclidean convolution.

    The published layer concatenates the points of a patch to one point (with the time
    :math:`t^2 = 1/c + \sum_p |s_p|^2`) and applies a Lorentz linear layer. Written out this is

    .. math:: s' = \mathrm{conv}(s) + w_t \sqrt{\mathrm{boxsum}(|s|^2) + 1/c}

    which needs no unfolded patches. Padding is by origins.

    The arguments are those of ``nn.Conv2d``, and the hyperboloid. Shapes: space parts
    ``(B, C, H, W)`` to ``(B, C', H', W')``.
    """

    rank = 2


class LorentzConv1d(_LorentzConv):
    """Lorentz convolution of sequences ``(B, C, L)``; see :class:`LorentzConv2d`."""

    rank = 1


class LorentzConvTranspose2d(nn.Module):
    """Transposed Lorentz convolution (Bdeir et al., ICLR 2024).

    Origins are put between the pixels, and a :class:`LorentzConv2d` follows. The arguments are
    those of ``nn.ConvTranspose2d``, and the hyperboloid; output padding is by origins. Shapes:
    space parts ``(B, C, H, W)`` to ``(B, C', H', W')``. The weight ``(C', C, kh, kw)`` has the
    layout of a convolution's.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        manifold: Lorentz,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        output_padding: int | tuple[int, int] = 0,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        check_sizes(self, in_channels=in_channels, out_channels=out_channels)
        self.stride = integers(stride, 2, "stride", 1)
        self.output_padding = integers(output_padding, 2, "output_padding", 0)
        kernel = integers(kernel_size, 2, "kernel_size", 1)
        inner = tuple(k - 1 - p for p, k in zip(integers(padding, 2, "padding", 0), kernel))
        if min(inner) < 0:
            raise ArgumentError(
                f"padding must be smaller than kernel_size {kernel}, got {padding}."
            )
        self.conv = LorentzConv2d(
            in_channels,
            out_channels,
            kernel,
            manifold,
            padding=inner,
            bias=bias,
            device=device,
            dtype=dtype,
        )

    @property
    def manifold(self) -> Lorentz:
        """The hyperboloid of the points."""
        return self.conv.manifold

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.conv.in_channels, 1, 4)
        rows, columns = self.stride
        if rows > 1 or columns > 1:
            apart = x.new_zeros(
                *x.shape[:2], (x.shape[2] - 1) * rows + 1, (x.shape[3] - 1) * columns + 1
            )
            apart[..., ::rows, ::columns] = x
            x = apart
        x = self.conv(x)
        return (
            F.pad(x, (0, self.output_padding[1], 0, self.output_padding[0]))
            if max(self.output_padding)
            else x
        )


def _matching(square: Tensor, wanted: Tensor) -> Tensor:
    """Return the factor by which vectors of the squared norms ``square`` get the squared norms
    ``wanted``."""
    return torch.sqrt((wanted + 1e-30) / (square + 1e-30))


class _FusedBoost(Function):
    """Compute :meth:`_Efficient._along_axis` on a GPU by the Triton kernels of
    :mod:`hypvision.nn.kernels`."""

    @staticmethod
    def forward(ctx: Any, layer: _Efficient, *given: Tensor) -> tuple[Tensor, Tensor]:
        from . import kernels

        square, last, c, *wanted, angle = given
        square = square.contiguous()
        wanted = [number.contiguous() for number in wanted]
        last = last if last[0].is_contiguous() else last.contiguous()
        most, constants = of_kernels(c, layer.slope, layer.limit)
        ctx.layer = layer
        ctx.constants = constants
        ctx.save_for_backward(most, square, last, c, *wanted, angle)
        with torch.cuda.device_of(square):
            return kernels.boost_forward(square, wanted, last, c, angle, most, constants)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from . import kernels

        most, *given = ctx.saved_tensors
        square, last, c, *wanted, angle = given
        if torch.is_grad_enabled():

            def plainly(*given: Tensor) -> Tensor:
                return torch.cat(
                    radial_numbers(ctx.layer._along_axis, list(given), square.device), 1
                )

            return None, *backward_of(plainly, given, ctx.needs_input_grad[1:], torch.cat(grads, 1))
        with torch.cuda.device_of(square):
            return None, *kernels.boost_backward(
                grads, square, wanted, last, c, angle, most, ctx.constants
            )


class _Efficient(nn.Module):
    """The base of efficient layers: a linear map of the space part that keeps norms, then a boost
    and a rescaling of the radius."""

    weight: nn.Parameter
    constant: Tensor

    def __init__(
        self,
        fan_in: int,
        fan_out: int,
        manifold: Lorentz,
        norm_match: str,
        boost: str,
        slope: float | None,
        limit: float | None,
        factory: Plain,
    ):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        one_of(("patch", "sum", "none"), norm_match=norm_match)
        one_of(("axis", "scale", "full", "none"), boost=boost)
        check_rescaling(self, slope, limit)
        self.manifold = manifold
        self.norm_match = norm_match
        self.boost = boost
        self.slope = slope
        self.limit = limit
        self.fan_in = fan_in
        self.fan_out = fan_out
        self.expanding = fan_out > fan_in
        self.matched = not self.expanding and norm_match != "none"
        if boost != "none":
            start = (
                torch.ones(1, **factory)
                if boost != "full"
                else 0.05 * torch.rand(fan_out, **factory)
            )
            self.boost_weight = nn.Parameter(start)

    @contextmanager
    def folded(self) -> Iterator[None]:
        """Make the matrix a constant inside this context, for exporters without a linear solver."""
        if self.expanding:
            self.register_buffer("constant", self.matrix().detach(), persistent=False)
        try:
            yield
        finally:
            self._buffers.pop("constant", None)

    def matrix(self) -> Tensor:
        """Return the matrix ``(fan_out, fan_in)`` of the linear map: with orthonormal columns if it
        expands, else the weight."""
        if "constant" in self._buffers:
            return self.constant
        weight = self.weight.reshape(self.fan_out, self.fan_in)
        if not self.expanding:
            return weight
        # The matrix is the first columns of the Cayley transform of A = X E^T - E X^T, where X is
        # the lower triangle of the weight and E the first columns of the identity. A = U V^T has
        # rank 2 fan_in, so Woodbury's formula solves a smaller system if 2 fan_in is smaller than
        # fan_out.
        with exact(weight.device):
            x = torch.tril(precise(weight))
            e = torch.eye(self.fan_out, self.fan_in, dtype=x.dtype, device=x.device)
            u = torch.cat([x, -e], 1)
            v = torch.cat([e, x], 1)
            right = e + u @ (v.t() @ e) / 2
            if 2 * self.fan_in >= self.fan_out:
                eye = torch.eye(self.fan_out, dtype=x.dtype, device=x.device)
                out: Tensor = torch.linalg.solve(eye - u @ v.t() / 2, right)
            else:
                eye = torch.eye(2 * self.fan_in, dtype=x.dtype, device=x.device)
                out = right + u @ torch.linalg.solve(eye - v.t() @ u / 2, v.t() @ right) / 2
            return out

    def finish(self, out: Tensor, wanted: Callable[[], Tensor], dim: int) -> Tensor:
        """Return the result ``out`` of the linear map after norm matching, boost and rescaling;
        ``wanted`` computes the squared norms to which the results are matched."""
        c = self.manifold.c
        if self.boost in ("axis", "none"):
            parameters = [
                c,
                *([wanted()] if self.matched else []),
                *([self.boost_weight] if self.boost == "axis" else []),
            ]
            return axial_map(out, self._axial_numbers, *parameters, dim=dim)
        if self.matched:
            out = out * _matching(space_square(out, dim), wanted()).to(out.dtype)
        if self.boost == "full":
            out = self._full_boost(out, c, dim)
        else:
            space = out.movedim(dim, -1)
            points = self.manifold.scalar_mul(self.boost_weight, self.manifold.from_space(space))
            out = points[..., 1:].movedim(-1, dim)
        return radial_rescale(out, c, self.slope, self.limit, dim)

    def _axial_numbers(
        self, square: Tensor, last: Tensor, *parameters: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the numbers of :meth:`_along_axis`, computed in float64; on a GPU, boosts of maps
        by one Triton kernel."""
        if self._fused(square, last):
            c = torch.as_tensor(parameters[0], dtype=torch.float64, device=square.device)
            numbers: tuple[Tensor, Tensor] = _FusedBoost.apply(
                self, square, last, c, *parameters[1:]
            )
            return numbers
        return radial_numbers(self._along_axis, [square, last, *parameters], square.device)

    def _fused(self, square: Tensor, last: Tensor) -> bool:
        """Return whether Triton kernels compute the boost: of float32 maps of fewer than 2^30
        numbers, which 32 bits count even where programs count beyond the end."""
        if (
            self.boost != "axis"
            or square.dtype != torch.float32
            or not on_gpu(square)
            or square.numel() == 0
        ):
            return False
        small = max(last.stride(0) * last.shape[0], square.numel()) < 2**30
        return small and square.dim() > 2 and square.shape[1] == 1

    def _along_axis(
        self, square: Tensor, last: Tensor, c: float | Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return norm matching, boost and rescaling as a factor of the space parts and a number to
        add to their last channel, both of the shape of ``square``."""
        if self.matched:
            wanted = rest[0].to(square.dtype)
            factor = _matching(square, wanted)
            square = wanted
            last = last * factor
        else:
            factor = torch.ones_like(square)
        if self.boost == "axis":
            alpha = rest[-1].to(square.dtype)
            moved = torch.sinh(alpha) * torch.sqrt(square + 1 / c) + torch.cosh(alpha) * last
            shift = moved - last
            square = square + shift * (moved + last)
        else:
            shift = torch.zeros_like(square)
        if self.slope is None:
            return factor, shift
        scale = rescale_factor(square, c, self.slope, self.limit)
        return factor * scale, shift * scale

    def _full_boost(self, out: Tensor, c: float | Tensor, dim: int) -> Tensor:
        """Return ``out`` after a boost by the velocity that has the direction of the weight ``v``
        and the speed ``sigmoid(|v|)``, computed as a product of rank one."""
        v = self.boost_weight.to(torch.promote_types(self.boost_weight.dtype, torch.float32))
        length = safe_sqrt((v * v).sum())
        heading = v / length.clamp(min=1e-12)
        speed = torch.sigmoid(length)
        gamma = 1 / torch.sqrt(1 - speed * speed)
        shape = [1] * out.dim()
        shape[dim] = -1
        n = heading.view(shape).to(out.dtype)
        time = torch.sqrt(space_square(out, dim) + 1 / c).to(out.dtype)
        along = (out * n).sum(dim, keepdim=True)
        return out + n * ((gamma - 1) * along - gamma * speed * time).to(out.dtype)


class _EfficientConv(_Efficient):
    """The base of efficient convolutions: the efficient layer on the patches of a map."""

    rank: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        manifold: Lorentz,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        norm_match: str = "patch",
        boost: str = "axis",
        slope: float | None = 2.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
        limit: float | None = None,
        dilation: int | tuple[int, ...] = 1,
    ):
        check_sizes(self, in_channels=in_channels, out_channels=out_channels)
        kernel = integers(kernel_size, self.rank, "kernel_size", 1)
        factory: Plain = {"device": device, "dtype": dtype}
        fan_in = in_channels * math.prod(kernel)
        super().__init__(fan_in, out_channels, manifold, norm_match, boost, slope, limit, factory)
        self.kernel_size = kernel
        self.stride = integers(stride, self.rank, "stride", 1)
        self.padding = integers(padding, self.rank, "padding", 0)
        self.dilation = integers(dilation, self.rank, "dilation", 1)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, *kernel, **factory))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.weight.shape[1], 1, self.rank + 2)
        weight = (
            self.matrix().reshape(self.weight.shape).to(x.dtype) if self.expanding else self.weight
        )
        geometry = (self.stride, self.padding, self.dilation)
        out = _CONVOLUTIONS[self.rank](x, weight, None, *geometry)

        def wanted() -> Tensor:
            square = space_square(x, 1)
            if self.norm_match == "sum":
                return box_sum(safe_sqrt(square), self.kernel_size, *geometry).square()
            return box_sum(square, self.kernel_size, *geometry)

        return self.finish(out, wanted, 1)

    def extra_repr(self) -> str:
        out, inside = self.weight.shape[:2]
        return (
            f"{inside}, {out}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, norm_match={self.norm_match}, "
            f"boost={self.boost}, slope={self.slope}"
        )


class EfficientLorentzConv2d(_EfficientConv):
    """Efficient Lorentz convolution of HECNN+ (Bdeir et al., NeurIPS 2025): rotate, boost, rescale.

    The layer is one ``nn.Conv2d`` without bias on the space part. If it expands, its columns are
    orthonormal (Cayley transform); otherwise the norm of every result is matched to that of its
    patch, so that the map acts as a rotation. Stacks of any depth stay in range, because the
    rescaling bounds the radius.

    Args:
        in_channels, out_channels: space dimensions of input and result.
        kernel_size, stride, padding, dilation: as in ``nn.Conv2d``; padding is by origins.
        manifold: the hyperboloid of the points.
        norm_match: the norm that a result gets: ``"patch"``, that of its patch; ``"sum"``, the sum
            of the norms of its pixels; or ``"none"``, its own.
        boost: ``"axis"`` (one angle, along the last channel), ``"scale"`` (a factor of the radius),
            ``"full"`` (a velocity) or ``"none"``.
        slope: slope of the maximum-distance rescaling, see
            :func:`hypvision.geometry.lorentz.rescale`; None for no rescaling.
        limit: the radius that no point exceeds after the rescaling, which needs ``slope``; by
            default :func:`~hypvision.geometry.lorentz.max_distance`.

    Shapes:
        space parts ``(B, C, H, W)`` to ``(B, C', H', W')``.
    """

    rank = 2


class EfficientLorentzConv1d(_EfficientConv):
    """Efficient Lorentz convolution of sequences ``(B, C, L)``; see
    :class:`EfficientLorentzConv2d`."""

    rank = 1


class EfficientLorentzLinear(_Efficient):
    """Efficient Lorentz linear layer on space parts ``(..., in_features)``; see
    :class:`EfficientLorentzConv2d`."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        manifold: Lorentz,
        norm_match: str = "patch",
        boost: str = "axis",
        slope: float | None = 2.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
        limit: float | None = None,
    ):
        factory: Plain = {"device": device, "dtype": dtype}
        check_sizes(self, in_features=in_features, out_features=out_features)
        super().__init__(
            in_features, out_features, manifold, norm_match, boost, slope, limit, factory
        )
        self.weight = nn.Parameter(torch.empty(out_features, in_features, **factory))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.fan_in)
        out = F.linear(x, self.matrix().to(x.dtype) if self.expanding else self.weight)
        return self.finish(out, lambda: space_square(x), -1)

    def extra_repr(self) -> str:
        return (
            f"{self.fan_in}, {self.fan_out}, norm_match={self.norm_match}, boost={self.boost}, "
            f"slope={self.slope}"
        )
