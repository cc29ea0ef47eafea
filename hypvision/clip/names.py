"""The meaning of ``NAME[:WEIGHTS]`` in ``--clip``, which is the same in every command.

>>> create_clip(**clip_options("ViT-B-16:openai"))        # open_clip's, with a tag or a file
>>> create_clip(**clip_options("meru-vit-s-16:redcaps"))  # MERU, HyCoCLIP and their baselines
>>> create_clip(**clip_options("emoji-s16.captions"))     # of the zoo; or zoo:NAME
>>> create_clip(**clip_options("hf-hub:USER/REPO"))       # or local-dir:PATH
>>> create_clip(**clip_options("meru_vit_s.pth"))         # a file, whose sizes tell the network
>>> create_clip(**clip_options("ViT-B-16:clip.pth,force_image_size=384"))  # with its options
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.sources import find
from hypvision.checkpoints.types import Weights
from hypvision.io import HypvisionError, Plain, Values, refuse, require
from hypvision.io.records import parse_arguments

from .hyperbolic_checkpoint import family_of, family_of_config, variant
from .locate import is_repository, offering
from .models import ARCHITECTURES, architecture, pretrained_tags, read_clip


def parse_name(text: str) -> tuple[str, str | None]:
    """Split ``NAME[:WEIGHTS]`` of a command line into model name and weights."""
    if (
        text.startswith("local-dir:")
        and Path(text.removeprefix("local-dir:")).expanduser().is_dir()
    ):
        return text, None  # A path may contain colons, so it is not split.
    scheme = next((scheme for scheme in ("hf-hub:", "local-dir:") if text.startswith(scheme)), "")
    name, _, weights = text.removeprefix(scheme).partition(":")
    return scheme + name, weights or None


def clip_options(text: str) -> Plain:
    """Return the arguments of :func:`~hypvision.clip.models.create_clip` for
    ``NAME[:WEIGHTS][,OPTION=VALUE...]``.

    ``NAME:none`` means random weights. Without WEIGHTS, NAME means the weights of that repository,
    folder, record or file, or the only published weights of that network.
    """
    text, *given = re.split(r",(?=[a-z_]+=)", text)
    return {**_named(text), **parse_arguments(given, "--clip NAME:WEIGHTS,KEY=VALUE")}


def _named(text: str) -> Plain:
    """Return the arguments of :func:`~hypvision.clip.models.create_clip` for ``NAME[:WEIGHTS]``."""
    if text.startswith(("zoo:", "file:")) or text in builtin_index().records:
        return _of_record(text)
    path = Path(text).expanduser()
    if path.suffix and path.is_file():
        return dict(name=_network_of(path), pretrained=str(path))
    name, weights = parse_name(text)
    if is_repository(name):
        return (
            dict(name=name, load_weights=False)
            if weights == "none"
            else dict(name=name, pretrained=weights)
        )
    if weights is None:
        weights = _only_weights(name)
    return dict(name=name, pretrained=None if weights == "none" else weights)


def _of_record(text: str) -> Plain:
    """Return the arguments for a record's name, with or without ``zoo:``."""
    _, record = find(text)
    if record.task != "zero-shot":
        raise HypvisionError(
            f"'{text}' are weights of '{record.model}' ({record.task}), not of a CLIP model. "
            "`hypvision zoo list --task zero-shot` lists weights of CLIP models."
        )
    return dict(name=record.model, pretrained=text if ":" in text else f"zoo:{text}")


def _only_weights(name: str) -> str:
    with offering():
        tags = pretrained_tags(name)
    records = builtin_index().select(task="zero-shot")
    known = [f"zoo:{record.name}" for record in records if record.model == name] + tags
    refuse(
        (
            not known,
            f"'{name}' has no published weights. Give a file: --clip {name}:FILE.",
        ),
        (
            len(known) > 1,
            f"Say which weights of '{name}' to use: --clip {name}:TAG, with one of "
            f"{', '.join(known)}.",
        ),
    )
    return known[0]


def _network_of(path: Path) -> str:
    """Return the name of the network to which the sizes in a file belong. The number of heads and
    the activation are not in the file, so they may differ."""
    weights = read_clip(path)
    if "visual.trunk.norm.weight" in weights and "logit_scale" in weights:
        return variant(weights)[0]
    found = _sizes(weights)
    known = sorted(require("open_clip", "clip").list_models(), key=len)
    for name in dict.fromkeys([*ARCHITECTURES, *known]):
        config = architecture(name)
        # The tables of a hyperbolic CLIP have the sizes of its baseline's, so the family must agree
        # too.
        same = family_of_config(config) == family_of(weights)
        if found is not None and same and _expected(config) == found:
            return name
    raise HypvisionError(
        f"'{path}' does not tell which CLIP model it belongs to: its sizes fit neither a CLIP of "
        "hypvision nor a plain ViT of open_clip. Name the model: --clip NAME:FILE."
    )


_TABLES = (
    "visual.conv1.weight", "visual.positional_embedding", "token_embedding.weight",
    "positional_embedding", "text_projection",
)  # fmt: skip


def _sizes(weights: Weights) -> list[Any] | None:
    """Return the shapes of the tables of a CLIP with a ViT, and the numbers of its image and text
    blocks; None for any other model."""
    if not all(name in weights for name in _TABLES):
        return None
    names = [name.partition("transformer.resblocks.") for name in weights]
    image, text = ({rest.partition(".")[0] for start, _, rest in names if rest and start == tower}
                   for tower in ("visual.", ""))  # fmt: skip
    return [*(tuple(weights[name].shape) for name in _TABLES), len(image), len(text)]


def _expected(config: Values) -> list[Any] | None:
    """Return what :func:`_sizes` returns for the weights of a model with this config."""
    vision = config["vision_cfg"]
    text = config["text_cfg"]
    size = vision.get("image_size", 224)
    patch = vision.get("patch_size", 16)
    layers = vision.get("layers", 12)
    whole = (
        all(isinstance(number, int) for number in (size, patch, layers))
        and layers
        and "layers" in text
    )
    if (
        not whole
        or config.get("custom_text")
        or "timm_model_name" in vision
        or "hf_model_name" in text
    ):
        return None
    width = text.get("width", 512)
    words = text.get("vocab_size", 49408)
    length = text.get("context_length", 77)
    own = vision.get("width", 768)
    tables = (
        (own, 3, patch, patch),
        ((size // patch) ** 2 + 1, own),
        (words, width),
        (length, width),
    )
    return [*tables, (width, config["embed_dim"]), layers, text["layers"]]
