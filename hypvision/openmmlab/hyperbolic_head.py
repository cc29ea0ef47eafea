"""Segmentation with pixels as points of the Poincare ball, for mmseg (Ghadimi Atigh et al.,
"Hyperbolic Image Segmentation", CVPR 2022): decode heads, and a segmentor that returns the
uncertainty of each pixel.

Hyperplanes of the ball, one for each node of a class tree, choose the class; a pixel near the
origin is an uncertain one. Importing this module imports mmseg.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
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

from hypvision.geometry import Lorentz, ManifoldParameter, PoincareBall, lorentz
from hypvision.geometry.numerics import exact, length, sinhc_sqrt, square_root, tiny
from hypvision.io import HypvisionError, StrPath, Values, ensure, one_of
from hypvision.losses.class_tree import ClassTree
from hypvision.nn import LorentzMLR
from hypvision.nn.functional import precise, radial_map, space_square, space_time

# sqrt(c) |u| of the longest tangent vectors: as in the paper, points have at most 0.999 of the
# radius.
LONGEST = math.atanh(0.999)
SINH = math.sinh(2 * LONGEST)
_LOW = -1e4  # of classes that are not to be predicted; finite, because windows are averaged


class PixelLogits(nn.Module):
    r"""Logits of tangent vectors at the origin by their distances from hyperplanes of the Poincare
    ball.

    .. math:: v_k = \tfrac{2 |a_k|}{\sqrt c}\,\mathrm{asinh}\,
              \frac{2 \sqrt c \langle (-p_k) \oplus z, \hat a_k\rangle}
                   {1 - c |(-p_k) \oplus z|^2}, \qquad z = \exp_0(u)

    The logits are computed on the hyperboloid by one convolution.

    Args:
        dim: dimension of the ball.
        count: number of hyperplanes M.
        manifold: the ball.
        clamp: ``"official"``: as in the official code :math:`(-p_k) \oplus z` is shortened to at
            most 0.999 of the radius, which changes the logits of pixels that are further than
            :math:`7.6 / \sqrt c` from :math:`p_k`; None: it is not.

    Attributes:
        offsets: points of the hyperplanes in the ball, ``(M, dim)``, at first the origin.
        normals: normals of the hyperplanes, ``(M, dim)``, at first with a deviation of 0.05.

    Shapes:
        From maps ``(B, dim, h, w)`` to logits ``(B, h, w, M)``, in float32 also under autocast.
    """

    def __init__(self, dim: int, count: int, manifold: PoincareBall, clamp: str | None = None):
        super().__init__()
        one_of((None, "official"), clamp=clamp)
        self.manifold = manifold
        self.clamp = clamp
        self.offsets = ManifoldParameter(torch.zeros(count, dim), manifold)
        self.normals = nn.Parameter(0.05 * torch.randn(count, dim))

    def no_weight_decay(self) -> set[str]:
        """Return the name of the offsets, which get no weight decay, as published."""
        return {"offsets"}

    def forward(self, u: Tensor) -> Tensor:
        c = self.manifold.c
        root = square_root(c)
        size = length(self.normals)
        points = self.manifold.to_lorentz(self.offsets)
        planes = lorentz.transp0(points, self.normals / size.clamp_min(tiny(size)), c)
        # sinh of a pixel's distance is its Minkowski product with the normal of length 1.
        space = radial_map(u, _to_space, c, dim=1)
        time = space_time(space, c, 1)
        sides = F.conv2d(space, planes[:, 1:, None, None])
        sides = sides - time * planes[:, :1, None]
        if self.clamp:
            # The shortened vector keeps its direction, and the sinh of its length is the largest.
            cosh = time * points[:, :1, None] - F.conv2d(space, points[:, 1:, None, None])
            sinh = torch.sqrt(((c * cosh) ** 2 - 1).clamp(min=SINH**2))
            sides = sides * (SINH / sinh)
        return (torch.asinh(root * sides) * (2 * size / root)[..., None]).movedim(1, -1)

    def radius(self, u: Tensor) -> Tensor:
        """Return the distance of each pixel from the origin, ``(B, 1, h, w)``."""
        return 2 * space_square(u, 1).sqrt()

    def published(self) -> dict[str, np.ndarray]:
        """Return the arrays of the official code: ``offsets`` ``(M, d)`` in the ball, ``normals``
        ``(M, d)`` and the ``curvature`` without dimensions."""
        return {
            "offsets": np.array(self.offsets.detach().float().cpu()),
            "normals": np.array(self.normals.detach().float().cpu()),
            "curvature": np.array(self.manifold._value(), np.float32),
        }

    @torch.no_grad()
    def load_published(
        self, arrays: Mapping[str, np.ndarray], rows: Sequence[int] | None = None
    ) -> None:
        """Take over the arrays of the official code, see :meth:`published`; its nodes have the
        order of :class:`~hypvision.losses.class_tree.ClassTree`.

        Args:
            arrays: the arrays by their names, e.g. of :func:`numpy.load`.
            rows: the row of each node in the arrays, where some rows belong to no node: of the
                182 labels of COCO-Stuff 171 are in use. None: all, in their order.

        Raises:
            HypvisionError: an array is missing or of another shape, an offset is not in the ball,
                or the curvature is not that of this layer, or outside of its bounds.
        """
        found = {}
        for name in ("offsets", "normals"):
            value = torch.as_tensor(_array(arrays, name))
            value = value if rows is None else value[list(rows)]
            if value.shape != self.normals.shape:
                raise HypvisionError(
                    f"The array {name!r} has the shape {tuple(value.shape)}; this head needs "
                    f"{tuple(self.normals.shape)}: nodes of its class tree, and its 'dim'. Give "
                    "'rows' where the array has rows of labels that no image has."
                )
            found[name] = value
        c = float(_array(arrays, "curvature"))
        self._take_curvature(c)
        ensure(
            bool((found["offsets"].square().sum(-1) * c < 1).all()),
            f"An offset lies outside of the ball of curvature {c:g}. Take the arrays of one file.",
        )
        self.offsets.copy_(found["offsets"])
        self.normals.copy_(found["normals"])

    def _take_curvature(self, c: float) -> None:
        """Set a learned curvature to ``c``; one that is fixed must be ``c``."""
        low, high = (math.exp(bound) for bound in self.manifold.log_bounds)
        if not self.manifold.learnable:
            low = high = self.manifold.initial_c
        ensure(
            0.9999 * low <= c <= 1.0001 * high,
            f"The curvature of the arrays is {c:g}, that of this head from {low:g} to {high:g}. "
            f"Set c={c:g} in 'decode_head'.",
        )
        if self.manifold.learnable:
            self.manifold.log_c.fill_(math.log(c))


def _array(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    ensure(
        name in arrays,
        f"The array {name!r} is missing. Expected: 'offsets', 'normals' and 'curvature'.",
    )
    return np.asarray(arrays[name], np.float32)


class LorentzPixelLogits(nn.Module):
    """The counterpart of :class:`PixelLogits` on the hyperboloid: pixels are the points that the
    exponential map at the origin gives, at most as far as in the ball, and the hyperplanes are
    those of :class:`~hypvision.nn.LorentzMLR`.

    Shapes:
        From maps ``(B, dim, h, w)`` to logits ``(B, h, w, M)``, in float32 also under autocast.
    """

    def __init__(self, dim: int, count: int, manifold: Lorentz):
        super().__init__()
        self.planes = LorentzMLR(dim, count, manifold)

    @property
    def manifold(self) -> Lorentz:
        """The hyperboloid."""
        return self.planes.manifold

    def forward(self, u: Tensor) -> Tensor:
        space = radial_map(u / 2, _to_space, self.manifold.c, dim=1)
        out: Tensor = self.planes(space.movedim(1, -1))
        return out

    def radius(self, u: Tensor) -> Tensor:
        """Return the distance of each pixel from the origin, ``(B, 1, h, w)``."""
        return space_square(u, 1).sqrt()


def _to_space(square: Tensor, c: float | Tensor) -> Tensor:
    """Return the factor from a tangent vector at the ball's origin to the space part of its point
    on the hyperboloid, whose distance from the origin is twice the vector's length."""
    shrink = LONGEST / torch.sqrt((square * c).clamp(min=LONGEST**2))
    return 2 * shrink * sinhc_sqrt(4 * square * c * (shrink * shrink))


class FlatLogits(nn.Module):
    """The Euclidean counterpart of :class:`PixelLogits`: logits by a linear layer."""

    def __init__(self, dim: int, count: int):
        super().__init__()
        self.linear = nn.Linear(dim, count)

    def forward(self, u: Tensor) -> Tensor:
        return self.linear(u.movedim(1, -1))


class PixelClassifier(nn.Module):
    """A classifier of pixels, from features ``(B, C, h, w)`` to log-probabilities of the classes
    ``(B, K, h, w)``: a projection to tangent vectors, logits of the nodes, and the softmax along
    the class tree."""

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
    """A mix-in for decode heads of mmseg, which puts a :class:`PixelClassifier` in the place of
    their last layer.

    The head returns log-probabilities of the classes. Losses, metrics, sliding windows and
    test-time augmentation of mmseg work as usual, because a softmax of log-probabilities changes
    nothing.

    Args:
        dim: dimension of the embedding of a pixel.
        c: curvature of the ball.
        learn_c: whether the curvature is learned.
        tree: the class tree, see :class:`~hypvision.losses.class_tree.ClassTree`; needs
            ``classes``.
        classes: names of the classes, in the order of the labels.
        geometry: ``"poincare"``; ``"lorentz"``, see :class:`LorentzPixelLogits`; ``"euclidean"``
            for the Euclidean counterpart of the same dimension.
        clamp: see :class:`PixelLogits`; of the ball alone.
        loss_at: ``"label"``: the maps are enlarged to the size of the labels, as in mmseg;
            ``"feature"``: the labels are shrunk to the size of the maps, as in the paper.
        unseen: names of classes that are ignored in training, and the only ones that predictions
            choose from, for zero-label segmentation; needs ``classes``.
    """

    def __init__(
        self,
        *args: Any,
        dim: int = 256,
        c: float = 1.0,
        learn_c: bool = False,
        tree: Values | StrPath | None = None,
        classes: Sequence[str] | None = None,
        geometry: str = "poincare",
        clamp: str | None = None,
        loss_at: str = "label",
        unseen: Sequence[str] = (),
        init_cfg: Any = None,
        **kwargs: Any,
    ):
        one_of(("poincare", "lorentz", "euclidean"), geometry=geometry)
        ensure(
            clamp is None or geometry == "poincare",
            "clamp='official' is a cut in the ball: set geometry='poincare', or leave it out.",
        )
        one_of(("label", "feature"), loss_at=loss_at)
        super().__init__(*args, init_cfg=init_cfg, **kwargs)
        names = _class_names(classes, self.num_classes, tree is not None)
        nodes = ClassTree(names, tree)
        count = len(nodes.names)
        logits: nn.Module = FlatLogits(dim, count)
        if geometry == "lorentz":
            logits = LorentzPixelLogits(dim, count, Lorentz(c, learnable=learn_c))
        elif geometry == "poincare":
            logits = PixelLogits(dim, count, PoincareBall(c, learnable=learn_c), clamp)
        self.conv_seg = PixelClassifier(self.channels, logits, dim, nodes)
        self.class_names = None if classes is None else tuple(classes)
        self.loss_at = loss_at
        for name in unseen:
            one_of(names, unseen=name)
        self.unseen = [names.index(name) for name in unseen]

    def loss_by_feat(self, seg_logits: Tensor, batch_data_samples: list[SegDataSample]) -> dict:
        """Return mmseg's losses, at the size of the labels or of the maps (``loss_at``)."""
        samples = batch_data_samples
        if self.loss_at == "feature":
            samples = [_shrunk(sample, seg_logits.shape[2:]) for sample in samples]
        return super().loss_by_feat(seg_logits, samples)

    def _stack_batch_gt(self, batch_data_samples: list[SegDataSample]) -> Tensor:
        labels: Tensor = super()._stack_batch_gt(batch_data_samples)
        for number in self.unseen:
            labels = labels.masked_fill(labels == number, self.ignore_index)
        return labels

    def predict_by_feat(self, seg_logits: Tensor, batch_img_metas: list[dict]) -> Tensor:
        """Return log-probabilities of the size of the images; those of all other classes are far
        below those of the unseen, if there are any."""
        out: Tensor = super().predict_by_feat(seg_logits, batch_img_metas)
        if self.unseen:
            low = torch.full_like(out, _LOW)
            low[:, self.unseen] = out[:, self.unseen]
            out = low
        return out


def _class_names(given: Sequence[str] | None, number: int, needed: bool) -> list[str]:
    """Return the names of the classes: those that are given, or else their numbers."""
    ensure(
        len(given or range(number)) == number and (given is not None or not needed),
        f"A class tree needs 'classes', the {number} names in the order of the labels; got "
        f"{'none' if given is None else len(given)}.",
    )
    return list(given or map(str, range(number)))


def _shrunk(sample: SegDataSample, size: Sequence[int]) -> SegDataSample:
    """Return a sample whose labels are shrunk to ``size``, by the nearest pixels."""
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
    """mmseg's ``DepthwiseSeparableASPPHead``, the head of DeepLabV3+, with hyperbolic pixels."""


@MODELS.register_module()
class HyperbolicSegformerHead(HyperbolicHead, SegformerHead):
    """mmseg's ``SegformerHead`` with hyperbolic pixels."""


@MODELS.register_module()
class HyperbolicUPerHead(HyperbolicHead, UPerHead):
    """mmseg's ``UPerHead`` with hyperbolic pixels."""


@MODELS.register_module()
class HyperbolicSegmentor(EncoderDecoder):
    """mmseg's ``EncoderDecoder`` for a head with hyperbolic pixels.

    Its predictions have two more maps: ``radius``, the distance of each pixel from the origin, and
    ``uncertainty``, ``1 - sqrt(c) |z|`` for its point ``z`` of the ball (of a pixel on the
    hyperboloid that at the same distance). The distance is enlarged,
    not the point, and averaged over sliding windows; with test-time augmentation the maps are those
    of the first view.
    """

    tells_uncertainty = True

    def _init_decode_head(self, decode_head: Any) -> None:
        super()._init_decode_head(decode_head)
        logits = getattr(self.decode_head.conv_seg, "logits", None)
        if not isinstance(logits, (PixelLogits, LorentzPixelLogits)):
            raise HypvisionError(
                "HyperbolicSegmentor needs a decode head such as HyperbolicFCNHead with the "
                "geometry 'poincare' or 'lorentz'. Take EncoderDecoder for other heads."
            )
        self.out_channels += 1  # the last channel carries the distance from the origin

    def encode_decode(self, inputs: Tensor, batch_img_metas: list[dict]) -> Tensor:
        """Return log-probabilities and, as the last channel, distances, ``(B, K + 1, H, W)``."""
        kept: list[Tensor] = []
        pixels = self.decode_head.conv_seg
        with pixels.project.register_forward_hook(lambda *call: kept.append(call[-1])):
            logits = super().encode_decode(inputs, batch_img_metas)
        size = logits.shape[2:]
        radius = resize(pixels.logits.radius(kept[0]), size, None, "bilinear", self.align_corners)
        return torch.cat([logits, radius.to(logits.dtype)], 1)

    def postprocess_result(
        self, seg_logits: Tensor, data_samples: list[SegDataSample] | None = None
    ) -> list[SegDataSample]:
        """Return mmseg's predictions, with the maps ``radius`` and ``uncertainty`` added."""
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
