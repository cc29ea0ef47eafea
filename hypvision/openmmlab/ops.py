"""The compiled operators of mmcv, implemented with torchvision's prebuilt kernels.

mmdet and mmseg import ``mmcv.ops``, which loads the extension module ``mmcv._ext``. ``mmcv-lite``
comes without this module, and building it needs a compiler that matches PyTorch and CUDA. Where it
is missing, :func:`install` puts a module of that name in its place, whose functions have the
signatures of the extension: they write their outputs into tensors of the caller.

Float16 and bfloat16 inputs are computed in float32, as in torchvision under autocast, because box
coordinates need it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
import torchvision  # defines torch.ops.torchvision
from torch import Tensor

from hypvision.engine.checks import walk
from hypvision.geometry.numerics import precise

NAME = "mmcv._ext"
INSTALL = "pip uninstall mmcv-lite && pip install openmim && mim install 'mmcv>=2.1.0,<2.2'"


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the numbers of the boxes that greedy non-maximum suppression keeps, by falling score.
    Boxes are ``(N, 4)``: x1, y1, x2, y2 in pixels. A width is ``x2 - x1 + offset``; the offset is 1
    for coordinates that name the last pixel of a box, else 0."""
    boxes = precise(boxes)
    if offset:
        # Adding the offset to x2 and y2 adds it to the widths of boxes and of intersections.
        boxes = boxes + boxes.new_tensor([0.0, 0.0, offset, offset])
    return torch.ops.torchvision.nms(boxes, precise(scores), iou_threshold)


def softnms(
    boxes: Tensor, scores: Tensor, dets: Tensor, iou_threshold: float, sigma: float,
    min_score: float, method: int, offset: int,
) -> Tensor:  # fmt: skip
    """Return the numbers of the boxes that Soft-NMS keeps (Bodla et al., ICCV 2017): overlap with a
    better box lowers the score of a box, which is not dropped at once.

    The kept boxes and their lowered scores are written into ``dets`` ``(N, 5)``, in the order in
    which they are taken; of equal scores the first box comes first. ``sigma`` is the width of the
    Gaussian. With ``method`` 0 an overlapping box is dropped (hard NMS), with 1 its score is
    lowered linearly, with 2 by the Gaussian.
    """
    area = (boxes[:, 2:] - boxes[:, :2] + offset).prod(1)
    scores = scores.clone()
    left = torch.arange(len(boxes), device=boxes.device)
    kept: list[int] = []
    while len(left):
        best = left[scores[left].argmax()]
        dets[len(kept), :4] = boxes[best]
        dets[len(kept), 4] = scores[best]
        kept.append(int(best))
        left = left[left != best]
        low = torch.maximum(boxes[left, :2], boxes[best, :2])
        high = torch.minimum(boxes[left, 2:], boxes[best, 2:])
        inter = (high - low + offset).clamp(min=0).prod(1)
        iou = inter / (area[left] + area[best] - inter)
        if method == 2:
            scores[left] *= torch.exp(-iou.square() / sigma)
        else:
            lowered = 1 - iou if method == 1 else torch.zeros_like(iou)
            scores[left] *= torch.where(iou >= iou_threshold, lowered, 1.0)
        left = left[scores[left] >= min_score]
    return torch.tensor(kept, dtype=torch.long, device=boxes.device)


def _check_pool_mode(pool_mode: int) -> None:
    if pool_mode != 1:
        raise NotImplementedError(
            "roi_align with pool_mode='max' is not available without a compiled mmcv: torchvision "
            f"has averages only. Set pool_mode='avg', or install a compiled mmcv: {INSTALL}."
        )


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor,
    aligned_height: int, aligned_width: int, spatial_scale: float, sampling_ratio: int,
    pool_mode: int, aligned: bool,
) -> None:  # fmt: skip
    """Compute RoIAlign (He et al., ICCV 2017) of maps ``(B, C, H, W)`` for ``rois`` ``(K, 5)``:
    image number, x1, y1, x2, y2 in pixels of the image. The result is written into ``output`` ``(K,
    C, aligned_height, aligned_width)``. Only averages (``pool_mode`` 1) are available;
    ``sampling_ratio`` 0 means a sample for each pixel of the map."""
    _check_pool_mode(pool_mode)
    maps = precise(input)
    pooled = torch.ops.torchvision.roi_align(
        maps, rois.to(maps.dtype), spatial_scale, aligned_height, aligned_width, sampling_ratio,
        aligned,
    )  # fmt: skip
    output.copy_(pooled)


def roi_align_backward(
    grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor, grad_input: Tensor,
    aligned_height: int, aligned_width: int, spatial_scale: float, sampling_ratio: int,
    pool_mode: int, aligned: bool,
) -> None:  # fmt: skip
    """Write the gradient of :func:`roi_align_forward` with respect to its maps into ``grad_input``
    ``(B, C, H, W)``."""
    _check_pool_mode(pool_mode)
    grad = precise(grad_output)
    grad_input.copy_(
        torch.ops.torchvision._roi_align_backward(
            grad, rois.to(grad.dtype), spatial_scale, aligned_height, aligned_width,
            *grad_input.shape, sampling_ratio, aligned,
        )
    )  # fmt: skip


def roi_pool_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax: Tensor, pooled_height: int,
    pooled_width: int, spatial_scale: float,
) -> None:  # fmt: skip
    """Compute RoIPool (Girshick, ICCV 2015), the maxima over bins, and write it and the positions
    of the maxima into ``output`` and ``argmax`` ``(K, C, h, w)``."""
    rois = rois.to(precise(input).dtype)
    pooled, places = torch.ops.torchvision.roi_pool(
        precise(input), rois, spatial_scale, pooled_height, pooled_width
    )
    output.copy_(pooled)
    argmax.copy_(places)


def roi_pool_backward(
    grad_output: Tensor, rois: Tensor, argmax: Tensor, grad_input: Tensor, pooled_height: int,
    pooled_width: int, spatial_scale: float,
) -> None:  # fmt: skip
    """Write the gradient of :func:`roi_pool_forward` with respect to its maps into ``grad_input``
    ``(B, C, H, W)``."""
    grad = precise(grad_output)
    grad_input.copy_(
        torch.ops.torchvision._roi_pool_backward(
            grad,
            rois.to(grad.dtype),
            argmax,
            spatial_scale,
            pooled_height,
            pooled_width,
            *grad_input.shape,
        )
    )


def _attend(shapes: Tensor, value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch

    return multi_scale_deformable_attn_pytorch(value, shapes.tolist(), locations, weights)


def ms_deform_attn_forward(
    value: Tensor, value_spatial_shapes: Tensor, value_level_start_index: Tensor,
    sampling_locations: Tensor, attention_weights: Tensor, im2col_step: int,
) -> Tensor:  # fmt: skip
    """Return multi-scale deformable attention (Zhu et al., ICLR 2021) of ``value`` ``(B, sum of H_l
    W_l, heads, D)``, as ``(B, Q, heads D)``, by the PyTorch function that mmcv has for CPUs."""
    floats = map(precise, (value, sampling_locations, attention_weights))
    return _attend(value_spatial_shapes, *floats).to(value.dtype)


def ms_deform_attn_backward(
    value: Tensor, value_spatial_shapes: Tensor, value_level_start_index: Tensor,
    sampling_locations: Tensor, attention_weights: Tensor, grad_output: Tensor, grad_value: Tensor,
    grad_sampling_loc: Tensor, grad_attn_weight: Tensor, im2col_step: int,
) -> None:  # fmt: skip
    """Write the gradients of :func:`ms_deform_attn_forward`, for which the forward pass is computed
    again."""
    with torch.enable_grad():
        inputs = [
            precise(part).detach().requires_grad_()
            for part in (value, sampling_locations, attention_weights)
        ]
        out = _attend(value_spatial_shapes, *inputs)
    found = torch.autograd.grad(out, inputs, precise(grad_output))
    for out, grad in zip((grad_value, grad_sampling_loc, grad_attn_weight), found):
        out.copy_(grad)


def _deform_conv(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor | None,
    grad: Tensor | None, geometry: Mapping[str, int],
) -> Any:  # fmt: skip
    """Return torchvision's deformable convolution, or its five gradients if ``grad``, the gradient
    of the output, is given. ``geometry`` has mmcv's names of stride, padding and dilation, which
    differ for the two kinds of convolution."""
    names = _MODULATED if "stride_h" in geometry else _PLAIN
    sizes = [geometry[name] for name in (*names, "group", "deformable_group")]
    input = precise(input)
    weight = precise(weight)
    offset = precise(offset)
    use_mask = mask is not None
    mask = input.new_zeros((len(input), 1)) if mask is None else precise(mask)
    bias = precise(bias) if bias is not None else input.new_zeros(len(weight))
    if grad is None:
        return torch.ops.torchvision.deform_conv2d(
            input, weight, offset, mask, bias, *sizes, use_mask
        )
    return torch.ops.torchvision._deform_conv2d_backward(
        precise(grad), input, weight, offset, mask, bias, *sizes, use_mask
    )


_PLAIN = ("dH", "dW", "padH", "padW", "dilationH", "dilationW")
_MODULATED = ("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w")


def deform_conv_forward(
    input: Tensor, weight: Tensor, offset: Tensor, output: Tensor, *buffers: Tensor, **geometry: int
) -> None:
    """Compute deformable convolution (Dai et al., ICCV 2017), and write it into ``output`` ``(B,
    C_out, H_out, W_out)``.

    ``offset`` ``(B, deformable_group * kH * kW * 2, H_out, W_out)`` has y and x shifts in turn. The
    buffers belong to mmcv's own kernel and are not used.
    """
    output.copy_(_deform_conv(input, weight, offset, None, None, None, geometry))


def deform_conv_backward_input(
    input: Tensor, offset: Tensor, grad_output: Tensor, grad_input: Tensor, grad_offset: Tensor,
    weight: Tensor, *buffers: Tensor, **geometry: int,
) -> None:  # fmt: skip
    """Write the gradients of :func:`deform_conv_forward` with respect to its input and offsets."""
    grads = _deform_conv(input, weight, offset, None, None, grad_output, geometry)
    grad_input.copy_(grads[0])
    grad_offset.copy_(grads[2])


def deform_conv_backward_parameters(
    input: Tensor, offset: Tensor, grad_output: Tensor, grad_weight: Tensor, *buffers: Tensor,
    scale: float, **geometry: int,
) -> None:  # fmt: skip
    """Add the gradient of :func:`deform_conv_forward` with respect to its weight, times ``scale``,
    to ``grad_weight``."""
    # The gradient of the weight depends only on the weight's shape, so zeros can stand for its
    # values.
    grads = _deform_conv(
        input, torch.zeros_like(grad_weight), offset, None, None, grad_output, geometry
    )
    grad_weight.add_(grads[1], alpha=scale)


def modulated_deform_conv_forward(
    input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor, offset: Tensor, mask: Tensor,
    output: Tensor, columns: Tensor, *, with_bias: bool, **geometry: int,
) -> None:  # fmt: skip
    """Compute modulated deformable convolution (Zhu et al., CVPR 2019), and write it into
    ``output``: ``mask`` ``(B, deformable_group * kernel_h * kernel_w, H_out, W_out)`` weights the
    samples of :func:`deform_conv_forward`."""
    output.copy_(
        _deform_conv(input, weight, offset, mask, bias if with_bias else None, None, geometry)
    )


def modulated_deform_conv_backward(
    input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor, offset: Tensor, mask: Tensor,
    columns: Tensor, grad_input: Tensor, grad_weight: Tensor, grad_bias: Tensor,
    grad_offset: Tensor, grad_mask: Tensor, grad_output: Tensor, *, with_bias: bool,
    **geometry: int,
) -> None:  # fmt: skip
    """Write the gradients of :func:`modulated_deform_conv_forward` with respect to all its
    tensors."""
    grads = _deform_conv(
        input, weight, offset, mask, bias if with_bias else None, grad_output, geometry
    )
    for out, grad in zip(
        (grad_input, grad_weight, grad_offset, grad_mask, grad_bias), grads[: 4 + with_bias]
    ):
        out.copy_(grad)


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss of sigmoids (Lin et al., ICCV 2017, eq. 5) of logits ``(N, C)``, for
    each sample and class, into ``output``. A ``target`` of C means the background; ``weight`` has a
    factor for each class, or is empty."""
    output.copy_(_focal_loss(precise(input), target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the derivative of :func:`sigmoid_focal_loss_forward` with respect to the logits into
    ``grad_input`` ``(N, C)``."""
    with torch.enable_grad():
        logits = precise(input).detach().requires_grad_()
        (grad,) = torch.autograd.grad(
            _focal_loss(logits, target, weight, gamma, alpha).sum(), logits
        )
    grad_input.copy_(grad)


def _focal_loss(
    logits: Tensor, target: Tensor, weight: Tensor, gamma: float, alpha: float
) -> Tensor:
    # The background has the label C, for which there is no column, so all of its targets are 0.
    positive = target[:, None] == torch.arange(logits.shape[1], device=target.device)
    right = torch.where(positive, logits, -logits)
    loss = (
        -torch.where(positive, alpha, 1 - alpha)
        * torch.sigmoid(-right) ** gamma
        * F.logsigmoid(right)
    )
    if not weight.numel():
        return loss
    # Each class has a weight; the background has weight 1.
    return loss * F.pad(weight.to(logits.dtype), (0, 1), value=1.0)[target][:, None]


def get_compiler_version() -> str:
    """Return the text that ``mmcv.ops.get_compiler_version`` prints in environment reports."""
    return f"none (operators of torchvision {torchvision.__version__})"


def get_compiling_cuda_version() -> str:
    """Return the CUDA version of torch, for environment reports."""
    return torch.version.cuda or "not available"


ANSWERED: tuple[Callable[..., Any], ...] = (
    nms, softnms, roi_align_forward, roi_align_backward, roi_pool_forward, roi_pool_backward,
    ms_deform_attn_forward, ms_deform_attn_backward, deform_conv_forward,
    deform_conv_backward_input, deform_conv_backward_parameters, modulated_deform_conv_forward,
    modulated_deform_conv_backward, sigmoid_focal_loss_forward, sigmoid_focal_loss_backward,
    get_compiler_version, get_compiling_cuda_version,
)  # fmt: skip


MISSING: dict[str, tuple[str, ...]] = {
    "carafe": ("carafe", "FPN_CARAFE", "CARAFE"),
    "deform_roi_pool": ("DeformRoIPoolPack", "DeformRoIPool", "ModulatedDeformRoIPoolPack"),
    "nms_match": ("ScoreHLRSampler",),
    "prroi_pool": ("PrRoIPool",),
    "psamask": ("PSAHead",),
    "riroi_align_rotated": ("RiRoIAlignRotated",),
    "roi_align_rotated": ("RoIAlignRotated",),
    "masked_im2col": ("GARPNHead", "GARetinaHead"),  # these types need it only for predictions
    # DyHead calls it with offsets of another map's size, which torchvision refuses.
    "modulated_deform_conv_forward": ("DyHead",),
    "sync_bn": ("MMSyncBN",),
}
"""Operators without an implementation here -> the types in configs of mmdet and mmseg that need
them."""


def missing_operators(config: Any, path: str = "model") -> Iterator[tuple[str, str, str]]:
    """Yield the parts of a config that need an operator of :data:`MISSING`: the dotted keys of the
    part, its type, and the operator.

    >>> list(missing_operators(dict(neck=dict(type="FPN_CARAFE"))))
    [('model.neck', 'FPN_CARAFE', 'carafe')]
    """
    for place, part in [(path, config), *walk(config, f"{path}.")]:
        type_name = str(part.get("type")).rpartition(".")[2] if isinstance(part, dict) else ""
        for operator, types in MISSING.items():
            if type_name in types:
                yield place, type_name, operator
        if type_name == "RoIAlign" and part.get("pool_mode") == "max":
            yield place, type_name, "roi_align with pool_mode='max'"


class _Extension(ModuleType):
    """The module that stands in for ``mmcv._ext``; its missing operators are errors when called."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("_"):  # Python looks up special attributes itself, which must fail
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")

        def missing(*args: Any, **kwargs: Any) -> NoReturn:
            raise NotImplementedError(
                f"The operator '{name}' of mmcv is not available without a compiled mmcv. Install "
                f"one that matches PyTorch {torch.__version__}: {INSTALL}."
            )

        missing.__name__ = missing.__qualname__ = name
        setattr(self, name, missing)
        return missing


def has_compiled_mmcv() -> bool:
    """Return whether mmcv is installed with its own compiled operators, without importing it."""
    mmcv = importlib.util.find_spec("mmcv")
    places = mmcv.submodule_search_locations if mmcv is not None else None
    return places is not None and PathFinder.find_spec(NAME, places) is not None


def install() -> bool:
    """Provide ``mmcv._ext`` with torchvision's kernels, unless it is loaded already or mmcv has its
    own compiled operators.

    Returns:
        Whether the operators in use are those of this module.
    """
    if NAME not in sys.modules:
        if has_compiled_mmcv():
            return False
        extension = _Extension(NAME, __doc__)
        # mmengine reads the import specification of mmcv's extension, so the module needs one.
        extension.__spec__ = ModuleSpec(NAME, None, origin=__name__)
        for function in ANSWERED:
            setattr(extension, function.__name__, function)
        sys.modules[NAME] = extension
    return isinstance(sys.modules[NAME], _Extension)
