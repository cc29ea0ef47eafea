"""CLIP's contrastive training on images with one caption each, under mmengine's Runner: of all
weights from scratch, of all or some pretrained weights, or of an adapter.

>>> clip = dict(name="ViT-B-16", pretrained="openai")
>>> model = dict(type="CLIPContrast", clip=clip, adapter=dict(type="hyperclip"))
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.dist import all_gather_object, all_reduce, get_rank, get_world_size
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hypvision.tasks.contrastive_metrics  # noqa: F401 - registers the metrics
from hypvision.clip.hyperbolic import HyperbolicCLIP
from hypvision.clip.locate import is_repository
from hypvision.clip.models import CLIPBundle
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP
from hypvision.clip.spaces import space_of
from hypvision.clip.towers import (
    check_images,
    encode_by_length,
    encode_image,
    encode_text,
    logit_scale_of,
    text_part,
)
from hypvision.engine.extensions import PREDICTORS
from hypvision.geometry.numerics import has_float64
from hypvision.inference.predictors import zero_shot
from hypvision.io import NameList, Plain, ensure, few, list_of_texts, one_of, refuse
from hypvision.losses.contrastive import (
    compositional_entailment,
    contrastive_loss,
    entailment,
    gathered,
    gathered_rows,
    soft_cross_entropy,
)
from hypvision.losses.uncha import box_to_whole_contrast, uncertain_entailment
from hypvision.nn.batch_statistics import is_batch_norm

from .classification import per_image


def distinct(texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the number of each text among the different texts, and the position at which each
    different text occurs first."""
    number: dict[str, int] = {}
    own = [number.setdefault(text, len(number)) for text in texts]
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        first.setdefault(text, place)
    return own, list(first.values())


SMALL_TABLE = 2**20
"""Largest table of distances, 8 MiB, that ``chunk`` does not cut into blocks of rows."""
BLOCK = 2**25
"""Most distances of such a block, 256 MiB."""

_RowLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


def _plain(logits: Tensor, points: Tensor, true: Tensor) -> Tensor:
    """Return the cross-entropy of rows of logits; the points of the rows are not used."""
    return soft_cross_entropy(logits, true)


@MODELS.register_module()
class CLIPContrast(OpenVocabularyCLIP, BaseModel):
    """CLIP's symmetric contrastive loss (Radford et al., ICML 2021), on its sphere or, for models
    with ``geometry="lorentz"``, MERU's on the hyperboloid with entailment; with boxes HyCoCLIP's
    loss, with ``box_scales`` UNCHA's, with ``angles`` ATMG's, which has no entailment, and with
    ``geometry="product"`` PHyCLIP's.

    Images with the same caption are each other's positives, as are boxes with the same words in
    UNCHA's contrast of boxes. Each process compares its own rows with the negatives of all
    processes: the contrast is that of the whole batch, and the mean of the processes' gradients is
    its gradient.

    If samples say which concepts an image shows and which of them its caption names, a caption is
    true of every image that shows this concept, and the targets are shared evenly among all true
    captions (multi-positive InfoNCE, as in UniCL, Yang et al., CVPR 2022).

    Args:
        clip, adapter, templates: see
            :meth:`~hypvision.clip.open_vocabulary.OpenVocabularyCLIP.build_clip`; ``adapter`` is
            None for no adapter.
        tune: which parameters train, see :data:`hypvision.clip.open_vocabulary.TUNING`; default:
            those of the adapter, or all parameters if there is no adapter.
        classes: names that test images are compared with, in the order of their labels; anything
            that :func:`hypvision.data.classes.load_classes` takes. None: for data without
            labels. If the data have the same names in another order, the model adopts this order;
            if the data have other names, there must be one name here for each of them.
        blank_words: begin the table of words with zeros. Rows of words that occur in no caption
            stay zero, and are left out of a published file. For a training from scratch: an error
            with weights, or where the table is frozen.
        entail: weight of the entailment on a hyperboloid: 0.2 in all papers; 0 for none.
        chunk: number of images and texts that a tower sees at a time; None: all at once. Only the
            points are kept, and the backward pass computes one chunk after the other again, with
            the same random numbers (GradCache, Gao et al., RepL4NLP 2021): gradients and loss are
            those of the whole batch, but the memory is that of a chunk. A table of logits larger
            than :data:`SMALL_TABLE` is computed in so many rows at a time, or in fewer (see
            :data:`BLOCK`). Towers with batch norms cannot be trained in chunks.
    """

    mean: Tensor
    std: Tensor

    #: The losses of equal logits in the last batch, by name, for
    #: :func:`~hypvision.engine.hooks.stop.chance_of`.
    chance: Mapping[str, float] = {}

    def __init__(
        self,
        clip: Plain | CLIPBundle,
        adapter: Plain | None = None,
        tune: str | None = None,
        classes: NameList | None = None,
        templates: str | Sequence[str] | None = None,
        blank_words: bool = False,
        entail: float = 0.2,
        chunk: int | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ):
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        tune = tune or ("full" if adapter is None else "adapter")
        self.gives_words = classes is not None  # data may then have other names
        classes = ("object",) if classes is None else classes  # some word has to be embedded
        self.entail = entail
        self.chunk = chunk
        source = _weights_of(clip)
        refuse(
            (
                blank_words and source,
                f"blank_words would erase the words of the weights '{source}': it is for a "
                "training from scratch. Leave out blank_words, or leave out the weights "
                "(clip.pretrained, clip.pretrained_text_path; of a repository or folder set "
                "load_weights=False).",
            )
        )
        self.build_clip(clip, adapter, tune, classes, templates, dense=False)
        self.family = getattr(self.clip, "family", "clip")
        normed = any(map(is_batch_norm, self.clip.modules()))
        refuse(
            (chunk is not None and chunk < 1, f"chunk must be 1 or more, got {chunk}."),
            (
                chunk is not None and normed,
                "chunk would change what batch norms see: the images of a chunk, twice. Leave out "
                "chunk, or take a model without batch norms, such as a ViT.",
            ),
        )
        if blank_words:
            table = text_part(self.clip).token_embedding.weight
            refuse(
                (
                    not table.requires_grad,
                    "blank_words would leave all texts without words: the table of words begins "
                    "with zeros and does not train. Leave out blank_words, or train the text "
                    "tower: no adapter, and tune='full' or 'text'.",
                )
            )
            nn.init.zeros_(table)

    @property
    def tested_words(self) -> tuple[str, ...]:
        """Return the names that test images are compared with; ``CheckClassesHook`` reads them."""
        return self.classes

    def forward(
        self,
        inputs: Tensor,
        caption: list[str],
        label: Tensor | None = None,
        concepts: Tensor | None = None,
        level: Tensor | None = None,
        box_inputs: Tensor | None = None,
        box_caption: list[Any] | None = None,
        box_count: Tensor | None = None,
        image: list[str] | None = None,
        mode: str = "tensor",
    ) -> Any:
        """Compute what mmengine's ``mode`` asks for.

        Args:
            inputs: uint8 (B, 3, H, W).
            caption: one caption for each image.
            label: (B,), classes of test images.
            concepts: int64 (B, K), the numbers of the K concepts that each image shows.
            level: (B,), the position in ``concepts`` of the one that the caption names.
            box_inputs: (B, 3, H, W), one box cut from each image; for UNCHA (B, N, 3, H, W).
            box_caption: the words of each box; for UNCHA N lists of B words.
            box_count: (B,), for UNCHA how many of the N boxes of each image count.
            image: name of each image, by which samples of the same image are recognised.
            mode: ``"tensor"``, ``"loss"`` or ``"predict"``.

        Returns:
            ``"tensor"``: points of the images (:func:`hypvision.clip.spaces.space_of`); ``"loss"``:
            the parts of the loss by name; ``"predict"``: for each image a dict with ``scores`` over
            the classes and ``label``, or with its points and caption where the data has no labels.
        """
        one_of(("tensor", "loss", "predict"), mode=mode)
        space = space_of(self.clip)
        if mode == "loss":
            if isinstance(self.clip, HyperbolicCLIP):
                self.clip.clamp_scalars()
            check_images(self.clip, inputs, "Set input_size={} of the data's transform.")
            _check_captions(inputs, caption, box_inputs, box_caption)
            boxes = _boxes(box_inputs, box_caption, box_count)
            self._check_boxes(boxes)
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
            label, None, scores=space.scores(images.float(), self.class_points()).cpu()
        )

    def _check_boxes(self, boxes: _Boxes | None) -> None:
        """Raise an error if a batch has no boxes but the model's loss needs them, or several boxes
        an image but the loss takes one."""
        uncha = self.family == "uncha"
        places = 0 if boxes is None else boxes.most
        refuse(
            (
                uncha and not places,
                "UNCHA's loss needs boxes, but the data have none. Give the data set boxes=5.",
            ),
            (
                not uncha and places > 1,
                "Several boxes of an image are for UNCHA's loss. Give the data set boxes=True, or "
                "the model clip=dict(name='uncha-...').",
            ),
            (
                places and space_of(self.clip).sided,
                "ATMG's loss takes no boxes. Leave out boxes of the data set.",
            ),
        )

    def _images(self, inputs: Tensor) -> Tensor:
        return encode_image(self.clip, (inputs.float() - self.mean) / self.std, normalize=True)

    def _texts(self, tokens: Tensor) -> Tensor:
        return encode_by_length(self.clip, tokens, normalize=True)

    def _encode(self, inputs: Tensor, caption: list[str], boxes: _Boxes | None) -> _Points:
        """Return the points of a batch, in float32."""
        words = [] if boxes is None else boxes.words
        sentences = sorted({*caption, *words})
        encoded = torch.cat(
            _in_parts(self._texts, self.chunk, self.mean, self.tokenizer(sentences))
        )
        # Images come last: their activations, the largest, are freed before gradients of the text
        # tower are allocated.
        pixels = inputs if boxes is None else torch.cat([inputs, boxes.inputs])
        images = torch.cat(_in_parts(self._images, self.chunk, self.mean, pixels))
        place = {text: number for number, text in enumerate(sentences)}
        texts = encoded[[place[text] for text in [*caption, *words]]]
        count = len(inputs)
        images = images.float()
        texts = texts.float()
        return _Points(images[:count], texts[:count], images[count:], texts[count:])

    def _loss(
        self,
        inputs: Tensor,
        caption: list[str],
        concepts: Tensor | None,
        level: Tensor | None,
        boxes: _Boxes | None,
    ) -> dict[str, Tensor]:
        points = self._encode(inputs, caption, boxes)
        # Without autocast: bfloat16 would round a logit of 50 to a multiple of 0.25.
        with torch.autocast(points.image.device.type, enabled=False):
            wholes = _gather_wholes(points, caption, concepts, level)
            losses = self._contrast(points, wholes, boxes)
            losses |= self._entailment(points, boxes)
        return {f"loss_{name}": value.float() for name, value in losses.items()}

    def _contrast(
        self, points: _Points, wholes: _Wholes, boxes: _Boxes | None
    ) -> dict[str, Tensor]:
        """Return CLIP's losses of whole images and texts and the contrastive losses of boxes, as
        means over the whole batch."""
        scale = _exp(logit_scale_of(self.clip))
        images = _Rows(points.image, wholes.numbers, len(wholes.images), wholes.of_images)
        texts = _Rows(
            wholes.texts[wholes.first], wholes.first, len(wholes.texts), wholes.of_texts, "text"
        )
        found = self._both_ways(images, texts, wholes.images, wholes.texts, scale)
        losses = dict(zip(("image", "text"), found))
        share = 0.5
        if self.family == "uncha":
            assert boxes is not None
            losses |= self._of_parts(points, wholes, boxes)
        elif boxes is not None:
            share = 0.25
            # The negatives of a box are whole texts or images, as in the paper.
            box_images = images._replace(points=points.box_image)
            own = wholes.own[wholes.numbers]
            box_texts = _Rows(points.box_text, own, len(wholes.images), wholes.of_texts)
            losses["box_image"] = self._mean(box_images, wholes.texts, scale)
            losses["box_text"] = self._mean(box_texts, wholes.images, scale)
        # Equal logits among so many columns: what SignsHook compares the loss with.
        columns = dict(image=len(wholes.texts), text=len(wholes.images))
        self.chance = {f"loss_{name}": share * math.log(n) for name, n in columns.items()}
        return _of_all({name: share * value for name, value in losses.items()})

    def _both_ways(
        self, images: _Rows, texts: _Rows, all_images: Tensor, all_texts: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the losses of images among texts and of texts among images; both come from one
        table of logits if all rows are in this process."""
        if get_world_size() > 1 or space_of(self.clip).sided:
            return self._mean(images, all_texts, scale), self._mean(texts, all_images, scale)
        size = self._block(images, texts.points)
        if size is not None:
            return self._by_blocks(images, texts, scale, size)
        logits = space_of(self.clip).logits(images.points, texts.points, scale)
        return contrastive_loss(logits, images.true(images.numbers))

    def _block(self, rows: _Rows, others: Tensor) -> int | None:
        """Return how many rows of a table of logits are computed at a time; None: all at once."""
        width = len(others) * space_of(self.clip).factors
        if self.chunk is None or len(rows.points) * width <= SMALL_TABLE:
            return None
        return min(self.chunk, max(1, BLOCK // width))

    def _by_blocks(
        self, images: _Rows, texts: _Rows, scale: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        """Return what :meth:`_both_ways` does, from blocks of ``size`` rows of the table, of which
        only sums of rows and columns are kept."""
        space = space_of(self.clip)
        blocks = images.numbers.split(size)
        named = torch.stack([images.true(numbers).sum(0) for numbers in blocks]).sum(0)

        def of_block(points: Tensor, numbers: Tensor) -> Tensor:
            logits = space.logits(points, texts.points, scale)
            if has_float64(logits):  # float32 would leave 1e-5 of a sum of exponentials
                logits = logits.double()
            true = images.true(numbers)
            rows = len(points) * soft_cross_entropy(logits, true)
            own = (logits * (true / named)).sum()
            return torch.cat([logits.logsumexp(0), torch.stack([rows, own])])

        found = torch.stack(_in_parts(of_block, size, self.mean, images.points, images.numbers))
        rows, own = found[:, -2:].sum(0)
        columns = found[:, :-2].logsumexp(0).sum()
        return rows / images.every, (columns - own) / texts.every

    def _mean(self, rows: _Rows, others: Tensor, scale: Tensor, loss: _RowLoss = _plain) -> Tensor:
        """Return the mean loss of the rows of all processes against ``others`` ``(N, d)``: each
        process computes its own rows, and the mean over the processes is the mean over all
        rows."""
        space = space_of(self.clip)
        table = space.text_logits if rows.modality == "text" else space.logits

        def summed(points: Tensor, numbers: Tensor) -> Tensor:
            logits = table(points, others, scale)
            return len(points) * loss(logits, points, rows.true(numbers))

        size = self._block(rows, others)
        parts = _in_parts(summed, size, self.mean, rows.points, rows.numbers)
        return torch.stack(parts).sum() * (get_world_size() / max(1, rows.every))

    def _of_parts(self, points: _Points, wholes: _Wholes, boxes: _Boxes) -> dict[str, Tensor]:
        """Return UNCHA's contrastive losses of boxes with their words, and of both with the whole
        texts and images: means over the boxes of all processes, in the official code over those of
        each. So the gradients are those of one process with the whole batch."""
        clip: Any = self.clip
        size = boxes.most * len(points.image)
        parts = all_gather_object((boxes.places, boxes.words))
        every = [size * rank + place for rank, (places, _) in enumerate(parts) for place in places]
        words = [word for _, some in parts for word in some]
        before = sum(len(places) for places, _ in parts[: get_rank()])
        here = [*range(before, before + len(boxes.places))]
        lists = (boxes.places, every, distinct(words)[0], here)
        own, rows, same, numbers = (_on(points.image, values) for values in lists)
        all_images = gathered_rows(points.box_image, own, size, rows)
        all_texts = gathered_rows(points.box_text, own, size, rows)
        owner = rows // boxes.most

        def alike(numbers: Tensor) -> Tensor:
            return same[numbers, None] == same

        def itself(numbers: Tensor) -> Tensor:
            return numbers[:, None] == torch.arange(len(same), device=same.device)

        images = _Rows(points.box_image, numbers, len(same), alike)
        texts = _Rows(points.box_text, numbers, len(same), alike)
        local = _exp(clip.local_logit_scale)
        found = self._both_ways(images, texts, all_images, all_texts, local)
        scale = _exp(clip.global_local_logit_scale)
        images = images._replace(true=itself)
        texts = texts._replace(true=itself)
        whole_texts = wholes.texts[wholes.own[owner]]
        whole_images = wholes.images[owner]
        return dict(
            box_image=found[0],
            box_text=found[1],
            box_image_whole=self._mean(images, whole_texts, scale, box_to_whole_contrast),
            box_text_whole=self._mean(texts, whole_images, scale, box_to_whole_contrast),
        )

    def _entailment(self, points: _Points, boxes: _Boxes | None) -> dict[str, Tensor]:
        """Return the weighted entailment losses of this process's pairs; none on the sphere."""
        space: Any = space_of(self.clip)
        if self.family == "clip" or space.sided or not self.entail:
            return {}
        if boxes is None:
            # MERU's factor is 1; PHyCLIP's code uses the factor of boxes without boxes, too.
            factor = 0.7 if self.family == "phyclip" else 1.0
            outside = entailment(points.text, points.image, space.manifold, factor)
            return dict(entail=self.entail * outside.mean())
        weight = self.entail
        if self.family == "uncha":
            owner = _on(points.image, boxes.places) // boxes.most
            parts = uncertain_entailment(*points, owner, space.manifold)
        else:
            weight = 0.5 * weight
            parts = compositional_entailment(*points, space.manifold)
        return {f"entail_{name}": weight * value for name, value in parts.items()}


def _check_captions(
    inputs: Tensor,
    caption: Sequence[str],
    box_inputs: Tensor | None,
    box_caption: Sequence[Any] | None,
) -> None:
    """Raise an error unless each image has a caption, and boxes come with their words."""
    list_of_texts(caption=caption)
    lonely = (box_inputs is None) != (box_caption is None)
    count = len(inputs) if box_inputs is None else len(box_inputs)
    refuse(
        (
            len(caption) != len(inputs),
            f"There are {len(inputs)} images and {len(caption)} captions. Give one caption for "
            "each image, and leave out images without one.",
        ),
        (lonely, "Boxes need their words: give box_inputs and box_caption, or none of them."),
        (
            count != len(inputs),
            f"There are {len(inputs)} images and boxes of {count}. Give boxes of each image.",
        ),
    )


def _weights_of(clip: Any) -> Any:
    """Return the setting of a CLIP's arguments that names its weights; a false value for random
    weights."""
    if not isinstance(clip, dict):
        return None
    name = str(clip.get("name", ""))
    own = name if is_repository(name) and clip.get("load_weights", True) else None
    return clip.get("pretrained") or clip.get("pretrained_text_path") or own


class _Boxes(NamedTuple):
    """M boxes of B images: ``inputs`` (M, 3, H, W), the ``words`` of each box, and its number in
    ``places`` among the B times ``most`` places for boxes."""

    inputs: Tensor
    words: list[str]
    places: list[int]
    most: int


class _Points(NamedTuple):
    """Points (B, d) of a batch's whole images and texts, and points (M, d) of the images and the
    words of its boxes."""

    image: Tensor
    text: Tensor
    box_image: Tensor
    box_text: Tensor


class _Wholes(NamedTuple):
    """The whole images (B, d) of all processes and their different texts (T, d).

    ``own`` (B,) is the number of each image's text, ``numbers`` those of this process's images, and
    ``first`` those of the texts whose first occurrence is in this process; ``shown`` (B, T) says
    whether a text is true of an image, or is None if samples have no concepts."""

    images: Tensor
    texts: Tensor
    own: Tensor
    numbers: Tensor
    first: Tensor
    shown: Tensor | None

    def of_images(self, numbers: Tensor) -> Tensor:
        """Return which texts are true of the images with these numbers, bool ``(n, T)``."""
        if self.shown is not None:
            return self.shown[numbers]
        return self.own[numbers, None] == torch.arange(len(self.texts), device=self.own.device)

    def of_texts(self, numbers: Tensor) -> Tensor:
        """Return of which images the texts with these numbers are true, bool ``(n, B)``."""
        return self.own == numbers[:, None] if self.shown is None else self.shown.T[numbers]


class _Rows(NamedTuple):
    """The rows of a table of logits that belong to this process: their ``points`` (n, d), their
    ``modality``, and their ``numbers`` among the ``every`` rows of all processes; ``true`` takes
    ``numbers`` and marks the right columns of each row."""

    points: Tensor
    numbers: Tensor
    every: int
    true: Callable[[Tensor], Tensor]
    modality: str = "image"


def _in_parts(
    function: Callable[..., Tensor], size: int | None, device: Tensor, *columns: Tensor
) -> list[Tensor]:
    """Return the results of a function of all rows, or of each ``size`` rows; of a part only the
    result is kept for the backward pass.

    ``device`` is any tensor on the device of the work: checkpoint keeps the random state of a GPU
    only if an argument is on the GPU, and tokens are on the host."""
    if size is None:
        return [function(*columns)]

    def of_part(_: Tensor, *part: Tensor) -> Tensor:
        return function(*part)

    parts = zip(*(column.split(size) for column in columns))
    return [checkpoint(of_part, device, *part, use_reentrant=False) for part in parts]


def _exp(logarithm: Tensor) -> Tensor:
    """Return a scale of logits from its logarithm, at most 100, as in CLIP."""
    return logarithm.float().exp().clamp(max=100)


def _boxes(
    inputs: Tensor | None, words: Sequence[Any] | None, count: Tensor | None
) -> _Boxes | None:
    """Return the boxes of a batch: one of each image, or with ``count`` (B,) the first ``count`` of
    the N boxes of each image; None without boxes."""
    if inputs is None or words is None:
        return None
    if count is None:
        list_of_texts(box_caption=words)
        return _Boxes(inputs, list(words), [*range(len(inputs))], 1)
    most = inputs.shape[1]
    counts = count.tolist()
    ensure(
        0 <= min(counts) <= max(counts) <= most,
        f"box_count must be from 0 to {most}, the number of boxes in box_inputs, got {counts}.",
    )
    places = [
        image * most + number for image, found in enumerate(counts) for number in range(found)
    ]
    # The loader has put the first words of all images together, then the second words, and so on.
    told = [words[place % most][place // most] for place in places]
    return _Boxes(inputs.flatten(0, 1)[_on(inputs, places)], told, places, most)


def _on(x: Tensor, numbers: list[int]) -> Tensor:
    """Return numbers as an int64 tensor on the device of ``x``."""
    return torch.tensor(numbers, dtype=torch.int64).to(x.device, non_blocking=True)


def _of_all(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the means of losses over all processes, with the gradients of this process's own
    losses."""
    if get_world_size() == 1:
        return losses
    values = torch.stack([*losses.values()])
    own = values.detach()
    mean = own.clone()
    all_reduce(mean, op="mean")
    return dict(zip(losses, values + (mean - own)))


def _gather_wholes(
    points: _Points, caption: list[str], concepts: Tensor | None, level: Tensor | None
) -> _Wholes:
    """Return the whole images and texts of all processes."""
    parts = all_gather_object(list(caption))
    sizes = sorted({f"{len(part)}" for part in parts})
    # Gathering points of other shapes than expected would end the processes without a word.
    ensure(
        len(sizes) == 1,
        f"The processes have batches of different sizes, {few(sizes)}: their points cannot be "
        "gathered. Give the loaders drop_last=True.",
    )
    images = gathered(points.image)
    texts = gathered(points.text)
    captions = [text for part in parts for text in part]
    here = range(get_rank() * len(caption), (get_rank() + 1) * len(caption))
    texts_of_images, places = distinct(captions)
    begun = [text for text, place in enumerate(places) if place in here]
    lists = (texts_of_images, places, [*here], begun)
    own, first, numbers, ours = (_on(images, values) for values in lists)
    texts = texts[first]  # keeps each caption once
    shown = None
    if concepts is not None and level is not None:
        # named (B, B) says whether image i shows what caption j names.
        concepts = gathered(concepts)
        level = gathered(level)
        named = concepts[:, level] == concepts.gather(1, level[:, None]).T
        shown = images.new_zeros(len(images), len(texts)).index_add_(1, own, named.float()) > 0
    return _Wholes(images, texts, own, numbers, ours, shown)


PREDICTORS["CLIPContrast"] = lambda model, config, request: zero_shot(model, request)
