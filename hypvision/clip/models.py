"""CLIP models by name: open_clip's, those of this project, and files; with a clear word when weights cannot be fetched.

>>> clip = create_clip("ViT-B-16", "openai")            # open_clip's weights, QuickGELU as OpenAI trained them
>>> clip = create_clip("shapes-s8", "zoo:shapes-s8.captions")
>>> clip.model.encode_text(clip.tokenizer(["a cat"]))
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hypvision.checkpoints.match import load_into
from hypvision.checkpoints.read import network_weights, read_file
from hypvision.checkpoints.records import Record
from hypvision.checkpoints.sources import fetch, fetch_from_hub, find, hub_switch, is_address, resolve
from hypvision.clip.hugging_face import from_hugging_face, is_hugging_face
from hypvision.errors import HypvisionError, did_you_mean, require

__all__ = [
    "ARCHITECTURES",
    "CLIPBundle",
    "MEAN",
    "STD",
    "build_model",
    "clip_names",
    "create_clip",
    "expand_tokens",
    "is_clip",
    "pretrained_tags",
    "trim_tokens",
    "with_tokenizer",
]

MEAN = (122.7709383, 116.7460125, 104.09373615)
"""Of RGB from 0 to 255, as OpenAI's CLIP was trained."""
STD = (68.5005327, 66.6321579, 70.3231630)

ARCHITECTURES: dict[str, dict[str, Any]] = {
    # For the embedded shapes: 8.4 M parameters, three quarters of them in the table of words.
    "shapes-s8": dict(
        embed_dim=128,
        vision_cfg=dict(image_size=64, layers=6, width=128, patch_size=8, head_width=32),
        text_cfg=dict(context_length=77, vocab_size=49408, width=128, heads=4, layers=4),
    ),
    # For emoji: 10 M parameters. Patches of 16 make images of 64 pixels four times as cheap as those of 8.
    "emoji-s16": dict(
        embed_dim=128,
        vision_cfg=dict(image_size=64, layers=6, width=192, patch_size=16, head_width=32),
        text_cfg=dict(context_length=77, vocab_size=49408, width=128, heads=4, layers=4),
    ),
}
"""Architectures that open_clip does not have: arguments of :class:`open_clip.model.CLIP`."""


class CLIPBundle(NamedTuple):
    """A model and what goes with it.

    Attributes:
        model: an open_clip model.
        tokenizer: list of texts -> (T, L) int64.
        mean, std: normalisation of RGB pixels from 0 to 255.
    """

    model: nn.Module
    tokenizer: Callable[[list[str]], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def create_clip(
    name: str = "ViT-B-16", pretrained: str | Path | None = None, load_weights: bool = True, **options: Any
) -> CLIPBundle:
    """A CLIP model with its tokenizer.

    Args:
        name: of open_clip (``ViT-B-32``, ``ViT-B-16``, ``ViT-L-14``, ``ViT-L-14-336``, ``ViT-B-16-SigLIP``, ...) or of
            :data:`ARCHITECTURES`.
        pretrained: a tag of open_clip (``"openai"``), a checkpoint (a file, also one of Hugging Face's ``CLIPModel``;
            ``"zoo:NAME"``, ``"hf-hub:..."``, an address with its sum; see
            :func:`hypvision.checkpoints.sources.fetch`), or None for random weights.
        load_weights: False to make the network that these weights need, activation and normalisation too, without
            fetching them: for a checkpoint that holds them.
        options: for :func:`open_clip.create_model`. OpenAI's weights get ``force_quick_gelu=True`` by themselves.

    Raises:
        HypvisionError: unknown name or tag, a file that does not fit, weights that cannot be downloaded.
    """
    open_clip = require("open_clip", "clip")
    if not load_weights:
        if name not in ARCHITECTURES and pretrained in open_clip.list_pretrained_tags_by_model(name):
            options = {**_tag_options(name, pretrained), **options}
        pretrained = None
    if pretrained is not None and is_address(pretrained):
        pretrained = _from_zoo(name, str(pretrained))
    elif str(pretrained).startswith(("http://", "https://")):
        pretrained = fetch(pretrained)
    path = None if pretrained is None else Path(pretrained).expanduser()
    if path is not None and not path.is_absolute() and not path.exists():
        shipped = Path(__file__).parents[2] / path  # what ships with the repository, from any working directory
        path = shipped if shipped.is_file() else path
    is_file = path is not None and (path.suffix in (".pt", ".pth", ".safetensors", ".bin") or path.exists())
    if is_file and not path.is_file():
        raise HypvisionError(
            f"There are no CLIP weights '{pretrained}'. Give the path of a file, or a tag of open_clip."
        )
    if name in ARCHITECTURES:
        if pretrained is not None and not is_file:
            raise HypvisionError(
                f"The model '{name}' has no weights '{pretrained}'. Give the path of a file, or zoo:NAME."
            )
        model = open_clip.model.CLIP(**ARCHITECTURES[name])
        tokenizer = open_clip.SimpleTokenizer(context_length=model.context_length)
    else:
        tags = pretrained_tags(name)
        if pretrained is not None and not is_file and pretrained not in tags:
            raise HypvisionError(f"'{name}' has no weights '{pretrained}'. It has {', '.join(tags) or 'none'}.")
        given = None if is_file else pretrained
        if given is not None:
            options = {**_tag_options(name, pretrained), **options}
            path = _fetch_tag(name, pretrained)
        if path is not None:
            options = {"pretrained_hf": False, **options}  # no weights for the text tower alone
        try:
            with _quiet(), hub_switch():
                model = open_clip.create_model(name, given if path is None else None, **options)
                tokenizer = open_clip.get_tokenizer(name)
            if given is not None and path is not None:
                _load_tag(model, path)
        except (OSError, RuntimeError, ImportError) as error:
            raise HypvisionError(
                f"The weights or the tokenizer of '{name}' ({pretrained or 'random weights'}) cannot be fetched: "
                f"{str(error).splitlines()[0].rstrip('.')}. With a network they are downloaded once and kept. Without "
                "one, download them elsewhere and give the path of the file, or use 'shapes-s8', which ships."
            ) from error
    if is_file:
        _load(model, path)
    mean, std = getattr(model.visual, "image_mean", None), getattr(model.visual, "image_std", None)
    scale = tuple(255.0 * value for value in mean) if mean else MEAN
    return CLIPBundle(model.eval(), tokenizer, scale, tuple(255.0 * value for value in std) if std else STD)


def _tag_options(name: str, tag: str) -> dict[str, Any]:
    """What the weights of a tag of open_clip need of their model."""
    about = require("open_clip", "clip").get_pretrained_cfg(name, tag)
    preprocessing = {key: about[key] for key in ("mean", "std") if about.get(key)}
    return {"force_preprocess_cfg": preprocessing, "force_quick_gelu": tag == "openai"}


def _fetch_tag(name: str, tag: str) -> Path | None:
    """The file of a tag of open_clip by our own downloader, which has a deadline; None if the hub has none."""
    about = require("open_clip", "clip").get_pretrained_cfg(name, tag)
    repository, _, file = (about.get("hf_hub") or "").rpartition("/")
    stem = file.rpartition(".")[0]
    names = [f"{stem}.safetensors", file] if file else ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"]
    found = (fetch_from_hub(repository, each) for each in names if repository)
    return next((path for path in found if path is not None), None)


def pretrained_tags(name: str) -> list[str]:
    """open_clip's names of the weights of a CLIP model.

    Raises:
        HypvisionError: there is no such model.
    """
    open_clip = require("open_clip", "clip")
    known = [*open_clip.list_models(), *ARCHITECTURES]
    if name not in known:
        hint = did_you_mean(name, known, cutoff=0.4)
        raise HypvisionError(f"There is no CLIP model '{name}'.{hint} open_clip.list_models() lists all.")
    return open_clip.list_pretrained_tags_by_model(name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without open_clip's words on the root logger about weights that are not loaded, or could not be: we say it."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        root.setLevel(before)


def _from_zoo(name: str, address: str) -> Path:
    """The verified file of the zoo's weights for this model."""
    index, record = find(address)
    if record.task != "zero-shot" or record.model != name:
        raise HypvisionError(
            f"'{address}' are weights of '{record.model}' ({record.task}), not of the CLIP model '{name}'. "
            "hypvision zoo list --task zero-shot lists those of CLIP models."
        )
    return resolve(record, index)


def build_model(record: Record, path: Path, overrides: Mapping[str, Any]) -> nn.Module:
    """The open_clip model of a zoo record, with its ``tokenizer``; for :func:`hypvision.load`.

    Args:
        record: of the task zero-shot.
        path: its verified file.
        overrides: further arguments of :func:`create_clip`.
    """
    return with_tokenizer(record.model, path, overrides)


def with_tokenizer(name: str, source: str | Path, options: Mapping[str, Any]) -> nn.Module:
    """The open_clip model of :func:`create_clip`, with its ``tokenizer``."""
    bundle = create_clip(name, source, **options)
    bundle.model.tokenizer = bundle.tokenizer
    return bundle.model


def is_clip(name: str) -> bool:
    """Whether :func:`create_clip` knows a model of this name."""
    if name in ARCHITECTURES:
        return True
    return find_spec("open_clip") is not None and name in require("open_clip", "clip").list_models()


_MOST_WORDS = 2**20  # twenty times those of CLIP
_CLIP = re.compile(r"clip\.(.+)")  # a training's names


def clip_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a CLIP model by open_clip's names, from those of Hugging Face's ``CLIPModel`` too, and with a whole
    table of words; others stay as they are."""
    weights = expand_tokens(weights)
    return from_hugging_face(weights) if is_hugging_face(weights) else weights


def _load(model: nn.Module, path: Path) -> None:
    weights = clip_names(network_weights(read_file(path), _CLIP))
    load_into(
        model, {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}, path,
        f"the CLIP model ({type(model).__name__})", "Give the architecture that it belongs to.", extra=True,
    )  # fmt: skip


def _load_tag(model: nn.Module, path: Path) -> None:
    """The weights of a tag, brought to the model's names and sizes by open_clip's own steps."""
    from open_clip import convert
    from open_clip.model import convert_to_custom_text_state_dict, resize_pos_embed, resize_text_pos_embed

    weights = network_weights(read_file(path), part=None)
    if hasattr(convert, "convert_state_dict"):  # not in the oldest versions that we take
        weights = convert.convert_state_dict(model, weights)
    if "positional_embedding" in weights and not hasattr(model, "positional_embedding"):
        weights = convert_to_custom_text_state_dict(weights)
    for name in ("logit_scale", "logit_bias"):  # a number, or a vector of one
        expected = getattr(model, name, None)
        if expected is not None:
            weights[name] = weights.get(name, torch.zeros_like(expected)).reshape(expected.shape)
    resize_pos_embed(weights, model)
    resize_text_pos_embed(weights, model)
    load_into(
        model, weights, path, f"the CLIP model ({type(model).__name__})", "Choose another of its tags.", extra=True
    )


def trim_tokens(weights: Mapping[str, Tensor], used: Tensor) -> dict[str, Tensor]:
    """A smaller state dict: of the table of words only the rows ``used`` (int64), for a model that saw no others."""
    found = dict(weights)
    table = found.pop("token_embedding.weight")
    found["token_embedding.rows"], found["token_embedding.index"] = table[used].contiguous(), used
    found["token_embedding.size"] = torch.tensor(len(table))
    return found


def expand_tokens(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`trim_tokens`; rows of words never seen are zero.

    Raises:
        HypvisionError: the table of words is not one that :func:`trim_tokens` has made.
    """
    expanded = dict(weights)
    rows = expanded.pop("token_embedding.rows", None)
    if rows is None:
        return expanded
    index, size = (expanded.pop(f"token_embedding.{part}", torch.empty(0)) for part in ("index", "size"))
    whole = not any(x.is_floating_point() or x.is_complex() for x in (index, size)) and size.numel() == 1
    count = int(size) if whole else 0
    fits = rows.dim() == 2 and index.shape == rows.shape[:1] and 0 < count <= _MOST_WORDS
    if not fits or ((index < 0) | (index >= count)).any():
        raise HypvisionError(
            "The table of words in these CLIP weights is damaged: its rows, their numbers and its size do not belong "
            "together. Download or copy the file again."
        )
    expanded["token_embedding.weight"] = rows.new_zeros(count, rows.shape[1]).index_copy(0, index.long(), rows)
    return expanded
