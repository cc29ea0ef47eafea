"""CLIP models by name: those of open_clip, of a repository or folder, of this project, and files.

>>> clip = create_clip("ViT-B-16", "openai")  # open_clip's weights, OpenAI's with QuickGELU
>>> clip = create_clip("hf-hub:USER/REPO")    # model, weights and tokenizer; or local-dir:PATH
>>> clip = create_clip("emoji-s16", "zoo:emoji-s16.captions")
>>> clip.model.encode_text(clip.tokenizer(["a cat"]))

:func:`create_clip` sets the activation, normalisation, resizing and text length that the weights
need; :func:`hypvision.data.preprocessing.preprocessing_of` is the preprocessing of its images.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from torch import Tensor, nn

from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.language import Language, language_of
from hypvision.checkpoints.lora import merged
from hypvision.checkpoints.match import load_into
from hypvision.checkpoints.read import check_bounds, network_weights, read_file
from hypvision.checkpoints.records import Record
from hypvision.checkpoints.sources import find, hub_switch, is_address
from hypvision.checkpoints.torchscript import class_names, is_torchscript
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.checkpoints.wrappers import without_prefix
from hypvision.data.classes import checked_templates
from hypvision.geometry.numerics import readable, transformed
from hypvision.io import (
    HypvisionError,
    Plain,
    StrPath,
    Values,
    depths,
    did_you_mean,
    list_of_texts,
    one_of,
    require,
)

from .hugging_face import from_hugging_face, is_hugging_face, to_hugging_face
from .hyperbolic_checkpoint import (
    PIXELS,
    PUBLISHED,
    check_scalars,
    from_official,
    is_official,
    root_of,
)
from .locate import (
    config_folder,
    fetch_published,
    fetch_weights,
    is_repository,
    offering,
    repository_config,
    repository_weights,
    weights_file,
)
from .spaces import Space, space_of
from .towers import (
    check_images,
    embedding_size,
    encode_by_length,
    encode_image,
    encode_text,
)

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

MEAN = (122.7709383, 116.7460125, 104.09373615)
"""Mean of RGB from 0 to 255 with which OpenAI's CLIP was trained; ``STD`` is the deviation."""
STD = (68.5005327, 66.6321579, 70.3231630)

_TEXTS = 4096  # most texts that are tokenized at once, and most tokens that a tower sees at once
_PRECISIONS = (
    "fp32", "fp16", "bf16", "pure_fp16", "pure_bf16",
    "amp", "amp_bf16", "amp_bfloat16",  # of autocast in the caller's code: the weights stay float32
)  # fmt: skip
# Options of open_clip.create_model that change only the architecture; models of hypvision accept
# them too.
_OF_ARCHITECTURE = (
    "force_quick_gelu", "force_patch_dropout", "force_image_size", "force_preprocess_cfg",
    "force_context_length",
)  # fmt: skip
# Options of open_clip.create_model that hypvision sets itself. jit is refused, because scripted
# models can neither load weights nor contain hypvision's modules.
_NOT_OURS = (
    "model_name", "pretrained", "load_weights", "require_pretrained", "weights_only", "cache_dir",
    "cast_dtype", "jit",
)  # fmt: skip
# Arguments of open_clip's CLIP that HyperbolicCLIP passes on to it.
_OF_HYPERBOLIC = ("quick_gelu", "init_logit_scale", "output_dict")
_OF_TOWERS = (
    "pretrained_image",
    "pretrained_text",
    "pretrained_hf",
    "pretrained_image_path",
    "pretrained_text_path",
)

ARCHITECTURES: dict[str, Plain] = {
    # For emoji; two thirds of its 10 M parameters are in the token embedding. At 64 pixels, patches
    # of 16 pixels need a quarter of the computation that patches of 8 need.
    "emoji-s16": dict(
        embed_dim=128,
        vision_cfg=dict(image_size=64, layers=6, width=192, patch_size=16, head_width=32),
        text_cfg=dict(context_length=77, vocab_size=49408, width=128, heads=4, layers=4),
    ),
    # For a few classes of emoji: a quarter of a million parameters without the token embedding.
    "emoji-t8": dict(
        embed_dim=64,
        vision_cfg=dict(image_size=64, layers=4, width=64, patch_size=8, head_width=32),
        text_cfg=dict(context_length=77, vocab_size=49408, width=32, heads=1, layers=2),
    ),
}
"""Architectures that open_clip does not have: arguments of :class:`open_clip.model.CLIP`, or, with
a ``geometry``, of :class:`hypvision.clip.hyperbolic.HyperbolicCLIP`."""

# family of hyperbolic CLIPs -> its arguments for HyperbolicCLIP
_FAMILIES: dict[str, Plain] = {
    "clip": dict(geometry="sphere"),
    "meru": dict(geometry="lorentz"),
    "hycoclip": dict(geometry="lorentz"),
    "uncha": dict(geometry="lorentz", box_scales=True),
    "phyclip": dict(geometry="product"),
    "atmg": dict(geometry="lorentz", angles=True, curvature=0.1, learn_curvature=False),
}
for _family in ("hycoclip", "uncha", "phyclip", "atmg"):
    ARCHITECTURES[f"{_family}-emoji-s16"] = ARCHITECTURES["emoji-s16"] | _FAMILIES[_family]

_VITS = {"s": ("small", 12), "b": ("base", 12), "l": ("large", 16)}  # size -> (timm's name, heads)
for _family, _size in itertools.product(_FAMILIES, _VITS):
    _name, _heads = _VITS[_size]
    ARCHITECTURES[f"{_family}-vit-{_size}-16"] = dict(
        embed_dim=512,
        vision_cfg=dict(
            image_size=224,
            timm_model_name=f"vit_{_name}_patch16_224",
            timm_pool="token",
            timm_proj="linear",
        ),
        text_cfg=dict(context_length=77, vocab_size=49408, width=512, heads=8, layers=12),
        vision_heads=_heads,
        **_FAMILIES[_family],
    )


class CLIPBundle(NamedTuple):
    """A CLIP model with what it needs to embed images and texts.

    Attributes:
        model: the open_clip model.
        tokenizer: turns a list of T texts into tokens ``(T, L)`` int64.
        mean, std: mean and standard deviation that normalise RGB from 0 to 255.
        templates: the prompt templates that the weights' record or checkpoint names, or ().
        words: the class words that it names, or ().
    """

    model: nn.Module
    tokenizer: Callable[[list[str]], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    templates: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def normalised(self, images: Tensor) -> Tensor:
        """Return normalised images on the model's device, from RGB images ``(..., 3, H, W)``, 0 to
        255."""
        mean, std = (
            torch.tensor(value, device=self.device)[:, None, None]
            for value in (self.mean, self.std)
        )
        return (images.to(self.device).float() - mean) / std

    @property
    def space(self) -> Space:
        """The space of the embeddings: CLIP's sphere, or the manifold of a hyperbolic CLIP with its
        current curvature."""
        return space_of(self.model)

    def embed_images(self, images: Tensor) -> Tensor:
        """Return points ``(B, d)`` of RGB images ``(B, 3, H, W)``, 0 to 255, of the model's size,
        such as :func:`~hypvision.data.preprocessing.preprocessing_of` the model gives."""
        check_images(self.model, images, "hypvision.data.preprocessing.preprocessing_of resizes.")
        if images.is_floating_point() and readable(images) and not transformed():
            low, high = images.detach().aminmax()
            if low < 0 or 0 < high <= 1:
                warnings.warn(
                    f"The images have numbers from {low:.3g} to {high:.3g}: they seem to be "
                    "divided by 255, or normalised already. Give RGB from 0 to 255.",
                    stacklevel=2,
                )
        return self.space.embed(encode_image(self.model, self.normalised(images)), "image")

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Return points ``(T, d)`` of a list of texts."""
        given = texts if isinstance(texts, str) else list(texts)
        list_of_texts(texts=given)
        return encode_text(self.model, self.tokenizer(list(given)), normalize=True)

    def embed_classes(
        self, names: Sequence[str], templates: str | Sequence[str] | None = None
    ) -> Tensor:
        """Return points of C classes, each the mean over its sentences (:meth:`.Space.mean`): ``(C,
        d)``, or for ATMG ``(C, P, d)``. They are compared by :meth:`similarity`, and
        ``space.class_logits(images, classes, scale)`` are the logits.

        Args:
            names: the class names; ``_`` is not replaced, and of synonyms none is left out.
            templates: P sentences with one ``{}`` for the name, or the name of some in
                :data:`hypvision.data.classes.TEMPLATES`; None: those of the weights, else "a photo
                of a {}.".
        """
        names = names if isinstance(names, str) else list(names)
        list_of_texts(names=names)
        sentences = checked_templates(templates or self.templates or "a photo of a {}.")
        texts = [sentence.format(name) for name in names for sentence in sentences]
        parts = (texts[start : start + _TEXTS] for start in range(0, len(texts), _TEXTS))
        tokens = torch.cat([self.tokenizer(part) for part in parts])
        features = encode_by_length(self.model, tokens, budget=_TEXTS)
        return self.space.mean(features.unflatten(0, (len(names), len(sentences))), "text")

    def similarity(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return similarities ``(B, T)`` of image and text points: cosines, or Lorentzian inner
        products, which on one hyperboloid have the order of the negative distances; for ATMG the
        exterior angles at the images."""
        return self.space.scores(images, texts)


def create_clip(
    name: str = "ViT-B-16",
    pretrained: StrPath | None = None,
    load_weights: bool = True,
    lora: StrPath | None = None,
    **options: Any,
) -> CLIPBundle:
    """Return a CLIP model in evaluation mode, with its tokenizer and normalisation.

    Args:
        name: a name of open_clip (``ViT-B-32``, ``ViT-B-16``, ``ViT-L-14``, ``ViT-L-14-336``,
            ``ViT-B-16-SigLIP``, ...) or of :data:`ARCHITECTURES`; or the place of a model in
            open_clip's format, with its config and weights: ``hf-hub:USER/REPO``,
            ``local-dir:PATH``.
        pretrained: a tag of open_clip (``"openai"``); a checkpoint, which may be a file (also
            OpenAI's own and those of Hugging Face's ``CLIPModel``), ``"zoo:NAME"``, a release, or
            an address with its checksum, see :func:`hypvision.checkpoints.sources.fetch`; or None:
            random weights, or for a repository or folder its own.
        load_weights: False: build the network for these weights, with their activation and
            normalisation, but do not fetch them, because a checkpoint will supply weights.
        lora: a folder of the library peft whose LoRA is merged into the weights, trained on
            open_clip's model or on transformers' ``CLIPModel``.
        options: arguments of :func:`open_clip.create_model`; the models of this project take those
            that change the architecture (``force_quick_gelu``, ``force_image_size``,
            ``force_context_length``, ...), ``precision`` and ``output_dict``. For the weights of a
            tag, QuickGELU, mean, std, interpolation and resizing are set automatically; so is
            QuickGELU for OpenAI's own files. Other files do not contain their activation: give
            ``force_quick_gelu=True`` or a name such as ``ViT-B-16-quickgelu`` if they need it.
    """
    require("open_clip", "clip")
    source = _source_of(name, pretrained, load_weights)
    resize = source.tag is not None or _are_given(options, *RESIZING, "vision_cfg", "text_cfg")
    options = _with_needs(name, source, options)
    config = architecture(name, source.folder, options)
    _check_towers(name, config)
    is_random = source == _Source() and load_weights
    _check_options(name, config, options, towers=is_random)
    path = _fetched(name, source, load_weights)
    if not is_random:
        options["pretrained_text"] = False  # the checkpoint supplies the text tower's weights
    late = path is not None and "timm_model_name" in config["vision_cfg"]
    # timm's towers are resized after their weights are loaded, as open_clip does.
    size = options.pop("force_image_size", None) if late else None
    model, tokenizer = _random_model(name, source.folder, config, options, size)
    content: Values = {}
    if path is not None:
        content = read_file(path)
        _load(model, content, path, resize)
        _normalise_as_loaded(model, options)
        _resize_tower(model, size)
    if lora is not None:
        _merge_lora(model, lora)
    if name in ARCHITECTURES:
        _cast(model, options.get("precision", "fp32"))
    language = _language(pretrained, load_weights, content)
    pixels = model.visual.preprocess_cfg
    mean, std = (tuple(map((255.0).__mul__, pixels[key])) for key in ("mean", "std"))
    return CLIPBundle(model.eval(), tokenizer, mean, std, *language)


def _are_given(options: Values, *names: str) -> bool:
    """Return whether any of the options with these names is given and not None."""
    return any(options.get(name) is not None for name in names)


class _Source(NamedTuple):
    """The source of a CLIP model's weights: a folder with its config, a tag of open_clip, or a
    file; if all are None, the weights are random."""

    folder: Path | None = None
    tag: str | None = None
    path: Path | None = None


def _source_of(name: str, pretrained: StrPath | None, needed: bool) -> _Source:
    """Return the source for :func:`create_clip`; without ``needed`` its file may be missing."""
    folder = config_folder(name) if is_repository(name) else None
    tags = pretrained_tags(name) if folder is None else []
    if pretrained is None:
        return _Source(folder)
    if str(pretrained) not in tags:
        return _Source(folder, path=weights_file(name, pretrained, needed, tags))
    tag = str(pretrained)
    if name not in ARCHITECTURES:
        return _Source(tag=tag)
    return _Source(path=fetch_published(PUBLISHED[name][tag], f"{name}:{tag}", needed))


def _fetched(name: str, source: _Source, needed: bool) -> Path | None:
    """Return the weights file on this machine; None: weights are random, or not ``needed``."""
    if not needed:
        return None
    if source.tag is not None:
        about = require("open_clip", "clip").get_pretrained_cfg(name, source.tag)
        return fetch_weights(about["hf_hub"], f"{name}:{source.tag}")
    if source.folder is not None and source.path is None:
        return repository_weights(name, source.folder)
    return source.path


def _random_model(
    name: str,
    folder: Path | None,
    config: Plain,
    options: Plain,
    size: Any,
) -> tuple[Any, Any]:
    """Return a model with random weights and its tokenizer. With ``size``, to which it will be
    resized later, it is built for the image size of its weights, whatever the config says."""
    if name not in ARCHITECTURES:
        return _model_of_open_clip(name, folder, config, options)
    from open_clip.model import get_cast_dtype, set_model_preprocess_cfg
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    vision = config["vision_cfg"]
    if size is not None:
        vision["image_size"] = ARCHITECTURES[name]["vision_cfg"]["image_size"]
    cast_dtype = get_cast_dtype(options.get("precision", "fp32"))
    model: Any = _model_class(config)(**config, cast_dtype=cast_dtype)
    mean, std = pixels_of(vision)
    about = dict(asdict(PreprocessCfg()), size=vision["image_size"], mean=mean, std=std)
    about = merge_preprocess_dict(about, options.get("force_preprocess_cfg") or {})
    set_model_preprocess_cfg(model, about)
    if config.get("geometry"):
        model.normalise_by(about["mean"], about["std"])
    return model, tokenizer_of(config)


def _normalise_as_loaded(model: Any, options: Values) -> None:
    """Set the normalisation in the loaded file of a hyperbolic CLIP, unless ``options`` give
    another."""
    if hasattr(model, "normalisation"):
        about = {**model.normalisation(), **(options.get("force_preprocess_cfg") or {})}
        model.normalise_by(about["mean"], about["std"])
        model.visual.preprocess_cfg |= model.normalisation()


def _resize_tower(model: Any, size: Any) -> None:
    """Let a vision tower of timm take images of another size; None: the size it has."""
    if size is not None:
        model.visual.set_input_size(size)
        model.visual.preprocess_cfg["size"] = model.visual.image_size


def _cast(model: Any, precision: str) -> None:
    """Cast a model of this project to a precision as open_clip casts its own: with ``"fp16"`` and
    ``"bf16"`` norms stay float32, with ``"pure_fp16"`` and ``"pure_bf16"`` only the scalars of a
    hyperbolic CLIP."""
    from open_clip.model import convert_weights_to_lp, get_input_dtype
    from open_clip.transformer import LayerNormFp32

    dtype = get_input_dtype(precision)
    if dtype is None:
        return
    if not precision.startswith("pure") and not hasattr(model.visual, "trunk"):
        convert_weights_to_lp(model, dtype)
        return
    kept = model.in_float32() if hasattr(model, "in_float32") else set()
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_floating_point() and name not in kept:
            value.data = value.data.to(dtype)
    for module in model.modules():
        if isinstance(module, LayerNormFp32):
            module.float()


def _model_of_open_clip(
    name: str, folder: Path | None, config: Values, options: Plain
) -> tuple[Any, Any]:
    """Return a model of open_clip with random weights, and its tokenizer."""
    where = name if folder is None else f"local-dir:{folder.absolute()}"
    with _explained(name), hub_switch():
        create = require("open_clip", "clip").create_model
        model = create(where, None, load_weights=False, **options)
        return model, _tokenizer(name, folder, config)


def _language(pretrained: StrPath | None, load_weights: bool, content: Values) -> Language:
    """Return the templates and class words in the weights' record, or in the ``content`` of their
    file."""
    source = str(pretrained)
    # A release's record would need the network; a name with a suffix is a file's, not a record's.
    is_file = source.endswith((".safetensors", ".pth", ".pt", ".bin")) or "#sha256=" in source
    known = source.startswith("zoo:") or (load_weights and is_address(source) and not is_file)
    found = Language()
    if known:
        record = find(source)[1]
        found = Language(record.templates, record.classes)
    return found if found.templates or not content else language_of(content)


def image_size(name: str, **options: Any) -> int | tuple[int, int]:
    """Return the side, or height and width, of the images that a CLIP model takes, without building
    it. Of :func:`create_clip`'s arguments only the name and ``force_image_size`` count."""
    folder = config_folder(name) if is_repository(name) else None
    size = architecture(name, folder, options)["vision_cfg"]["image_size"]
    return size if isinstance(size, int) else tuple(size)


def architecture(name: str, folder: Path | None = None, options: Values | None = None) -> Plain:
    """Return the arguments of the model's class in :mod:`open_clip.model`, changed by ``options``
    of :func:`create_clip`."""
    options = options or {}
    if folder is not None:
        config = repository_config(folder)["model_cfg"]
    elif name in ARCHITECTURES:
        config = deepcopy(ARCHITECTURES[name])
        config |= {"geometry": options["geometry"]} if options.get("geometry") else {}
    else:
        pretrained_tags(name)  # This raises an error if the model does not exist.
        config = require("open_clip", "clip").get_model_config(name)
    if options.get("force_quick_gelu"):
        config["quick_gelu"] = True
    for option, (part, key) in RESIZING.items():
        if options.get(option) is not None:
            config[part][key] = options[option]
    if options.get("force_patch_dropout") is not None:
        config["vision_cfg"]["patch_dropout"] = options["force_patch_dropout"]
    return {
        **config,
        **{key: value for key, value in options.items() if key in _model_arguments(config)},
    }


def pixels_of(vision: Values) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of RGB from 0 to 1 for the ``vision_cfg`` of one of
    :data:`ARCHITECTURES`: ImageNet's for a ViT of timm, else OpenAI's. Weights may bring their
    own."""
    if "timm_model_name" in vision:
        return IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    return OPENAI_CLIP_MEAN, OPENAI_CLIP_STD


RESIZING = {
    "force_image_size": ("vision_cfg", "image_size"),
    "force_context_length": ("text_cfg", "context_length"),
}
"""Options of :func:`create_clip` that change a size -> (part, key) of that size in the config of an
architecture."""


def _model_class(config: Values) -> type[nn.Module]:
    open_clip = require("open_clip", "clip")
    if config.get("geometry"):
        from .hyperbolic import HyperbolicCLIP

        return HyperbolicCLIP
    custom = config.get("custom_text") or "hf_model_name" in config["text_cfg"]
    if custom and "multimodal_cfg" in config:
        return open_clip.CoCa
    return open_clip.CustomTextCLIP if custom else open_clip.CLIP


def _arguments(function: Callable[..., Any]) -> list[str]:
    known = inspect.signature(function).parameters
    return [
        name
        for name, about in known.items()
        if about.kind is not about.VAR_KEYWORD and name not in _NOT_OURS
    ]


def _model_arguments(config: Values) -> list[str]:
    """Return the names of the arguments that the model's class takes from options."""
    names = _arguments(_model_class(config))
    return [*names, *_OF_HYPERBOLIC] if config.get("geometry") else names


def _check_options(name: str, config: Values, options: Values, towers: bool) -> None:
    """Raise an error for options without effect; ``towers``: single towers may have own weights."""
    known = {*_OF_ARCHITECTURE, "precision", *_model_arguments(config)}
    if name not in ARCHITECTURES:
        known |= {*_arguments(require("open_clip", "clip").create_model), "pretrained_hf"}
    known -= set() if towers else {*_OF_TOWERS}
    wrong = [option for option in options if option not in known]
    if wrong:
        raise HypvisionError(
            f"The CLIP model '{name}' takes no option "
            f"'{wrong[0]}'.{did_you_mean(wrong[0], known, cutoff=0.8)} It takes: "
            f"{', '.join(sorted(known))}."
        )
    one_of(_PRECISIONS, precision=options.get("precision", "fp32"))


def _check_towers(name: str, config: Values) -> None:
    """Raise an error for towers that would take hours to build or more memory than there is."""
    numbers = 0.0
    for part in ("vision_cfg", "text_cfg"):
        tower = dict(
            width=0, context_length=77, vocab_size=49408, image_size=224, patch_size=16
        ) | dict(config[part])
        sizes = [
            tower[key]
            for key in ("width", "context_length", "vocab_size", "image_size", "patch_size")
        ]
        layers = tower.get("layers", 12)
        depths(**{f"The layers in {part} of the CLIP model '{name}'": layers})
        if (
            isinstance(layers, Real)
            and all(isinstance(size, Real) and float(size) >= 0 for size in sizes)
            and sizes[-1]
        ):
            width, *tokens, side, patch = map(float, sizes)
            numbers += width * (12 * float(layers) * width + sum(tokens) + (side / patch) ** 2)
    if not hasattr(os, "sysconf"):  # Windows does not tell its memory
        return
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 4 * numbers > there:
        raise HypvisionError(
            f"The CLIP model '{name}' has some {numbers:.1e} weights of 4 bytes, more than the "
            f"{there / 2**30:.0f} GiB of memory here. Correct width, layers and sizes in "
            "vision_cfg and text_cfg."
        )


def _with_needs(name: str, source: _Source, options: Values) -> Plain:
    """Return the options with those added that the weights need and that are not given."""
    found = dict(options)
    path = source.path
    if source.tag is not None:
        about = require("open_clip", "clip").get_pretrained_cfg(name, source.tag)
        found.setdefault("force_quick_gelu", bool(about.get("quick_gelu")))
        keys = ("mean", "std", "interpolation", "resize_mode", "fill_color")
        preprocessing = {key: about[key] for key in keys if about.get(key) is not None}
        preprocessing |= found.get("force_preprocess_cfg") or {}
        found["force_preprocess_cfg"] = preprocessing
    elif path is not None and not path.is_file():
        if _may_lack_quick_gelu(name, found):
            warnings.warn(
                f"The CLIP weights '{path}' are not here, so they cannot say whether they need "
                "QuickGELU, and GELU is taken. OpenAI's need it: name the model "
                f"'{name}-quickgelu'.",
                stacklevel=3,
            )
    elif path is not None and is_torchscript(path):  # OpenAI's original files are TorchScript.
        check_bounds(path)
        found.setdefault(
            "force_quick_gelu", any(each.endswith(".QuickGELU") for each in class_names(path))
        )
    return found


def _may_lack_quick_gelu(name: str, options: Values) -> bool:
    """Return whether a model has GELU while no option asks for an activation."""
    if "force_quick_gelu" in options or name in ARCHITECTURES:
        return False
    return not architecture(name, None, options).get("quick_gelu")


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn errors of open_clip about a model or its tokenizer into one sentence, and mute its log
    messages about weights that are not loaded."""
    root = logging.getLogger()
    level = logging.getLogger().level
    # transformers would ask whether to run a tokenizer's code; with no time to answer it refuses.
    waits = "transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE"
    with offering(), patch(waits, 0) if find_spec("transformers") else nullcontext():
        root.setLevel(logging.CRITICAL)
        try:
            yield
        except (OSError, RuntimeError, ImportError, LookupError, TypeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise HypvisionError(
                f"The CLIP model '{name}' or its tokenizer cannot be made: {reason}. If a file had "
                "to be downloaded, connect to the network once: it is kept."
            ) from error
        finally:
            root.setLevel(level)


def _text_length(config: Values) -> int:
    return config["text_cfg"].get("context_length", 77)


def tokenizer_of(config: Values, context_length: int | None = None, **options: Any) -> Tokenizer:
    """Return the tokenizer of a model of :data:`ARCHITECTURES`, from its config; ``options`` are
    arguments of open_clip's ``SimpleTokenizer``."""
    from .tokenizer import Tokenizer

    length = context_length or _text_length(config)
    return Tokenizer(length, ends=not config.get("box_scales"), **options)


def _tokenizer(name: str, folder: Path | None, config: Values) -> Callable[[list[str]], Tensor]:
    """Return open_clip's tokenizer for a model, with its text length."""
    open_clip = require("open_clip", "clip")
    if not name.startswith("hf-hub:"):
        where = name if folder is None else f"local-dir:{folder.absolute()}"
        return open_clip.get_tokenizer(where, context_length=_text_length(config))
    text = config["text_cfg"]
    options = dict(context_length=_text_length(config), **text.get("tokenizer_kwargs", {}))
    source = text.get("hf_tokenizer_name")
    if source:
        return open_clip.tokenizer.HFTokenizer(
            source, tokenizer_mode=text.get("tokenizer_mode"), **options
        )
    return open_clip.SimpleTokenizer(**options)


def pretrained_tags(name: str) -> list[str]:
    """Return the tags of the published weights of a CLIP model; an unknown model is an error."""
    open_clip = require("open_clip", "clip")
    known = open_clip.list_models()
    if name not in known:
        weights = [r.name for r in builtin_index().records.values() if r.task == "zero-shot"]
        hint = did_you_mean(name, [*weights, *known], cutoff=0.4)
        raise HypvisionError(
            f"There is no CLIP model '{name}'.{hint} open_clip.list_models() lists all."
        )
    return (
        [*PUBLISHED.get(name, {})]
        if name in ARCHITECTURES
        else open_clip.list_pretrained_tags_by_model(name)
    )


def build_model(record: Record, path: Path, overrides: Values) -> nn.Module:
    """Return the open_clip model of a zoo record of the task zero-shot, with weights from its
    verified file ``path`` and an attribute ``tokenizer``; :func:`hypvision.load` calls this.
    ``overrides`` are further arguments of :func:`create_clip`."""
    return with_tokenizer(record.model, path, overrides)


def with_tokenizer(name: str, source: StrPath, options: Values) -> nn.Module:
    """Return the open_clip model of :func:`create_clip`, with its tokenizer as ``tokenizer``."""
    bundle = create_clip(name, source, **options)
    bundle.model.__dict__["tokenizer"] = bundle.tokenizer
    return bundle.model


def is_clip(name: str) -> bool:
    """Return whether :func:`create_clip` knows a model of this name."""
    known = (
        find_spec("open_clip") is not None and name in require("open_clip", "clip").list_models()
    )
    return known or name in ARCHITECTURES or is_repository(name)


_CLIP = re.compile(r"clip\.(.+)")  # a name of a CLIP's weight in a checkpoint of hypvision


def clip_names(weights: Weights) -> StateDict:
    """Return weights by open_clip's names, from those of Hugging Face's ``CLIPModel`` or of the
    official MERU and HyCoCLIP; other weights stay as they are."""
    if is_official(weights):
        return from_official(weights)
    return from_hugging_face(weights) if is_hugging_face(weights) else dict(weights)


def read_clip(path: Path) -> StateDict:
    """Read the weights of a CLIP from a file of any origin, by the names of open_clip's
    ``CLIP``."""
    return clip_weights(read_file(path))


def clip_weights(content: Values) -> StateDict:
    """Return the weights of a CLIP in the content of a file of any origin, by the names of
    open_clip's ``CLIP``, and other weights in the file by their own names."""
    whole = network_weights(content, part=None)
    inside = {match[1]: whole[name] for name in whole if (match := _CLIP.fullmatch(name))}
    beside = {name: value for name, value in whole.items() if not _CLIP.fullmatch(name)}
    weights = {**inside, **beside} if inside else whole
    # Every CLIP has a weight of this name, whatever code saved it.
    return clip_names(without_prefix(("logit_scale",), weights))


def _load(model: Any, content: Values, path: Path, resize: bool) -> None:
    """Load the weights in a file's ``content``, of any origin, into a model; with ``resize`` their
    position embeddings are resized."""
    from open_clip import convert
    from open_clip.model import convert_to_custom_text_state_dict

    weights = convert.convert_state_dict(model, _of_family(model, content, path))
    if "positional_embedding" in weights and not hasattr(model, "positional_embedding"):
        weights = convert_to_custom_text_state_dict(weights)
    expected = model.state_dict()
    if "logit_bias" in expected:  # SigLIP's learned offset is 0 if the weights have none.
        weights.setdefault("logit_bias", torch.zeros(()))
    for name in expected.keys() & weights.keys() & {"logit_scale", "logit_bias"}:
        if weights[name].numel() == expected[name].numel():  # A scalar may be a vector of length 1.
            weights[name] = weights[name].reshape(expected[name].shape)
    if resize:
        _resize_positions(model, weights, expected)
    load_into(
        model,
        {name: value.float() if value.is_floating_point() else value for name,
        value in weights.items()},
        path, f"the CLIP model ({type(model).__name__})",
        _advice(expected, weights),
        extra=not hasattr(model, "family"),
        # A further weight in the file of a hyperbolic CLIP belongs to another geometry.
    )  # fmt: skip


def _of_family(model: Any, content: Values, path: Path) -> StateDict:
    """Return the weights in the content of a file, which must belong to the model's family; a
    normalisation that older files lack is added."""
    weights = clip_weights(content)
    family = getattr(model, "family", None)
    check_scalars(weights, family or "clip", path)
    if family == "clip":
        model.root = root_of(content, embedding_size(model), path)
    if family is not None:
        weights.pop("root", None)
        for name in PIXELS:  # files of older trainings lack the normalisation
            weights.setdefault(name, model.get_buffer(name))
    return weights


def _resize_positions(model: Any, weights: StateDict, expected: Weights) -> None:
    """Resize the position embeddings in weights to the model's, by open_clip's functions."""
    from open_clip.model import resize_pos_embed, resize_text_pos_embed

    for start, resize in (
        ("visual.", resize_pos_embed),
        ("", resize_text_pos_embed),
        ("text.", resize_text_pos_embed),
    ):
        name = f"{start}positional_embedding"
        grid = start == "visual."
        if _can_be_resized(weights.get(name), expected.get(name), grid=grid):
            resize(weights, model)


def _merge_lora(model: nn.Module, folder: StrPath) -> None:
    """Merge a LoRA whose names are those of open_clip's CLIP, or of transformers' ``CLIPModel``."""
    weights = dict(model.state_dict())
    try:
        weights = merged(weights, folder)
    except HypvisionError:
        # The LoRA may have Hugging Face's names, which only a plain CLIP can be converted to.
        if not isinstance(model, require("open_clip", "clip").CLIP):
            raise
        weights = from_hugging_face(merged(to_hugging_face(weights), folder))
    model.load_state_dict(weights)


def _advice(expected: Weights, given: Weights) -> str:
    """Return advice for weights of a CLIP that do not fit: options for another size, or another
    model."""
    found = []
    for option, tower in (("force_image_size", "visual."), ("force_context_length", "")):
        names = (f"{tower}positional_embedding", "text.positional_embedding")[: 2 - bool(tower)]
        for name in names:
            old = given.get(name)
            new = expected.get(name)
            if _can_be_resized(old, new, grid=bool(tower)):
                assert old is not None and new is not None
                sizes = [len(old), len(new)]
                if tower:
                    patch = expected["visual.conv1.weight"].shape[-1]
                    sizes = [patch * math.isqrt(size - 1) for size in sizes]
                found.append(f"{option}={sizes[0]} (as in the file) or {sizes[1]} (resized)")
    if found:
        return f"Give {' and '.join(found)}; in a command --clip NAME:FILE,{found[0].split()[0]}."
    return "Give the architecture that the checkpoint belongs to."


def _can_be_resized(old: Tensor | None, new: Tensor | None, grid: bool) -> bool:
    """Return whether two tables of position embeddings differ only in the number of positions; with
    ``grid`` the old one must have a class token and a square grid."""
    if (
        old is None
        or new is None
        or old.dim() != 2
        or old.shape[1:] != new.shape[1:]
        or len(old) == len(new)
    ):
        return False
    return len(old) > 1 and (not grid or math.isqrt(len(old) - 1) ** 2 == len(old) - 1)


def scripted(model: Any) -> nn.Module:
    """Return the TorchScript of a CLIP, which keeps the preprocessing of its images."""
    out: nn.Module = torch.jit.script(model)
    require("open_clip", "clip").model.set_model_preprocess_cfg(out, model.visual.preprocess_cfg)
    return out
