"""Segmentation whose pixels are points of the Poincare ball, for mmseg (Ghadimi Atigh et al.,
"Hyperbolic Image Segmentation", CVPR 2022): decode heads, and a segmentor that tells how sure each
pixel is.

The class is chosen by hyperplanes of the ball, one a node of a class tree; a pixel near the origin
is an uncertain one. Importing this module imports mmseg.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.structures import PixelData
from mmseg.models.decode_heads import (
    DepthwiseSeparableASPPHead,
    FCNHead,
    FPNHead,
    SegformerHead,
    UPerHead,
)
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.segmentors import EncoderDecoder
from mmseg.models.utils import resize
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from hypvision.geometry import ManifoldParameter, PoincareBall, lorentz
from hypvision.geometry.numerics import exact, length, sinhc_sqrt, square_root, tiny
from hypvision.io.checks import one_of
from hypvision.io.errors import HypvisionError
from hypvision.losses.class_tree import ClassTree
from hypvision.nn.functional import precise, radial_map, space_square, space_time

# sqrt(c) |u| of the tangent vectors of longest points: those of the paper have 0.999 of the radius
LONGEST = math.atanh(0.999)


class PixelLogits(nn.Module):
    r"""Hyperplanes of the Poincare ball for tangent vectors at the origin.

    .. math:: v_k = \tfrac{2 |a_k|}{\sqrt c}\,\mathrm{asinh}\,
              \frac{2 \sqrt c \langle (-p_k) \oplus z, \hat a_k\rangle}
                   {1 - c |(-p_k) \oplus z|^2}, \qquad z = \exp_0(u)

    Computed on the hyperboloid by one convolution; the paper's floor of the denominator is left
    out, as it changes the logits of distant points.

    Args:
        dim: dimension of the ball.
        count: number of hyperplanes M.
        manifold: the ball.

    Attributes:
        offsets: points of the ball ``(M, dim)``, at first the origin.
        normals: ``(M, dim)``, at first with a deviation of 0.05.

    Shapes:
        maps ``(B, dim, h, w)`` to logits ``(B, h, w, M)``, float32 also under autocast.
    """

    def __init__(self, dim: int, count: int, manifold: PoincareBall):
        super().__init__()
        self.manifold = manifold
        self.offsets = ManifoldParameter(torch.zeros(count, dim), manifold)
        self.normals = nn.Parameter(0.05 * torch.randn(count, dim))

    def no_weight_decay(self) -> set[str]:
        """Offsets do not decay, as published."""
        return {"offsets"}

    def forward(self, u: Tensor) -> Tensor:
        c = self.manifold.c
        root = square_root(c)
        size = length(self.normals)
        points = self.manifold.to_lorentz(self.offsets)
        planes = lorentz.transp0(points, self.normals / size.clamp_min(tiny(size)), c)
        # sinh of a pixel's distance is its Minkowski product with the normal of length 1
        space = radial_map(u, _to_space, c, dim=1)
        sides = F.conv2d(space, planes[:, 1:, None, None])
        sides = sides - space_time(space, c, 1) * planes[:, :1, None]
        return (torch.asinh(root * sides) * (2 * size / root)[..., None]).movedim(1, -1)

    def radius(self, u: Tensor) -> Tensor:
        """Distance of each pixel from the origin ``(B, 1, h, w)``."""
        return 2 * space_square(u, 1).sqrt()


def _to_space(square: Tensor, c: float | Tensor) -> Tensor:
    """Factor from a tangent vector of the ball to the space part on the hyperboloid, twice as far
    in its units."""
    shrink = LONGEST / torch.sqrt((square * c).clamp(min=LONGEST**2))
    return 2 * shrink * sinhc_sqrt(4 * square * c * (shrink * shrink))


class FlatLogits(nn.Module):
    """The Euclidean counterpart of :class:`PixelLogits`: a linear layer."""

    def __init__(self, dim: int, count: int):
        super().__init__()
        self.linear = nn.Linear(dim, count)

    def forward(self, u: Tensor) -> Tensor:
        return self.linear(u.movedim(1, -1))


class PixelClassifier(nn.Module):
    """Features ``(B, C, h, w)`` to log-probabilities of the classes ``(B, K, h, w)``: a projection
    to tangent vectors, logits of the nodes, the softmax along the tree."""

    def __init__(self, channels: int, logits: nn.Module, dim: int, tree: ClassTree):
        super().__init__()
        self.project = nn.Conv2d(channels, dim, 1)
        self.logits = logits
        self.tree = tree

    def forward(self, x: Tensor) -> Tensor:
        u = precise(self.project(x))
        with exact(x.device):
            return self.tree(self.logits(u)).movedim(-1, 1)


class HyperbolicHead(BaseDecodeHead):
    """Mixin for decode heads of mmseg: :class:`PixelClassifier` in the place of their last layer.

    The head gives log-probabilities of the classes, so that losses, metrics, sliding windows and
    views of mmseg work as ever: their softmax leaves log-probabilities as they are.

    Args:
        dim: dimension of the embedding of a pixel.
        c: curvature of the ball.
        learn_c: whether it is learned.
        tree: see :class:`~hypvision.losses.class_tree.ClassTree`; needs ``classes``.
        classes: their names, in the order of the labels.
        geometry: ``"poincare"``, or ``"euclidean"`` for the counterpart of the same dimension.
        loss_at: ``"label"``: the maps are enlarged to the labels, as in mmseg; ``"feature"``: the
            labels are shrunk to the maps, as in the paper.
    """

    def __init__(
        self,
        *args: Any,
        dim: int = 256,
        c: float = 1.0,
        learn_c: bool = False,
        tree: Mapping[str, Any] | str | Path | None = None,
        classes: Sequence[str] | None = None,
        geometry: str = "poincare",
        loss_at: str = "label",
        init_cfg: Any = None,
        **kwargs: Any,
    ):
        one_of(("poincare", "euclidean"), geometry=geometry)
        one_of(("label", "feature"), loss_at=loss_at)
        super().__init__(*args, init_cfg=init_cfg, **kwargs)
        number = self.num_classes
        if (tree is not None and classes is None) or len(classes or range(number)) != number:
            raise HypvisionError(
                f"A class tree needs 'classes', the {number} names in the order of the labels; "
                f"got {'none' if classes is None else len(classes)}."
            )
        nodes = ClassTree(classes or [str(label) for label in range(number)], tree)
        if geometry == "euclidean":
            logits: nn.Module = FlatLogits(dim, len(nodes.names))
        else:
            ball = PoincareBall(c, learnable=learn_c)
            logits = PixelLogits(dim, len(nodes.names), ball)
        self.conv_seg = PixelClassifier(self.channels, logits, dim, nodes)
        self.class_names = None if classes is None else tuple(classes)
        self.loss_at = loss_at

    def loss_by_feat(self, seg_logits: Tensor, batch_data_samples: list[SegDataSample]) -> dict:
        """As in mmseg, with the labels of ``loss_at``."""
        samples = batch_data_samples
        if self.loss_at == "feature":
            samples = [_shrunk(sample, seg_logits.shape[2:]) for sample in samples]
        return super().loss_by_feat(seg_logits, samples)


def _shrunk(sample: SegDataSample, size: Sequence[int]) -> SegDataSample:
    """A sample with the labels nearest to the pixels of a smaller map."""
    labels = F.interpolate(sample.gt_sem_seg.data[None].float(), tuple(size), mode="nearest")
    return SegDataSample(gt_sem_seg=PixelData(data=labels[0].long()))


@MODELS.register_module()
class HyperbolicFCNHead(HyperbolicHead, FCNHead):
    """mmseg's ``FCNHead`` with hyperbolic pixels."""


@MODELS.register_module()
class HyperbolicFPNHead(HyperbolicHead, FPNHead):
    """mmseg's ``FPNHead`` with hyperbolic pixels."""


@MODELS.register_module()
class HyperbolicASPPHead(HyperbolicHead, DepthwiseSeparableASPPHead):
    """mmseg's ``DepthwiseSeparableASPPHead``, that of DeepLabV3+, with hyperbolic pixels."""


@MODELS.register_module()
class HyperbolicSegformerHead(HyperbolicHead, SegformerHead):
    """mmseg's ``SegformerHead`` with hyperbolic pixels."""


@MODELS.register_module()
class HyperbolicUPerHead(HyperbolicHead, UPerHead):
    """mmseg's ``UPerHead`` with hyperbolic pixels."""


@MODELS.register_module()
class HyperbolicSegmentor(EncoderDecoder):
    """mmseg's ``EncoderDecoder`` for a head of hyperbolic pixels.

    Its predictions have two maps more: ``radius``, the distance of each pixel from the origin, and
    ``uncertainty``, ``1 - sqrt(c) |z|`` of its point ``z`` of the ball. The distance is enlarged,
    not the point, and averaged over sliding windows; of several views that of the first counts.
    """

    tells_uncertainty = True

    def _init_decode_head(self, decode_head: Any) -> None:
        super()._init_decode_head(decode_head)
        if not isinstance(getattr(self.decode_head.conv_seg, "logits", None), PixelLogits):
            raise HypvisionError(
                "HyperbolicSegmentor needs a decode head such as HyperbolicFCNHead with the "
                "geometry 'poincare'. Take EncoderDecoder for other heads."
            )
        self.out_channels += 1  # the distance travels as the last channel

    def encode_decode(self, inputs: Tensor, batch_img_metas: list[dict]) -> Tensor:
        """Log-probabilities and distances ``(B, K + 1, H, W)``."""
        kept: list[Tensor] = []
        pixels = self.decode_head.conv_seg
        hook = pixels.project.register_forward_hook(lambda *call: kept.append(call[-1]))
        try:
            logits = super().encode_decode(inputs, batch_img_metas)
        finally:
            hook.remove()
        size = logits.shape[2:]
        radius = resize(pixels.logits.radius(kept[0]), size, None, "bilinear", self.align_corners)
        return torch.cat([logits, radius.to(logits.dtype)], 1)

    def postprocess_result(
        self, seg_logits: Tensor, data_samples: list[SegDataSample] | None = None
    ) -> list[SegDataSample]:
        """As in mmseg, and the two maps."""
        root = float(self.decode_head.conv_seg.logits.manifold.c) ** 0.5
        samples = super().postprocess_result(seg_logits, data_samples)
        for sample in samples:
            logits, radius = sample.seg_logits.data.split([self.num_classes, 1])
            found = dict(
                seg_logits=logits,
                pred_sem_seg=logits.argmax(0, keepdim=True),
                radius=radius,
                uncertainty=1 - torch.tanh(root * radius / 2),
            )
            sample.set_data({name: PixelData(data=value) for name, value in found.items()})
        return samples
