"""Embeddings of images by a trained metric learner, by any timm model (its features compare by
cosine), or by a CLIP, which also embeds texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import timm
import torch
from PIL import Image
from torch import Tensor

import hypvision.models  # noqa: F401 - registers the models
from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.read import read
from hypvision.checkpoints.records import Record
from hypvision.inference.predictors import Predictor
from hypvision.inference.progress import progress
from hypvision.inference.results import Embedding
from hypvision.inference.running import results
from hypvision.inference.sources import Frame, Sources
from hypvision.io import (
    HypvisionError,
    Plain,
    StrPath,
    Values,
    did_you_mean,
    ensure,
    explaining,
    refuse_weights,
    require,
    require_finite,
)
from hypvision.io.images import check_normalisation, leaving_out, require_all
from hypvision.zoo.backbones import load_weights
from hypvision.zoo.loading import load, network_of, no_model, trained_arguments

if TYPE_CHECKING:
    from mmengine.config import Config

    from hypvision.clip.models import CLIPBundle

    from .metric_learning import MetricLearner


def _reads_nothing(texts: Sequence[str]) -> Tensor:
    raise HypvisionError("This model embeds images, not texts. Give a CLIP with --clip NAME.")


class Embedder(NamedTuple):
    """A model that embeds images.

    Attributes:
        embed: images ``(B, channels, H, W)`` to vectors.
        transform: a PIL image to the model's input.
        space: how vectors compare, ``"lorentz"`` or ``"cosine"``.
        weights: name or file of the weights.
        c: curvature of the hyperboloid.
        embed_texts: texts to vectors; raises an error for models without texts.
        channels: number of channels of the images.
    """

    embed: Callable[[Tensor], Tensor]
    transform: Callable[[Image.Image], Tensor]
    space: str
    weights: str
    c: float = 1.0
    embed_texts: Callable[[Sequence[str]], Tensor] = _reads_nothing
    channels: int = 3


def load_learner(config: StrPath, weights: StrPath) -> tuple[MetricLearner, Config]:
    """Return a trained metric learner in evaluation mode, and its config. ``config`` is a file or
    name, ``weights`` the checkpoint: a path, ``zoo:NAME``, ``hf-hub:...``, or an address with its
    checksum."""
    require("mmengine", "mm")
    from hypvision.engine.config import load_config
    from hypvision.engine.predicting import trained_model

    from .metric_learning import MetricLearner

    loaded = load_config(config)
    ensure(
        loaded.kind == "MetricLearner",
        f"The config '{loaded.filename}' describes a model {loaded.kind}, not a "
        "MetricLearner. Give one of configs/lhier, or your own like them.",
    )
    model = trained_model(loaded, weights)
    assert isinstance(model, MetricLearner)
    return model, loaded


def load_embedder(
    config: StrPath | None = None,
    weights: StrPath | None = None,
    model: str | None = None,
    device: str = "cpu",
) -> Embedder:
    """Return the embedder of a metric learner or classifier (``config`` and ``weights``), or of a
    timm ``model``, on a device.

    A timm model without ``weights`` gets its published weights, as with ``pretrained=True``.
    ``model`` may also name a metric learner or a classifier of the zoo, such as
    ``"tf_efficientnet_lite0.imagenet"``, also with ``"zoo:"``, whose weights are then loaded.
    """
    if (config is None) == (model is None):
        raise HypvisionError(
            "Give either --config CONFIG --weights FILE, or --model NAME, or --clip NAME."
        )
    if config is not None:
        if weights is None:
            raise HypvisionError("A config needs --weights: give the checkpoint of its training.")
        return _trained(config, weights, device)
    name = str(weights or model).removeprefix("zoo:")
    record = builtin_index().records.get(name) if weights is None else None
    if record is None:
        return _of_timm(str(model).removeprefix("zoo:"), weights, device)
    network = _of_the_zoo(record)
    if record.task == "retrieval":
        return _learned(network, network.images, name, device)
    return _by_features(network, name, device)


def _of_timm(model: str, weights: StrPath | None, device: str) -> Embedder:
    """Return the embedder of a timm model with the weights of a file, or with its published
    weights."""
    from .classification import create_backbone

    refuse_weights(
        model,
        "Give timm's name of the network as --model, or the config of its training as --config, "
        "and the file as --weights.",
    )
    elsewhere = {":", "/"} & {*model}  # a folder, or a repository of the hub
    if not elsewhere and not timm.is_model(model.partition(".")[0]):
        raise no_model(model)
    remedy = "Give a file with --weights FILE (random weights would find nothing)."
    if weights is None:
        network = create_backbone(model, remedy, num_classes=0, pretrained=True)
        published = network.pretrained_cfg
        names = (published.get("architecture") or model, published.get("tag"))
        return _by_features(network, ".".join(filter(None, names)), device)
    checkpoint = read(weights)
    of_record: Plain = {}
    if not elsewhere:
        model, of_record = network_of(model)
    own = {**of_record, **trained_arguments(checkpoint, model)}
    network = create_backbone(model, remedy, num_classes=0, pretrained=False, **own)
    load_weights(network, weights, checkpoint)
    return _by_features(network, str(weights), device)


def _by_features(network: Any, name: str, device: str) -> Embedder:
    """Return the embedder of a network whose features compare by cosine."""
    from timm.data import create_transform, resolve_data_config

    data = resolve_data_config({}, model=network)
    channels = getattr(network, "in_chans", 3)
    check_normalisation(data, channels)
    return Embedder(
        network.to(device).eval(), create_transform(**data), "cosine", name, channels=channels
    )


def _trained(config: StrPath, weights: StrPath, device: str) -> Embedder:
    """Return the embedder of a training: of a metric learner, or of a classifier by the features
    before its head."""
    require("mmengine", "mm")
    from hypvision.engine.config import load_config
    from hypvision.engine.predicting import predictor_of
    from hypvision.inference.predictors import Request

    kind = load_config(config).model.get("type")
    if kind in ("ImageClassifier", "HierarchyClassifier"):
        predictor = predictor_of(Request(str(config), str(weights), device=device))
        network: Any = predictor.network
        network.reset_classifier(0)
        return Embedder(
            network, predictor.prepare, "cosine", str(weights), channels=predictor.channels
        )
    learner, settings = load_learner(config, weights)
    data = settings.dataset("test")
    found = _learned(learner, data.transform.to_dict(), str(weights), device)
    return found._replace(channels=data.get("channels", 3))


def _learned(learner: MetricLearner, images: Values, name: str, device: str) -> Embedder:
    from hypvision.data.image_folder import build_transform

    learner.to(device)
    transform = build_transform(dict(images))
    return Embedder(lambda x: learner.comparable(learner.embed(x)), transform, learner.space, name)


def named_embedder(name: str, device: str = "cpu") -> Embedder:
    """Return the embedder of the model with this name: a timm model, a classifier or metric learner
    of the zoo, or a CLIP (:mod:`hypvision.clip.names`)."""
    if gives_features(name):
        return load_embedder(model=name, device=device)
    from hypvision.clip.models import create_clip
    from hypvision.clip.names import clip_options

    hint = did_you_mean(name, timm.list_models(), cutoff=0.8)
    with explaining(lambda error: f"{error}{hint}", HypvisionError):
        options = clip_options(name)
    clip = create_clip(**options)
    clip.model.to(device)
    return clip_embedder(clip, name)


def gives_features(name: str) -> bool:
    """Return whether a name is that of a timm model, or of weights of the zoo that are not a
    CLIP's."""
    record = builtin_index().records.get(name)
    return timm.is_model(name) if record is None else record.task != "zero-shot"


def clip_embedder(clip: CLIPBundle, name: str) -> Embedder:
    """Return the embedder of a CLIP, whose images and texts are points on the sphere or on the
    hyperboloid."""
    from hypvision.clip.radial.texts import embed_texts
    from hypvision.clip.spaces import ExteriorAngles, Hyperboloid, HyperboloidProduct
    from hypvision.data.preprocessing import preprocessing_of

    space = clip.space
    texts = partial(embed_texts, clip.model, clip.tokenizer)
    if isinstance(space, (ExteriorAngles, HyperboloidProduct)):
        raise HypvisionError(
            f"'{name}' embeds in a product of hyperboloids (PHyCLIP), or is compared by angles "
            "(ATMG), which files and searches of embeddings do not support. Take a MERU, HyCoCLIP "
            "or UNCHA."
        )
    kind = "lorentz" if isinstance(space, Hyperboloid) else "cosine"
    c = float(getattr(space, "c", 1.0))
    return Embedder(clip.embed_images, preprocessing_of(clip.model), kind, name, c, texts)


def _of_the_zoo(record: Record) -> Any:
    """Return a metric learner of the zoo, or the network of a classifier without its head."""
    ensure(
        record.task in ("retrieval", "classification"),
        f"'{record.name}' are weights of a model for {record.task}, whose features cannot be "
        "compared. Give a metric learner, a classifier or a CLIP: `hypvision zoo list` shows "
        "the tasks.",
    )
    network: Any = load(record.name)
    if record.task == "classification":
        network.reset_classifier(0)
    return network


def embed_sources(
    embedder: Embedder,
    sources: Sources,
    batch_size: int = 32,
    device: str = "cpu",
    failed: list[str] | None = None,
) -> tuple[list[Frame], Tensor]:
    """Embed images and videos by a model on ``device``: return their frames (those of videos
    without pixels) and the embeddings ``(N, d)``, float32. For images that cannot be embedded the
    messages are added to ``failed``; if ``failed`` is None, they raise an error."""

    def find(images: list[Tensor]) -> list[Embedding]:
        return [
            Embedding(vector)
            for vector in embedder.embed(torch.stack(images).to(device)).float().cpu().numpy()
        ]

    frames = []
    vectors = []
    predictor = Predictor(embedder.transform, find, channels=embedder.channels)
    for frame, _, found in progress(
        results(predictor, sources, batch_size, failed), len(sources), "image"
    ):
        assert isinstance(found, Embedding)
        vector = torch.as_tensor(found.vector)
        with leaving_out(frame.file, failed):
            require_finite(vector, f"The embedding of '{frame.file}'")
            frames.append(frame._replace(source=Path(frame.file)))
            vectors.append(vector)
    if not vectors:
        require_all(failed or [], done=0)
    return frames, torch.stack(vectors)


def distances(x: Tensor, y: Tensor, space: str, c: float = 1.0) -> Tensor:
    """Return the distances of ``x`` ``(d,)`` from ``y`` ``(N, d)``: on the hyperboloid of curvature
    ``c`` for ``"lorentz"``, otherwise 1 - cosine."""
    from hypvision.geometry import lorentz

    if space == "lorentz":
        return lorentz.dist(x.expand_as(y), y, c)
    return (1 - torch.cosine_similarity(x[None].double(), y.double())).clamp(min=0)
