"""Radial tuning (Alper and Averbuch-Elor, 2024): CLIP's text tower learns the order of chains,
general to specific.

>>> model = dict(type="RadialTuning", clip=dict(name="ViT-B-32", pretrained="openai"))

The published training runs a second, frozen text tower and encodes the empty text separately at
every step, with all texts padded to the same length. Here the frozen embeddings are computed once
and kept on disk (:class:`FrozenTextsHook`); a step encodes each distinct text of its batch once,
together with the root, and without padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS, METRICS, MODELS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn import functional as F

import hypvision.data.text_chains  # noqa: F401 - registers the data
from hypvision.checkpoints.language import Language
from hypvision.clip.features import FrozenFeatures, frozen_images, frozen_texts
from hypvision.clip.models import CLIPBundle, create_clip
from hypvision.clip.open_vocabulary import set_tuning
from hypvision.clip.radial.metrics import kendall_tau
from hypvision.clip.radial.texts import distinct, embed_texts
from hypvision.clip.spaces import Sphere, space_of
from hypvision.clip.towers import encode_image, encode_packed, find_towers
from hypvision.data.preprocessing import set_preprocessing
from hypvision.engine.extensions import PREDICTORS
from hypvision.engine.hooks import network_of
from hypvision.engine.metrics import Metric
from hypvision.io import HypvisionError, Metrics, Plain, StrPath, ensure, list_of_texts, one_of
from hypvision.losses.radial import (
    EntailmentConeLoss,
    MERUEntailmentLoss,
    RadialLoss,
    chain_triples,
)

_LOSSES = dict(
    RadialLoss=RadialLoss,
    EntailmentConeLoss=EntailmentConeLoss,
    MERUEntailmentLoss=MERUEntailmentLoss,
)
_TUNED = dict(text="text", image="image", both="full")  # model.tune to a mode of set_tuning
_GIVE_IMAGES = "Set train_dataloader.dataset.images to their folder, or model.tune='text'."
_ROOTS = ("text", "frozen", "parameter")


def _check_clip(clip: nn.Module) -> None:
    """Raise an error for a CLIP on a hyperboloid, or without a text transformer."""
    if not isinstance(space_of(clip), Sphere):
        raise HypvisionError(
            "Radial tuning measures angles on CLIP's sphere, but this CLIP embeds on a "
            "hyperboloid, as MERU and HyCoCLIP do. Take a CLIP such as ViT-B-32."
        )
    ensure(
        "text" in [tower.modality for tower in find_towers(clip)],
        f"The model ({type(clip).__name__}) has no text transformer to tune. Take a CLIP such "
        "as ViT-B-32.",
    )


def _check_levels(positive: Sequence[Sequence[str]], negative: Sequence[Sequence[str]]) -> None:
    """Raise an error unless both are lists of equally many levels with a text of each chain."""
    every = (*positive, *negative)
    for level in every:
        list_of_texts(**{"A level of the chains": level})
    sizes = {len(level) for level in every}
    ensure(
        len(positive) == len(negative) and len(sizes) == 1,
        f"The chains have {len(positive)} levels of {[len(level) for level in positive]} texts, "
        f"and negatives of {[len(level) for level in negative]}. Give each level, and its "
        "negatives, a text of each chain.",
    )


class _Parts(NamedTuple):
    """The tensors that the loss compares: distinct ``embeddings`` (N, d), ``triples`` of their row
    numbers, their ``reference`` before the tuning, and ``counts``, how often each occurs."""

    embeddings: Tensor
    triples: Tensor
    reference: Tensor | None
    counts: Tensor


@MODELS.register_module()
class RadialTuning(BaseModel):
    """A CLIP whose text tower, image tower or both learn the order of chains. Its checkpoints only
    hold the tuned towers (and the root, if it is learned); see
    :func:`hypvision.clip.radial.weights.merge_tower`.

    Args:
        clip: arguments of :func:`hypvision.clip.models.create_clip`, or the bundle that it returns.
        tune: ``"text"``: the text tower, as published; the image tower is left out. ``"image"``:
            the image tower; ``"both"``: both towers. With the image tower, the image of a chain is
            one more level below the last text, its negative is the image of the next chain in the
            batch, and images, too, are regularised towards their first embeddings. This is how we
            understand others who train both towers; the data must give images.
        loss: ``dict(type=...)`` of :class:`~hypvision.losses.RadialLoss`,
            :class:`~hypvision.losses.EntailmentConeLoss` or
            :class:`~hypvision.losses.MERUEntailmentLoss`, with its arguments.
        root: ``"text"``: the embedding of the empty text, which changes with the tower (as in the
            official code); ``"frozen"``: this embedding before the tuning; ``"parameter"``: a
            vector that begins there and is learned.
        pairs: pairs of levels, see :func:`hypvision.losses.chain_triples`: ``"next"``, ``"all"``,
            or a list such as ``[(0, 1), (0, 3)]``.
    """

    # Checkpoints lack the weights of `clip`, towards which a resumed training is regularised, too.
    checkpoint_is_partial = True

    def __init__(
        self,
        clip: Plain | CLIPBundle,
        loss: Plain | None = None,
        tune: str = "text",
        root: str = "text",
        pairs: str | Sequence[tuple[int, int]] = "next",
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ):
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        one_of(_ROOTS, **{"model.root": root})
        one_of(_TUNED, **{"model.tune": tune})
        options = dict(loss or {})
        name = options.pop("type", "RadialLoss")
        one_of(_LOSSES, **{"model.loss.type": name})
        bundle = create_clip(**clip) if isinstance(clip, dict) else clip
        self.clip = bundle.model
        self.tokenizer = bundle.tokenizer
        _check_clip(self.clip)
        set_tuning(self.clip, _TUNED[tune])
        self.bundle = bundle
        self.with_images = tune != "text"
        for unused in ("logit_scale", "logit_bias", *(() if self.with_images else ("visual",))):
            if hasattr(self.clip, unused):
                delattr(self.clip, unused)
        self.loss = _LOSSES[name](**options)
        self.root_kind = root
        self.pairs = pairs
        self.reference: FrozenFeatures | None = None
        self.image_reference: FrozenFeatures | None = None
        if root != "text":
            start = embed_texts(self.clip, self.tokenizer, [""])[0].clone()
            if root == "parameter":
                self.root = nn.Parameter(start)
            else:
                self.register_buffer("root", start)

    @property
    def language(self) -> Language:
        """Return the templates and words of the tuned CLIP, as its checkpoints record them."""
        return Language(self.bundle.templates, self.bundle.words)

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return unit embeddings ``(N, d)`` of distinct texts, and the root ``(d,)``."""
        own = self.root_kind == "text" and "" not in texts
        tokens = self.tokenizer([*texts, ""] if own else list(texts))
        embeddings = Sphere().embed(encode_packed(self.clip, tokens), "text")
        if self.root_kind != "text":
            return embeddings, F.normalize(self.root, dim=-1)
        return embeddings[: len(texts)], embeddings[-1 if own else list(texts).index("")]

    def encode_images(self, inputs: Tensor) -> Tensor:
        """Return unit embeddings ``(b, d)`` of images."""
        return Sphere().embed(encode_image(self.clip, self.bundle.normalised(inputs)), "image")

    def forward(
        self,
        positive: Sequence[Sequence[str]],
        negative: Sequence[Sequence[str]],
        inputs: Tensor | None = None,
        image: Sequence[str] = (),
        mode: str = "tensor",
    ) -> Any:
        """Compute what mmengine's ``mode`` asks for. ``positive`` and ``negative`` are L levels of
        b texts; if the image tower trains, ``inputs`` are uint8 images (b, 3, H, W) and ``image``
        their names.

        Returns:
            ``"tensor"``: unit embeddings (2 L, b, d), positives first; ``"loss"``: the parts of the
            loss by name; ``"predict"``: for each chain a dict with the ``radii`` (L,) of its texts.
        """
        one_of(("tensor", "loss", "predict"), mode=mode)
        levels = len(positive)
        _check_levels(positive, negative if mode != "predict" else positive)
        chains = len(positive[0])
        every = [text for level in (*positive, *negative) for text in level]
        texts, rows = distinct(every if mode != "predict" else every[: levels * chains])
        embeddings, root = self.encode(texts)
        if mode == "tensor":
            return embeddings[rows].unflatten(0, (2 * levels, chains))
        if mode == "predict":
            radii = torch.linalg.vector_norm(embeddings - root, dim=-1)[rows].unflatten(
                0, (levels, chains)
            )
            return [dict(radii=chain) for chain in radii.T.cpu()]
        try:
            triples = rows[chain_triples(levels, chains, self.pairs)].to(
                embeddings.device, non_blocking=True
            )
        except ValueError as error:
            raise HypvisionError(
                f"The pairs of the tuning do not fit its chains. {error}"
            ) from error
        parts = _Parts(
            embeddings,
            triples,
            self._reference_of(texts, embeddings),
            rows.bincount().to(embeddings.device, non_blocking=True),
        )
        if self.with_images:
            last = rows[(levels - 1) * chains : levels * chains].to(triples)
            parts = self._with_images(parts, last, inputs, image)
        return self.loss(parts.embeddings, parts.triples, root, parts.reference, parts.counts)

    def _reference_of(self, texts: Sequence[str], embeddings: Tensor) -> Tensor | None:
        """Return the frozen embeddings of texts; None if the loss has no prior."""
        if not self.loss.prior:
            return None
        if self.reference is None:
            raise HypvisionError(
                "The frozen embeddings of the texts are missing. Add "
                "custom_hooks=[dict(type='FrozenTextsHook')] to the config, or set loss.prior=0."
            )
        return self.reference[texts].to(embeddings.device, non_blocking=True)

    def _with_images(
        self, parts: _Parts, last: Tensor, inputs: Tensor | None, image: Sequence[str]
    ) -> _Parts:
        """Return the loss's tensors with the images as one more level, below the ``last`` texts
        (b,) of their chains."""
        if inputs is None:
            raise HypvisionError(
                f"The image tower trains, but the data gives no images. {_GIVE_IMAGES}"
            )
        embeddings, triples, reference, counts = parts
        number = torch.arange(len(last)).to(triples)
        below = len(embeddings)
        images = torch.stack([last, below + number, below + (number + 1) % len(last)], 1)
        if reference is not None and self.image_reference is not None:
            reference = torch.cat([reference, self.image_reference[image].to(reference)])
        return _Parts(
            torch.cat([embeddings, self.encode_images(inputs)]),
            torch.cat([triples, images[last != last.roll(-1)]]),
            reference,
            F.pad(counts, (0, len(last)), value=1),
        )


@HOOKS.register_module()
class FrozenTextsHook(Hook):
    """Gives a :class:`RadialTuning` the untrained model's embeddings of its training texts, and of
    its training images if the image tower trains.

    The hook runs before a checkpoint is resumed, because the model is regularised towards the
    weights that it is built with (``clip``).

    Args:
        folder, dtype: see :func:`hypvision.clip.features.frozen_texts`.
    """

    def __init__(self, folder: StrPath | None = None, dtype: str = "float16"):
        self.folder = folder
        self.dtype = getattr(torch, dtype)

    def before_run(self, runner: Runner) -> None:
        model = cast(RadialTuning, network_of(runner))
        if runner._train_loop is None or not model.loss.prior:
            return
        data = runner.train_dataloader.dataset
        if model.with_images:
            ensure(
                data.files,
                f"The image tower trains, but the data gives no images. {_GIVE_IMAGES}",
            )
            set_preprocessing(data, model.clip)
            model.image_reference = frozen_images(model.bundle, data.files, self.folder, self.dtype)
        model.reference = frozen_texts(
            model.clip, model.tokenizer, data.texts, self.folder, self.dtype
        )
        runner.logger.info(f"Frozen embeddings of {len(data.texts)} texts: {model.reference.path}")


@METRICS.register_module()
class ChainOrder(Metric):
    """Kendall's tau between the radii of a chain's texts and their levels, as the mean over chains;
    NaN if there are no chains."""

    def process(self, data_batch: Any, data_samples: list[Plain]) -> None:
        radii = [sample["radii"] for sample in data_samples]
        if self.check(torch.stack(radii), "A radius", data_samples):
            self.results += radii

    def compute_metrics(self, results: list[Tensor]) -> Metrics:
        return dict(d_corr=float(kendall_tau(torch.stack(results)).mean()) if results else math.nan)


PREDICTORS["RadialTuning"] = (
    "Radial tuning puts texts in order: hypvision clip chains CHAINS --clip NAME "
    "--tuned CHECKPOINT measures and draws this order."
)
