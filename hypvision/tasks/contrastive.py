"""CLIP's contrastive training on images with a caption each, under mmengine's Runner: from scratch,
fully, in part, or with any adapter.

>>> clip = dict(name="ViT-B-16", pretrained="openai")
>>> model = dict(type="CLIPContrast", clip=clip, adapter=dict(type="hyperclip"))
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_gather_object
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from torch import Tensor, nn

import hypvision.data.shape_captions
import hypvision.tasks.contrastive_metrics  # noqa: F401 - registers the metrics
from hypvision.clip.hyperbolic import HyperbolicCLIP
from hypvision.clip.locate import is_repository
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP
from hypvision.clip.spaces import Hyperboloid, space_of
from hypvision.clip.towers import encode_by_length, encode_image, encode_text
from hypvision.data.shapes import TAXONOMY
from hypvision.engine.extensions import PREDICTORS
from hypvision.geometry import lorentz
from hypvision.inference.predictors import zero_shot
from hypvision.io.checks import one_of
from hypvision.io.errors import HypvisionError
from hypvision.losses.contrastive import (
    compositional_entailment,
    contrastive_loss,
    gathered,
    soft_cross_entropy,
)
from hypvision.tasks.classification import per_image


def distinct(texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """The number of each text among the different ones, and where each of these occurs first."""
    number: dict[str, int] = {}
    own = [number.setdefault(text, len(number)) for text in texts]
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        first.setdefault(text, place)
    return own, list(first.values())


def _check_no_words(clip: dict[str, Any]) -> None:
    """Refuse weights whose words would be erased."""
    name = str(clip.get("name", ""))
    own = is_repository(name) and clip.get("load_weights", True)
    source = clip.get("pretrained") or clip.get("pretrained_text_path") or (name if own else None)
    if source:
        raise HypvisionError(
            f"blank_words would erase the words of the weights '{source}': it is for a training "
            "from scratch. Leave it out, or the weights (clip.pretrained, "
            "clip.pretrained_text_path; of a repository or folder load_weights=False)."
        )


@MODELS.register_module()
class CLIPContrast(OpenVocabularyCLIP, BaseModel):
    """CLIP's symmetric contrastive loss (Radford et al., ICML 2021), on its sphere or, for models
    with ``geometry="lorentz"``, MERU's on the hyperboloid with entailment; with boxes HyCoCLIP's.

    Images with the same caption are each other's positives. Negatives come from all processes.
    Where samples say which concepts an image shows and which of them its caption names, a caption
    is true of every image that shows that concept, and the targets are shared evenly among all that
    are true (multi-positive InfoNCE, as in UniCL, Yang et al., CVPR 2022).

    Args:
        clip, adapter, templates: see
            :meth:`~hypvision.clip.open_vocabulary.OpenVocabularyCLIP.build_clip`; no adapter:
            None.
        tune: what trains, see :data:`hypvision.clip.open_vocabulary.TUNING`; default: the adapter,
            without one everything.
        classes: names that test images are compared with, in the order of their labels; anything
            that :func:`hypvision.data.classes.load_classes` takes. None: the drawn shapes. If the
            data have the same names in another order, the model takes that; if it has other names,
            there must be one for each of the data's.
        blank_words: begin the table of words with zeros. Rows of words that occur in no caption
            stay zero, and are left out of a published file. For a training from scratch: an error
            with weights, or where the table is frozen.
        entail: weight of the entailment on a hyperboloid: 0.2 in MERU and HyCoCLIP; 0 for none.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        clip: dict[str, Any],
        adapter: dict[str, Any] | None = None,
        tune: str | None = None,
        classes: str | Path | Sequence[str] | None = None,
        templates: str | Sequence[str] | None = None,
        blank_words: bool = False,
        entail: float = 0.2,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ):
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        self.gives_words = classes is not None  # whether somebody has chosen them for the data
        self.entail = entail
        if blank_words:
            _check_no_words(clip)
        self.build_clip(
            clip,
            adapter,
            tune or ("full" if adapter is None else "adapter"),
            TAXONOMY.classes["shape"] if classes is None else classes,
            templates,
            dense=False,
        )
        if blank_words:
            self._blank_words()

    def _blank_words(self) -> None:
        clip_text: Any = getattr(self.clip, "text", self.clip)
        table = clip_text.token_embedding.weight
        if not table.requires_grad:
            raise HypvisionError(
                "blank_words would leave all texts without words: the table of words begins "
                "with zeros and does not train. Leave it out, or train the text tower: no "
                "adapter, and tune='full' or 'text'."
            )
        nn.init.zeros_(table)

    @property
    def tested_words(self) -> tuple[str, ...]:
        """The names that test images are compared with, for CheckClassesHook."""
        return self.classes

    def forward(
        self,
        inputs: Tensor,
        caption: list[str],
        label: Tensor | None = None,
        concepts: Tensor | None = None,
        level: Tensor | None = None,
        box_inputs: Tensor | None = None,
        box_caption: list[str] | None = None,
        image: list[str] | None = None,
        mode: str = "tensor",
    ) -> Any:
        """mmengine's modes; ``inputs`` uint8 (B, 3, H, W), ``concepts`` int64 (B, K), the numbers
        of the K concepts that an image shows, ``level`` (B,), which of them its caption names;
        ``box_inputs`` (B, 3, H, W), one box cut from each image, and ``box_caption``, its words;
        ``image``, its name, by which samples of one image are known.

        Returns:
            ``"tensor"``: points of the images (:func:`hypvision.clip.spaces.space_of`); ``"loss"``:
            the parts of the loss; ``"predict"``: for each image a dict with ``scores`` over the
            classes and ``label``.
        """
        one_of(("tensor", "loss", "predict"), mode=mode)
        space = space_of(self.clip)
        if mode == "loss":
            if isinstance(self.clip, HyperbolicCLIP):
                self.clip.clamp_scalars()
            boxes = (
                (box_inputs, box_caption)
                if box_inputs is not None and box_caption is not None
                else None
            )
            return self._loss(inputs, caption, concepts, level, boxes)
        images = self._images(inputs)
        if mode == "tensor":
            return images
        if caption is not None and label is None:  # data for retrieval have captions but no labels
            words = encode_text(self.clip, self.tokenizer(list(caption)), normalize=True)
            columns = zip(images, words, caption, image or itertools.repeat(None))
            return [
                dict(image=x, text=y, caption=c, name=name, space=space)
                for x, y, c, name in columns
            ]
        return per_image(
            label, None, scores=space.similarity(images.float(), self.class_points()).cpu()
        )

    def _images(self, inputs: Tensor) -> Tensor:
        return encode_image(self.clip, (inputs.float() - self.mean) / self.std, normalize=True)

    def _loss(
        self,
        inputs: Tensor,
        caption: list[str],
        concepts: Tensor | None,
        level: Tensor | None,
        boxes: tuple[Tensor, list[str]] | None,
    ) -> dict[str, Tensor]:
        space = space_of(self.clip)
        count = len(inputs)
        box_words = boxes[1] if boxes else []
        sentences = sorted({*caption, *box_words})
        encoded = encode_by_length(self.clip, self.tokenizer(sentences), normalize=True)
        # Images come last: their activations, the largest, are freed before gradients of the text
        # tower are allocated.
        points = self._images(torch.cat([inputs, boxes[0]]) if boxes else inputs)
        place = {text: number for number, text in enumerate(sentences)}
        words = encoded[[place[text] for text in [*caption, *box_words]]]
        logit_scale: Any = self.clip.logit_scale
        # bfloat16 rounds a logit of 50 to 0.25
        with torch.autocast(points.device.type, enabled=False):
            scale = logit_scale.float().exp().clamp(max=100)
            points = points.float()
            words = words.float()
            images = gathered(points[:count])
            own, first = _gathered_captions(caption, images.device)
            texts = gathered(words[:count])[first]  # each caption once
            true = _targets(own, len(texts), concepts, level)
            share = 0.25 if boxes else 0.5
            of_image, of_text = contrastive_loss(space.logits(images, texts, scale), true)
            losses = dict(loss_image=share * of_image, loss_text=share * of_text)
            if boxes:
                box_images = gathered(points[count:])
                box_texts = gathered(words[count:])
                # The negatives of a box are whole texts or images, as in the paper.
                of_image = soft_cross_entropy(space.logits(box_images, texts, scale), true)
                of_text = soft_cross_entropy(space.logits(box_texts, images, scale), true[:, own].T)
                losses |= dict(loss_box_image=share * of_image, loss_box_text=share * of_text)
            if isinstance(space, Hyperboloid) and self.entail:
                losses |= self._entailment(points, words, count, space)
        return {name: value.float() for name, value in losses.items()}

    def _entailment(
        self, points: Tensor, words: Tensor, count: int, space: Hyperboloid
    ) -> dict[str, Tensor]:
        """MERU's term, or the four of HyCoCLIP for images and texts with as many of their boxes
        after them."""
        if len(points) == count:
            angle = lorentz.entailment_loss(words, points, space.c).mean()
            return dict(loss_entail=self.entail * angle)
        parts = compositional_entailment(
            points[:count], words[:count], points[count:], words[count:], space.c
        )
        return {f"loss_entail_{name}": 0.5 * self.entail * loss for name, loss in parts.items()}


def _gathered_captions(caption: list[str], device: torch.device) -> tuple[Tensor, Tensor]:
    """:func:`distinct` of the captions of all processes."""
    captions = [text for part in all_gather_object(list(caption)) for text in part]
    own, first = (torch.tensor(rows).to(device, non_blocking=True) for rows in distinct(captions))
    return own, first


def _targets(own: Tensor, count: int, concepts: Tensor | None, level: Tensor | None) -> Tensor:
    """Which of the different texts are true of each image: its own caption (``own``), and those of
    images that name what it shows."""
    true = torch.zeros(len(own), count, device=own.device).scatter_(1, own[:, None], 1.0)
    if concepts is None or level is None:
        return true
    # (B, B): whether image i shows what caption j names.
    concepts = gathered(concepts)
    level = gathered(level)
    named = concepts[:, level] == concepts.gather(1, level[:, None]).T
    return (named.float() @ true).clamp(max=1)


PREDICTORS["CLIPContrast"] = lambda model, config, request: zero_shot(model, request)
