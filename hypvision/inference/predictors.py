"""Predictors for :func:`hypvision.predict`: a predictor has a function that prepares an image and
one that computes the results of a batch.

This module makes predictors from timm's models, CLIP models and records of the zoo. Models built
from configs of mmengine come from :mod:`hypvision.engine.predicting` and from the tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import timm
import torch
from PIL import Image
from timm.data import (
    ImageNetInfo,
    create_transform,
    infer_imagenet_subset,
    resolve_model_data_config,
)
from torch import Tensor, nn

from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.pretrained import record_overlay
from hypvision.checkpoints.sources import find, is_address, resolve
from hypvision.checkpoints.storage import read_header
from hypvision.data.classes import load_classes
from hypvision.io import (
    HypvisionError,
    Plain,
    StrPath,
    Values,
    did_you_mean,
    ensure,
    explaining,
    name_or_path,
    one_line,
    refuse_weights,
)
from hypvision.io.images import check_normalisation
from hypvision.io.plugins import PLUGINS
from hypvision.io.shipped import is_config, shipped_configs
from hypvision.zoo.familiar import Familiar, level_features, levels_of, of_header
from hypvision.zoo.loading import (
    SEVERAL_LABELS,
    TimmModel,
    load,
    load_trained,
    no_model,
    timm_model,
)
from hypvision.zoo.loading import classifier as classifier_of

from .knowledge import Known
from .results import Classes, PlacedClasses, Result, Tags

if TYPE_CHECKING:
    from hypvision.clip.open_vocabulary import OpenVocabularyCLIP


@dataclass(frozen=True)
class Predictor:
    """A model with functions that prepare images and compute results.

    Attributes:
        prepare: turns an image, with ``channels`` channels, into the model's input; it is called in
            threads.
        find: returns the results for a list of prepared images.
        batch: whether the model processes several images at a time; detectors and segmenters, whose
            images differ in size, do not.
        channels: number of channels of the images that ``prepare`` takes.
        known: the classes and the image size that the model was trained on.
        network: the network of a classifier, to inspect it; None for other models.
        maps: whether the results contain the model's uncertainty for each pixel.
    """

    prepare: Callable[[Image.Image], Any]
    find: Callable[[list[Any]], Sequence[Result]]
    batch: bool = True
    channels: int = 3
    known: Known = Known()
    network: nn.Module | None = None
    maps: bool = False


@dataclass(frozen=True)
class Request:
    """A request for a predictor: the model, its weights, and what to look for.

    Attributes:
        model: see :func:`hypvision.predict`; or, for a CLIP, the arguments of
            :func:`hypvision.clip.create_clip`.
        weights: checkpoint file, or address of weights.
        arguments: arguments of the constructor of a timm model.
        classes: the classes that an open-vocabulary model looks for.
        things: those of ``classes`` whose objects a panoptic model counts one by one.
        score: boxes and labels with lower scores are left out; None: 0.3 for boxes, 0.5 for labels.
        device: the device that computes.
        max_boxes: keep at most this many boxes an image, the best ones; None: all that the model
            gives.
        options: changes of the config, see :func:`hypvision.engine.config.load_config`.

    Raises:
        HypvisionError: ``things`` are given without ``classes``, or one of the lists cannot be
            read.
    """

    model: StrPath | Values
    weights: StrPath | None = None
    arguments: Values = field(default_factory=dict)
    classes: StrPath | Sequence[str] | None = None
    things: StrPath | Sequence[str] | None = None
    score: float | None = None
    device: str = "cpu"
    max_boxes: int | None = None
    options: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        ensure(
            self.things is None or self.classes is not None,
            "--things are those of --classes whose objects a panoptic model counts: give both, "
            "or leave out --things.",
        )
        # Lists that cannot be read are errors before the model is loaded.
        for key in ("classes", "things"):
            names = getattr(self, key)
            if names is None:
                continue
            if not isinstance(names, (str, Path)):
                names = tuple(names)  # an iterator gives its names only once
                object.__setattr__(self, key, names)
            load_classes(names)


def means_config(name: str) -> bool:
    """Return whether ``name`` is the name or file of a config, and not the name of a timm model."""
    return not timm.is_model(name) and is_config(name)


def means_record(name: str) -> bool:
    """Return whether ``name`` is the address or the name of trained weights; the name of a record
    may lack its tag, unless timm has a network of this name."""
    index = builtin_index()
    begins = not timm.is_model(name) and bool(index.tags(name))
    return is_address(name) or name in index.records or begins


def load_predictor(request: Request) -> Predictor:
    """Return the predictor for a request, for any kind of model."""
    if isinstance(request.model, Mapping):
        return _clip(request, request.model)
    name_or_path(model=request.model, weights="" if request.weights is None else request.weights)
    name = str(request.model)
    if means_config(name):
        build: Callable[..., Predictor] = resolve_name(PLUGINS["predictor of a config"])
        return build(request)
    if request.options:
        raise HypvisionError(
            f"--cfg-options change a config, but '{name}' is the name of a model. Give --model "
            f"CONFIG --weights {name}, or arguments of the network with --model-args."
        )
    refuse_weights(name)
    is_local = name.startswith("local-dir:")
    if not is_local and ("/" in name or means_record(name)):
        return _of_the_zoo(request)
    if not is_local and not timm.is_model(name):
        raise no_model(name, shipped_configs(), ", or a config, by its file or name")
    _refuse_classes(request)
    return _timm_predictor(_timm_network(name, request), request)


def _timm_network(name: str, request: Request) -> TimmModel:
    """Return a timm model with the weights of a training of one's own, or with published
    weights."""
    if request.weights is not None and not is_address(request.weights):
        return load_trained(request.weights, name, request.arguments)
    network = _published(name, {**request.arguments, **_overlay(request)})
    _refuse_new_head(network, request, network.pretrained_cfg.get("num_classes"))
    return network


def _refuse_new_head(network: TimmModel, request: Request, known: int | None) -> None:
    if known and network.num_classes != known:
        raise HypvisionError(
            f"With num_classes={network.num_classes} '{request.model}' gets a new head, which has "
            f"learned nothing; its weights know {known} classes. Leave num_classes out, or give "
            "the checkpoint of a training as weights."
        )


def _overlay(request: Request) -> Plain:
    """Return the arguments that make timm load weights of the zoo; none if no weights are given."""
    if request.weights is None:
        return {}
    index, record = find(str(request.weights))
    if record.task != "classification" or record.model != str(request.model).partition(".")[0]:
        raise HypvisionError(
            f"'{request.weights}' are weights of {record.model}: use --model {request.weights} "
            "alone."
        )
    return dict(pretrained_cfg_overlay=record_overlay(record, resolve(record, index)))


def _published(name: str, arguments: Values) -> TimmModel:
    # Download clients and wrong arguments raise errors of any type.
    with explaining(
        lambda error: (
            f"No weights of the model '{name}' can be loaded ({one_line(error).rstrip('.')}). Give "
            "a checkpoint with --weights FILE, or a name of `hypvision zoo list`."
            f"{_nearly(name)}"
        )
    ):
        return timm_model(name, pretrained=True, **arguments)


def _nearly(name: str) -> str:
    """Return a sentence that offers weights whose name is nearly this one, which no weights
    have."""
    known = timm.list_models(pretrained=True)
    return "" if name in known else did_you_mean(name, known, cutoff=0.8)


def _refuse_classes(request: Request) -> None:
    ensure(
        request.classes is None,
        f"The classes of '{request.model}' are fixed: leave out --classes. Open-vocabulary "
        "models take them: hypvision zoo list --task zero-shot, or a config of "
        "configs/hyperclip.",
    )


def _of_the_zoo(request: Request) -> Predictor:
    name = str(request.model)
    ensure(request.weights is None, f"'{name}' are trained weights already: leave out --weights.")
    try:
        index, record = find(name)
    except HypvisionError as error:
        if not name.startswith("hf-hub:"):
            raise
        raise HypvisionError(
            f"{error} If it is a repository of timm, download it (hf download USER/REPO "
            "--local-dir DIR) and give local-dir:DIR."
        ) from error
    if record.task == "zero-shot":
        return _clip(
            request,
            dict(name=record.model, pretrained=name if is_address(name) else f"zoo:{record.name}"),
        )
    # Only segmenters and detectors can be open-vocabulary, so that a user may name the classes.
    if record.task in ("classification", "retrieval"):
        _refuse_classes(request)
    if record.task == "classification":
        network = classifier_of(index, record, request.arguments)
        _refuse_new_head(network, request, len(record.classes))
        predictor = _timm_predictor(network, request, record.classes)
    else:
        trained = load(name, device=request.device, **request.arguments)
        predictor = resolve_name(PLUGINS[f"predictor of {record.task}"])(trained, request)
    known = replace(predictor.known, size=record.input.size[1:])
    if request.classes is None:
        data = re.split(r"[(:;.]|,(?!\d)", record.data)[0].strip()
        known = replace(known, source=f"of the zoo, trained on: {data}")
    return replace(predictor, known=known)


def _clip(request: Request, options: Values) -> Predictor:
    """Return the predictor of a CLIP, whose ``options`` are arguments of
    :func:`hypvision.clip.create_clip`."""
    from hypvision.clip.open_vocabulary import OpenVocabularyCLIP

    unused = [
        name for name in ("weights", "arguments", "options", "things") if getattr(request, name)
    ]
    if unused:
        raise HypvisionError(
            f"The name of a CLIP determines its weights and settings: leave out the {unused[0]}."
        )
    model = OpenVocabularyCLIP()
    model.build_clip(dict(options), tune="frozen", classes=request.classes, dense=False)
    return zero_shot(model.to(request.device).eval(), request)


# Predictors of classifiers


def _timm_predictor(network: TimmModel, request: Request, names: Sequence[str] = ()) -> Predictor:
    side = request.arguments.get("img_size")
    # A network that is built for images of another size takes no others.
    data = resolve_model_data_config(network, dict(img_size=side) if isinstance(side, int) else {})
    channels = getattr(network, "in_chans", 3)
    check_normalisation(data, channels)
    names = names or network.pretrained_cfg.get("label_names") or _imagenet(network)
    several = SEVERAL_LABELS in (network.pretrained_cfg.get("notes") or ())
    shown = label_score(request) if several else None
    device = request.device
    given = network.pretrained_cfg
    size = data["input_size"]
    source = (
        f"the weights {given.get('architecture', request.model)}.{given.get('tag') or 'none'}, of "
        "timm"
    )
    if request.weights is not None:
        source = f"the weights {request.weights}"
    trained: Any = network
    familiar = getattr(trained, "familiar", None) or _recorded_familiar(given.get("file"))
    judged = None if familiar is None else trained
    known = Known(tuple(names), source, (size[-2], size[-1]), familiar=familiar)
    trained.to(device).eval()
    found = classifier(trained, create_transform(**data), known, device, shown, channels, judged)
    return replace(found, network=trained)


def _recorded_familiar(file: str | None) -> Familiar | None:
    """Return where the features of familiar images lie, from the header of a weight file of the
    zoo; None if the header says nothing."""
    if not str(file).endswith(".safetensors"):
        return None
    return of_header(read_header(str(file)), file)


def label_score(request: Request) -> float:
    """Return the lowest score at which a model of several labels an image shows a label."""
    return 0.5 if request.score is None else request.score


def _imagenet(network: TimmModel) -> list[str]:
    """Return ImageNet's class names for a head of ImageNet's classes, and numbers for any other."""
    subset = infer_imagenet_subset(network)
    if not subset:
        return [str(i) for i in range(network.num_classes)]
    info = ImageNetInfo(subset)
    return [info.index_to_description(i) for i in range(info.num_classes())]


def classifier(
    logits: Callable[[Tensor], Tensor],
    transform: Callable[[Image.Image], Tensor],
    known: Known,
    device: str,
    score: float | None = None,
    channels: int = 3,
    judged: nn.Module | None = None,
) -> Predictor:
    """Return a predictor of classes.

    Args:
        logits: a function from images ``(B, C, H, W)`` to logits.
        transform: a function from an image to a tensor ``(C, H, W)``.
        known: the classes, and where the features of familiar images lie, if this is recorded.
        device: the device that computes.
        score: lowest score of a label, for images with any number of labels; None: one class an
            image.
        channels: number of channels of the images.
        judged: the network whose levels give features, to measure how familiar an image is.
    """
    if known.familiar is not None and judged is not None:
        width = known.familiar.means.shape[1]
        features = sum(channels for _, channels in levels_of(judged))
        ensure(
            features == width,
            f"The model has {features} features, but the images that it knows were recorded with "
            f"{width} ({known.source}). Give the weights of this model.",
        )

    def find(images: list[Tensor]) -> list[Classes]:
        with level_features(judged) as kept:
            found = logits(torch.stack(images).to(device, non_blocking=True)).float()
        scores = (found.softmax(-1) if score is None else found.sigmoid()).cpu().numpy()
        if scores.shape[-1] != len(known.names):
            raise HypvisionError(
                f"The model has {scores.shape[-1]} outputs, but {len(known.names)} class names."
            )
        if known.familiar is not None and kept and score is None:
            distances = known.familiar.distances(kept[0].cpu()).tolist()
            limit = known.familiar.limit
            return [
                PlacedClasses(row, known.names, far, limit) for row, far in zip(scores, distances)
            ]
        return [
            Classes(row, known.names) if score is None else Tags(row, known.names, score)
            for row in scores
        ]

    return Predictor(transform, find, channels=channels, known=known)


def zero_shot(model: OpenVocabularyCLIP, request: Request) -> Predictor:
    """Return a predictor that compares images with the names of classes, for a CLIP."""
    from hypvision.clip.spaces import space_of
    from hypvision.clip.towers import encode_image, logit_scale_of
    from hypvision.data.preprocessing import preprocessing_of

    if request.classes is not None:
        model.set_classes(request.classes)
    elif model.words:
        model.set_classes(model.words)
    ensure(model.classes, 'A CLIP compares images with words: give --classes "cat, dog, ...".')

    def logits(pixels: Tensor) -> Tensor:
        pixels = (pixels.float() - model.get_buffer("mean")) / model.get_buffer("std")
        embedded = encode_image(model.clip, pixels, normalize=True)
        scale = logit_scale_of(model.clip).exp()
        return space_of(model.clip).class_logits(embedded.float(), model.class_points(), scale)

    view = preprocessing_of(model.clip)
    source = "the words of its training" if request.classes is None else "the words given"
    return classifier(logits, view, Known(model.classes, source, view.size), request.device)
