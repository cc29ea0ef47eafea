"""Open-vocabulary segmentation of any image by any class names, with CLIP, HyperCLIP's adapter and
CAT-Seg's head.

>>> clip = dict(name="ViT-B-16", pretrained="openai")
>>> model = OpenVocabSegmenter(clip=clip, classes=["cat", "grass"])
>>> model.predict([image])[0]  # (H, W) numbers of classes

:class:`SegmenterBase` is the base of the plain module here and of the model for mmseg.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.checkpoints.types import StateDict, Weights
from hypvision.clip.models import CLIPBundle
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP
from hypvision.clip.towers import encode_dense, patch_size, vision_tower
from hypvision.io import HypvisionError, Plain, at_least, one_of, refuse, require_finite

from .catseg import CATSegHead
from .official import segmenter_names


def _resize(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(x, (size[0], size[1]), mode="bilinear", align_corners=False)


def segmentation_loss(
    logits: Tensor, labels: Tensor, ignore: int = 255, mask_ignored: bool = False
) -> Tensor:
    """Return the mean binary cross-entropy, over pixels and classes, of logits ``(B, T, h, w)``,
    which are resized, and class numbers ``(B, H, W)``, without one-hot targets. Pixels with the
    label ``ignore`` are negative for every class, as in the official code; with ``mask_ignored``
    they are left out."""
    if labels.dim() != 3 or len(labels) != len(logits):
        raise HypvisionError(
            f"The label maps have the shape {tuple(labels.shape)}. Expected: "
            f"({len(logits)}, H, W), the number of a class for each pixel of each image."
        )
    valid = labels != ignore
    count = logits.shape[1]
    if 0 <= ignore < count:
        raise HypvisionError(
            f"The label {ignore} stands for ignored pixels and for one of the {count} classes. "
            f"Give another number, such as ignore={max(count, 65535)}, and label maps with it."
        )
    if valid.any():
        low, high = labels[valid].aminmax()
        if low < 0 or high >= count:
            wrong = int(low if low < 0 else high)
            raise HypvisionError(
                f"A label map has the label {wrong}, but there are {count} classes (0 to "
                f"{count - 1}) and {ignore} for ignored pixels. Correct the label maps, the class "
                "list, or the data set's mapping."
            )
    logits = _resize(logits.float(), labels.shape[-2:])
    target = torch.where(valid, labels, 0)[:, None].long()
    negative = F.softplus(logits)
    positive = logits.gather(1, target)[:, 0] * valid
    if mask_ignored:
        return ((negative * valid[:, None]).sum() - positive.sum()) / (
            valid.sum().clamp(min=1) * count
        )
    return (negative.sum() - positive.sum()) / logits.numel()


class SimilarityHead(nn.Module):
    """A head of two parameters: a logit is the cosine of a patch and a class, times a learned
    scale, plus a learned bias.

    This head is our own. It suits small data and comparisons of adapters, because nearly all
    learning happens in CLIP.
    """

    checkpointing = False

    def __init__(self, scale: float = 20.0, bias: float = -10.0):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, features: Tensor, text: Tensor, maps: tuple[Tensor, ...] = ()) -> Tensor:
        """Return logits ``(B, T, h, w)`` for ``features`` ``(B, E, h, w)`` and ``text`` ``(T, P,
        E)``."""
        mean = F.normalize(text.float().mean(1), dim=-1)
        cosine = torch.einsum("behw,te->bthw", F.normalize(features.float(), dim=1), mean)
        return self.log_scale.exp() * cosine + self.bias


class SegmenterBase(OpenVocabularyCLIP):
    """A mix-in for models: CLIP with a segmentation head and inference; :class:`OpenVocabSegmenter`
    explains the arguments."""

    head: CATSegHead | SimilarityHead

    def build(
        self,
        clip: Plain | CLIPBundle | nn.Module | None = None,
        head: Plain | None = None,
        resolution: int = 384,
        crop: int = 384,
        slide: int = 640,
        overlap: float = 0.333,
        inference: str = "slide",
        squash: bool = True,
        hooks: tuple[int, int] | None = None,
        upsample: tuple[int, int] = (256, 128),
        checkpointing: bool = False,
        mask_ignored: bool = False,
        official_whole_padding: bool = False,
        **options: Any,
    ) -> None:
        """Make CLIP and the head; constructors call this once. Further options are those of
        ``build_clip``."""
        self.build_clip(clip, **options)
        one_of(("slide", "whole"), inference=inference)
        at_least(1, integer=True, resolution=resolution, crop=crop, slide=slide)
        tower = vision_tower(self.clip)
        depth = len(tower.blocks)
        thirds = (max(0, depth // 3 - 1), max(0, 2 * depth // 3 - 1))
        self.hooks = thirds if hooks is None else tuple(hooks)
        rows, columns = patch_size(self.clip)
        good = math.lcm(rows, columns)
        pair = "give two numbers, for the shallower map and the deeper."
        refuse(
            (
                not 0 <= overlap < 1,
                f"overlap is a share of the window, from 0 to below 1, got {overlap}.",
            ),
            (
                resolution % rows or resolution % columns,
                f"resolution={resolution} is not a multiple of the patch of {rows} x {columns} "
                f"pixels. Use {max(good, resolution // good * good)}.",
            ),
            (len(self.hooks) != 2, f"hooks={self.hooks}: {pair}"),
            (
                len(upsample) != 2 or any(upsample) != all(upsample),
                f"upsample={tuple(upsample)}: {pair}",
            ),
        )
        of_head = dict(head or {})
        kind = of_head.pop("type", "catseg")
        one_of(("catseg", "similarity"), head=kind)
        guided = any(upsample) and kind == "catseg"
        self.upsample1 = nn.ConvTranspose2d(tower.width, upsample[0], 2, 2) if guided else None
        self.upsample2 = nn.ConvTranspose2d(tower.width, upsample[1], 4, 4) if guided else None
        if kind == "similarity":
            self.head = SimilarityHead(**of_head)
        else:
            of_head.setdefault("decoder_in", tuple(upsample) if guided else (0, 0))
            self.head = CATSegHead(self.embedding_size, len(self.templates), **of_head)
        self.head.checkpointing = checkpointing
        self.resolution = resolution
        self.crop = crop
        self.slide = slide
        self.overlap = overlap
        self.inference = inference
        self.squash = squash
        self.checkpointing = checkpointing
        self.mask_ignored = mask_ignored
        self.official_whole_padding = official_whole_padding

    # Logits, loss and label maps of images

    def logits(self, images: Tensor, classes: Sequence[str] | None = None) -> Tensor:
        """Return logits ``(B, T, 4 h, 4 w)`` of RGB images ``(B, 3, H, W)``, 0 to 255, which are
        resized to the model's resolution."""
        self.check_size(images.shape[-2:])
        return self._normalised_logits(
            (images.float() - self.mean) / self.std, self.encode_classes(classes)
        )

    def check_size(self, size: Sequence[int], name: str = "An image") -> None:
        """Raise an error if a side of ``size`` (height, width) is shorter than a patch."""
        rows, columns = patch_size(self.clip)
        if size[0] < rows or size[1] < columns:
            raise HypvisionError(
                f"{name} has {size[0]} x {size[1]} pixels, less than one patch of {rows} x "
                f"{columns}. Enlarge it."
            )

    def _normalised_logits(self, x: Tensor, text: Tensor) -> Tensor:
        size = (self.resolution, self.resolution)
        if x.shape[-2:] != size:
            x = _resize(x, size)
        guided = self.upsample1 is not None and self.upsample2 is not None
        features, maps, _ = encode_dense(
            self.clip, x, self.hooks if guided else (), self.checkpointing
        )
        if self.upsample1 is None or self.upsample2 is None:
            return self.head(features, text)
        return self.head(features, text, (self.upsample1(maps[0]), self.upsample2(maps[1])))

    def segmentation_loss(self, images: Tensor, labels: Tensor, ignore: int = 255) -> Tensor:
        """Return the loss of RGB images ``(B, 3, H, W)``, 0 to 255, and labels ``(B, H, W)``."""
        return segmentation_loss(self.logits(images), labels, ignore, self.mask_ignored)

    def checkpoint_filter(self, weights: Weights) -> StateDict:
        """Return weights by this model's names; official checkpoints and those of a CLIP model
        alone are accepted too."""
        return super().checkpoint_filter(segmenter_names(weights))

    @torch.no_grad()
    def predict_labels(
        self,
        images: Sequence[Tensor],
        sizes: Sequence[tuple[int, int]] | None = None,
        scores: bool = False,
        names: Sequence[str] | None = None,
    ) -> list[Tensor] | list[tuple[Tensor, Tensor]]:
        """Return a label map, int64 ``(H, W)``, for each RGB image ``(3, H, W)``, 0 to 255, of any
        size; with ``scores`` pairs of label map and probabilities ``(T, H, W)``. ``sizes`` are the
        (height, width) of the results (None: those of the images); ``names`` are the images' names
        in messages."""
        text = self.encode_classes()
        found: list[Any] = []
        for number, image in enumerate(images):
            self.check_size(image.shape[-2:])
            image = image.to(self.mean.device).float()
            size = image.shape[-2:] if sizes is None else sizes[number]
            chunks = (
                self._slide(image, text) if self.inference == "slide" else self._whole(image, text)
            )
            best = image.new_full(tuple(size), -math.inf)
            label = torch.zeros_like(best, dtype=torch.long)
            kept = []
            first = 0
            for part in chunks:  # resizing a few classes at a time bounds the memory
                part = _resize(part[None], size)[0]
                value, index = part.max(0)
                label = torch.where(value > best, index + first, label)
                best = torch.maximum(best, value)
                first += len(part)
                if scores:
                    kept.append(part)
            name = str(number) if names is None else f"'{names[number]}'"
            require_finite(best, f"A probability for the image {name}")
            found.append((label, torch.cat(kept)) if scores else label)
        return found

    def _windows(self, size: tuple[int, int]) -> list[tuple[int, int]]:
        stride = int(self.crop * (1 - self.overlap))
        starts = []
        for side in size:
            last = max(0, side - self.crop)
            found = list(range(0, last + 1, stride))
            if found[-1] < last:
                found.append(last)
            starts.append(found)
        return [(top, left) for top in starts[0] for left in starts[1]]

    def _slide(self, image: Tensor, text: Tensor) -> Iterator[Tensor]:
        """Yield probabilities ``(t, h, w)`` of a few classes at a time: means over windows of the
        enlarged image, averaged with those of the whole image."""
        height = self.slide
        width = self.slide
        if not self.squash:
            scale = self.slide / min(image.shape[-2:])
            height, width = (max(self.slide, round(scale * side)) for side in image.shape[-2:])
        size = (height, width)
        crop = (min(self.crop, height), min(self.crop, width))
        large = _resize(image[None], size)
        places = self._windows(size)
        windows = [large[..., top : top + crop[0], left : left + crop[1]] for top, left in places]
        batch = (torch.cat([*windows, _resize(image[None], crop)]) - self.mean) / self.std
        # Processing five windows at a time bounds the memory of the head.
        logits = torch.cat([self._normalised_logits(part, text) for part in batch.split(5)])
        weight = large.new_zeros(size)
        for top, left in places:
            weight[top : top + crop[0], left : left + crop[1]] += 1
        for part in logits.split(32, dim=1):
            # The logits have the size of the model's grid, so they are resized to the crop.
            part = _resize(part.float(), crop).sigmoid()
            total = part.new_zeros(part.shape[1], *size)
            for (top, left), window in zip(places, part):
                total[:, top : top + crop[0], left : left + crop[1]] += window
            yield (total / weight + _resize(part[-1:], size)[0]) / 2

    def _whole(self, image: Tensor, text: Tensor) -> Iterator[Tensor]:
        """Yield probabilities ``(t, h, w)`` of a few classes at a time, from the whole image at
        once."""
        height, width = image.shape[-2:]
        padded = F.pad((image[None] - self.mean) / self.std, (0, -width % 32, 0, -height % 32))
        for part in self._normalised_logits(padded, text).split(32, dim=1):
            part = part.float().sigmoid()
            # The official code crops before it resizes, so its crop does not remove the padding.
            if not self.official_whole_padding:
                part = _resize(part, padded.shape[-2:])
            yield part[0, :, :height, :width]


class OpenVocabSegmenter(SegmenterBase):
    """CLIP with an adapter and a segmentation head, as a plain PyTorch module.

    Args:
        clip, adapter, tune, classes, templates, synonyms, tokenizer, mean, std: see
            :meth:`~hypvision.clip.open_vocabulary.OpenVocabularyCLIP.build_clip`.
        head: options of :class:`~hypvision.clip.segmentation.catseg.CATSegHead`; or
            ``dict(type="similarity")``, a head of two parameters (:class:`SimilarityHead`).
        resolution: side of CLIP's input: 384 for patches of 16, 336 for patches of 14 (a grid of 24
            x 24 for both).
        crop, slide, overlap: sliding inference: windows of ``crop`` pixels, which overlap by the
            share ``overlap``, on the image resized to ``slide`` pixels.
        inference: ``"slide"`` (the mean over windows and the whole image) or ``"whole"``.
        squash: whether sliding makes the image square, as in the official code, or keeps its shape.
        hooks: numbers of the two blocks whose maps guide the decoder; None: those at a third and at
            two thirds of the depth.
        upsample: channels of the two guidance maps, the shallower first; zeros: no guidance maps.
        checkpointing: save memory by computing activations again in the backward pass, which costs
            time.
        mask_ignored: leave ignored pixels out of the loss; in the official code they are negative
            for every class.
        official_whole_padding: with ``"whole"``: keep the padding of the image, as the official
            code does.
    """

    def __init__(self, clip: Plain | CLIPBundle | nn.Module | None = None, **options: Any):
        super().__init__()
        self.build(clip, **options)

    def forward(self, images: Tensor, labels: Tensor | None = None, ignore: int = 255) -> Tensor:
        """Return logits ``(B, T, h, w)``, or the loss if labels are given; ``ignore`` is that of
        :func:`segmentation_loss`."""
        return (
            self.logits(images)
            if labels is None
            else self.segmentation_loss(images, labels, ignore)
        )

    def predict(self, images: Sequence[Tensor], **options: Any) -> list:
        """Return :meth:`predict_labels` of images in evaluation mode."""
        training = self.training
        self.eval()
        try:
            return self.predict_labels(images, **options)
        finally:
            self.train(training)
