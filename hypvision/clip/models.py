"""CLIP models by name: open_clip's, those of a repository or folder, those of this project, and files.

>>> clip = create_clip("ViT-B-16", "openai")            # open_clip's weights, QuickGELU as OpenAI trained them
>>> clip = create_clip("hf-hub:USER/REPO")              # model, weights and tokenizer; or local-dir:PATH
>>> clip = create_clip("shapes-s8", "zoo:shapes-s8.captions")
>>> clip.model.encode_text(clip.tokenizer(["a cat"]))

What weights need of their model and of its input (activation, normalisation, resizing, length of texts) goes with them,
by this one door; :func:`hypvision.clip.views.view_of` tells how the model sees images.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hypvision.checkpoints.match import load_into
from hypvision.checkpoints.read import network_weights, read_file
from hypvision.checkpoints.records import Record
from hypvision.checkpoints.sources import fetch, fetch_from_hub, find, hub_switch, is_address, offline, resolve
from hypvision.checkpoints.torchscript import class_names, is_torchscript
from hypvision.clip.hugging_face import from_hugging_face, is_hugging_face
from hypvision.errors import HypvisionError, did_you_mean, require
from hypvision.files import read_json

__all__ = [
    "ARCHITECTURES",
    "CLIPBundle",
    "MEAN",
    "STD",
    "build_model",
    "clip_names",
    "create_clip",
    "expand_tokens",
    "image_size",
    "is_clip",
    "is_repository",
    "parse_name",
    "pretrained_tags",
    "trim_tokens",
    "with_tokenizer",
]

MEAN = (122.7709383, 116.7460125, 104.09373615)
"""Of RGB from 0 to 255, as OpenAI's CLIP was trained."""
STD = (68.5005327, 66.6321579, 70.3231630)

_CONFIG = "open_clip_config.json"
_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")  # of a repository, the first that is there
_FOLDER_WEIGHTS = (
    *_WEIGHTS, "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.pth", "model.safetensors",
    "pytorch_model.bin", "pytorch_model.pth", "model.pth",
)  # fmt: skip
_PRECISIONS = ("fp32", "fp16", "bf16", "pure_fp16", "pure_bf16")
# Options of open_clip.create_model that change the architecture alone, and so are for this project's models, too
_OF_ARCHITECTURE = (
    "force_quick_gelu", "force_patch_dropout", "force_image_size", "force_preprocess_cfg", "force_context_length",
)  # fmt: skip
_NOT_OURS = ("model_name", "pretrained", "load_weights", "require_pretrained", "weights_only")  # decided here

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
            :data:`ARCHITECTURES`; or where a model of open_clip's form lies with its config and its weights:
            ``hf-hub:USER/REPO``, ``local-dir:PATH``.
        pretrained: a tag of open_clip (``"openai"``), a checkpoint (a file, also OpenAI's own and those of Hugging
            Face's ``CLIPModel``; ``"zoo:NAME"``, a release, an address with its sum; see
            :func:`hypvision.checkpoints.sources.fetch`), or None for random weights; of a repository or folder None for
            its own.
        load_weights: False to make the network that these weights need, activation and normalisation too, without
            fetching them: for a checkpoint that holds them.
        options: for :func:`open_clip.create_model`, of the models of this project those that change the architecture
            (``force_quick_gelu``, ``force_image_size``, ``force_context_length``, ...). What the weights of a tag need
            is set by itself: QuickGELU, mean, std, interpolation and resizing; so is QuickGELU for OpenAI's own files.
            Other files do not say their activation: give ``force_quick_gelu=True`` or a name such as
            ``ViT-B-16-quickgelu`` if they need it.

    Raises:
        HypvisionError: unknown name, tag or option, a file that does not fit, weights that cannot be downloaded.
    """
    open_clip = require("open_clip", "clip")
    from open_clip.model import set_model_preprocess_cfg
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    folder = _config_folder(name) if is_repository(name) else None
    asked = {option for option, value in options.items() if value is not None}
    tag = str(pretrained) if folder is None and pretrained in pretrained_tags(name) else None
    path = None if tag or pretrained is None else _file(name, pretrained, load_weights)
    options = _with_needs(name, tag, path, options)
    config = _architecture(name, folder, options)
    _check_options(name, config, options)
    if load_weights and tag is not None:
        path = _fetch_weights(open_clip.get_pretrained_cfg(name, tag)["hf_hub"], f"{name}:{tag}")
    elif load_weights and folder is not None and path is None:
        path = _repository_weights(name, folder)
    path = path if load_weights else None
    # timm's towers are resized when their weights are in them, as open_clip does it.
    is_timm = path is not None and "timm_model_name" in config["vision_cfg"]
    size = options.pop("force_image_size", None) if is_timm else None
    if name in ARCHITECTURES:
        model = open_clip.model.CLIP(**config)
        about = dict(asdict(PreprocessCfg()), size=config["vision_cfg"]["image_size"])
        set_model_preprocess_cfg(model, merge_preprocess_dict(about, options.get("force_preprocess_cfg") or {}))
        tokenizer = open_clip.SimpleTokenizer(context_length=_text_length(config))
    else:
        if path is not None or not load_weights:
            options = {"pretrained_text": False, **options}  # no weights for the text tower alone
        with _told(name), _quiet(), hub_switch():
            where = name if folder is None else f"local-dir:{folder.absolute()}"
            model = open_clip.create_model(where, None, load_weights=False, **options)
            tokenizer = _tokenizer(name, folder, config)
    if path is not None:
        _load(model, path, resize=tag is not None or not {*_RESIZING, "vision_cfg", "text_cfg"}.isdisjoint(asked))
    if size is not None:
        model.visual.set_input_size(size)
        model.visual.preprocess_cfg["size"] = model.visual.image_size
    mean, std = (tuple(255.0 * value for value in model.visual.preprocess_cfg[key]) for key in ("mean", "std"))
    return CLIPBundle(model.eval(), tokenizer, mean, std)


# What is asked for


def is_repository(name: str) -> bool:
    """Whether the name of a CLIP model says where it lies, with its config and its weights."""
    return name.startswith(("hf-hub:", "local-dir:"))


def parse_name(text: str) -> tuple[str, str | None]:
    """``NAME[:WEIGHTS]`` of a command line as the name of a model and what to load into it."""
    if text.startswith("local-dir:") and Path(text.removeprefix("local-dir:")).expanduser().is_dir():
        return text, None  # whatever is in its path
    scheme = next((scheme for scheme in ("hf-hub:", "local-dir:") if text.startswith(scheme)), "")
    name, _, weights = text.removeprefix(scheme).partition(":")
    return scheme + name, weights or None


def image_size(name: str, **options: Any) -> int | tuple[int, int]:
    """Side, or height and width, of the images that a CLIP model takes; it is not made. Arguments as of
    :func:`create_clip`, of which only the name and ``force_image_size`` count."""
    folder = _config_folder(name) if is_repository(name) else None
    size = _architecture(name, folder, options)["vision_cfg"]["image_size"]
    return size if isinstance(size, int) else tuple(size)


def _architecture(name: str, folder: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the classes of :mod:`open_clip.model`, with the options in them."""
    if folder is not None:
        config = _repository_config(folder)["model_cfg"]
    elif name in ARCHITECTURES:
        config = deepcopy(ARCHITECTURES[name])
    else:
        pretrained_tags(name)  # whether there is such a model
        config = require("open_clip", "clip").get_model_config(name)
    if options.get("force_quick_gelu"):
        config["quick_gelu"] = True
    for option, (part, key) in _RESIZING.items():
        if options.get(option) is not None:
            config[part][key] = options[option]
    if options.get("force_patch_dropout") is not None:
        config["vision_cfg"]["patch_dropout"] = options["force_patch_dropout"]
    return {**config, **{key: value for key, value in options.items() if key in _arguments(_model_class(config))}}


_RESIZING = {"force_image_size": ("vision_cfg", "image_size"), "force_context_length": ("text_cfg", "context_length")}


def _model_class(config: Mapping[str, Any]) -> type[nn.Module]:
    open_clip = require("open_clip", "clip")
    custom = config.get("custom_text") or "hf_model_name" in config["text_cfg"]
    if custom and "multimodal_cfg" in config:
        return open_clip.CoCa
    return open_clip.CustomTextCLIP if custom else open_clip.CLIP


def _arguments(function: Callable[..., Any]) -> list[str]:
    return [
        name
        for name, about in inspect.signature(function).parameters.items()
        if about.kind is not about.VAR_KEYWORD and name not in ("cast_dtype", *_NOT_OURS)
    ]


def _check_options(name: str, config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse options that would change nothing."""
    known = [*_OF_ARCHITECTURE, *_arguments(_model_class(config))]
    if name not in ARCHITECTURES:
        known += [*_arguments(require("open_clip", "clip").create_model), "pretrained_hf"]
    if wrong := [option for option in options if option not in known]:
        known = sorted(set(known))
        raise HypvisionError(
            f"The CLIP model '{name}' takes no option '{wrong[0]}'.{did_you_mean(wrong[0], known)} It takes: "
            f"{', '.join(known)}."
        )
    if (precision := options.get("precision", "fp32")) not in _PRECISIONS:
        raise HypvisionError(f"precision={precision!r} is none of {', '.join(_PRECISIONS)}.")


def _with_needs(name: str, tag: str | None, path: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, and what the weights need of their model where the options do not say otherwise."""
    found = dict(options)
    if tag is not None:
        open_clip = require("open_clip", "clip")
        about = open_clip.get_pretrained_cfg(name, tag)
        about = {key: about[key] for key in ("mean", "std", "interpolation", "resize_mode", "fill_color", "quick_gelu")
                 if about.get(key) is not None}  # fmt: skip
        found.setdefault("force_quick_gelu", about.pop("quick_gelu", False))
        found["force_preprocess_cfg"] = {**about, **(found.get("force_preprocess_cfg") or {})}
    elif path is not None and not path.is_file() and "force_quick_gelu" not in found and name not in ARCHITECTURES:
        if not _architecture(name, None, found).get("quick_gelu"):
            warnings.warn(
                f"The CLIP weights '{path}' are not here, so they cannot say whether they need QuickGELU, and GELU is "
                f"taken. OpenAI's need it: name the model '{name}-quickgelu'.",
                stacklevel=3,
            )
    elif path is not None and is_torchscript(path):  # as OpenAI published them: they say it
        found.setdefault("force_quick_gelu", any(each.endswith(".QuickGELU") for each in class_names(path)))
    return found


# Where it lies


def _file(name: str, pretrained: str | Path, needed: bool) -> Path:
    """The file of weights that are no tag; it may be missing if it is not needed."""
    text = str(pretrained)
    if is_address(text):
        return _from_zoo(name, text) if needed else Path(text)
    if text.startswith(("http://", "https://")):
        return fetch(text) if needed else Path(text)
    path = Path(text).expanduser()
    if not path.is_absolute() and not path.exists():
        shipped = Path(__file__).parents[2] / path  # what ships with the repository, from any working directory
        path = shipped if shipped.is_file() else path
    if path.is_file():
        return path
    if path.suffix not in (".pt", ".pth", ".safetensors", ".bin") and not path.exists():
        tags = "its own" if is_repository(name) else ", ".join(pretrained_tags(name)) or "none"
        raise HypvisionError(f"'{name}' has no weights '{pretrained}'. It has {tags}; or give the path of a file.")
    if needed:
        raise HypvisionError(
            f"There are no CLIP weights '{pretrained}'. Give the path of a file, or a tag of open_clip."
        )
    return path


def _config_folder(name: str) -> Path:
    """The folder on this machine that has the config of a repository or folder of open_clip's form."""
    scheme, _, place = name.partition(":")
    if scheme == "local-dir":
        folder = Path(place).expanduser()
        if not (folder / _CONFIG).is_file():
            what = f"has no {_CONFIG}" if folder.is_dir() else "is no folder"
            raise HypvisionError(
                f"The CLIP model '{name}' cannot be read: '{folder}' {what}. Give a folder with {_CONFIG} and weights."
            )
        return folder
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", place):
        raise HypvisionError(f"'{name}' is not hf-hub:USER/REPO.")
    if (found := fetch_from_hub(place, _CONFIG)) is None:
        raise HypvisionError(_not_there(name, place, [_CONFIG]))
    return found.parent


def _repository_config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    try:
        found = read_json(path)
        parts = [found["model_cfg"], *(found["model_cfg"][key] for key in ("vision_cfg", "text_cfg"))]
        whole = all(isinstance(part, dict) for part in parts)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise HypvisionError(f"'{path}' describes no model of open_clip ({error!r}).") from error
    if not whole or "trust_remote_code" in str(found):  # which would run code of the repository
        raise HypvisionError(f"'{path}' was refused: a config of open_clip has dicts of plain settings.")
    return found


def _repository_weights(name: str, folder: Path) -> Path:
    scheme, _, place = name.partition(":")
    if scheme == "hf-hub":
        return _fetch_weights(f"{place}/", name)
    there = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pth", ".pt"))
    known = [folder / file for file in _FOLDER_WEIGHTS if folder / file in there]
    if not known and len(there) != 1:
        raise HypvisionError(
            f"'{folder}' has {len(there)} files of weights, none of them named {_WEIGHTS[0]}. Name the one to take so, "
            "or give it as the weights."
        )
    return (known or there)[0]


def _fetch_weights(place: str, name: str) -> Path:
    """A file ``USER/REPO/FILE`` by our own downloader, which has a deadline; without FILE that of open_clip's form."""
    repository, _, file = place.rpartition("/")
    files = [f"{file.rpartition('.')[0]}.safetensors", file] if file else [*_WEIGHTS]
    found = next((path for each in files if (path := fetch_from_hub(repository, each)) is not None), None)
    if found is None:
        raise HypvisionError(_not_there(name, repository, files))
    return found


def _not_there(name: str, repository: str, files: list[str]) -> str:
    listed = " or ".join(files)
    if offline():
        return (
            f"The CLIP model '{name}' cannot be fetched: {listed} of '{repository}' is not on this machine, and "
            f"HYPVISION_OFFLINE or HF_HUB_OFFLINE is set. With a network it is downloaded once and kept. Without one, "
            f"bring the repository here (hf download {repository} --local-dir DIR) and give local-dir:DIR or the path "
            "of a file, or use 'shapes-s8', which ships."
        )
    return f"The CLIP model '{name}' cannot be fetched: the repository '{repository}' has no {listed}."


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Say in one sentence why open_clip cannot make a model or its tokenizer."""
    try:
        yield
    except (OSError, RuntimeError, ImportError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise HypvisionError(
            f"The CLIP model '{name}' or its tokenizer cannot be made: {reason}. If a file was to be fetched: with a "
            "network it is downloaded once and kept; without one, 'shapes-s8' ships."
        ) from error


def _text_length(config: Mapping[str, Any]) -> int:
    return config["text_cfg"].get("context_length", 77)


def _tokenizer(name: str, folder: Path | None, config: Mapping[str, Any]) -> Callable[[list[str]], Tensor]:
    """open_clip's tokenizer of a model, with the length of its texts."""
    open_clip = require("open_clip", "clip")
    if not name.startswith("hf-hub:"):
        where = name if folder is None else f"local-dir:{folder.absolute()}"
        return open_clip.get_tokenizer(where, context_length=_text_length(config))
    text = config["text_cfg"]
    options = dict(context_length=_text_length(config), **text.get("tokenizer_kwargs", {}))
    if source := text.get("hf_tokenizer_name"):
        return open_clip.tokenizer.HFTokenizer(source, tokenizer_mode=text.get("tokenizer_mode"), **options)
    return open_clip.SimpleTokenizer(**options)


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
    try:
        index, record = find(address)
    except HypvisionError as error:
        if not address.startswith("hf-hub:"):
            raise
        raise HypvisionError(
            f"{error} If it is a repository of open_clip's, it is the name of the model: '{address}' in place of "
            f"'{name}'."
        ) from error
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
    return is_repository(name) or (
        find_spec("open_clip") is not None and name in require("open_clip", "clip").list_models()
    )


_MOST_WORDS = 2**20  # twenty times those of CLIP
_CLIP = re.compile(r"clip\.(.+)")  # a training's names


def clip_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a CLIP model by open_clip's names, from those of Hugging Face's ``CLIPModel`` too, and with a whole
    table of words; others stay as they are."""
    weights = expand_tokens(weights)
    return from_hugging_face(weights) if is_hugging_face(weights) else weights


def _load(model: nn.Module, path: Path, resize: bool) -> None:
    """Weights of any origin, brought to the model's names by open_clip's own steps; ``resize``: and to its sizes."""
    from open_clip import convert
    from open_clip.model import convert_to_custom_text_state_dict, resize_pos_embed, resize_text_pos_embed

    weights = convert.convert_state_dict(model, clip_names(network_weights(read_file(path), _CLIP)))
    if "positional_embedding" in weights and not hasattr(model, "positional_embedding"):
        weights = convert_to_custom_text_state_dict(weights)
    expected = model.state_dict()
    if "logit_bias" in expected:  # SigLIP's, which others begin with 0
        weights.setdefault("logit_bias", torch.zeros(()))
    for name in ("logit_scale", "logit_bias"):  # a number, or a vector of one
        if name in weights and name in expected and weights[name].numel() == expected[name].numel():
            weights[name] = weights[name].reshape(expected[name].shape)
    for name in ("visual.positional_embedding", "positional_embedding", "text.positional_embedding"):
        if resize and _can_be_resized(weights.get(name), expected.get(name), grid=name.startswith("visual.")):
            (resize_pos_embed if name.startswith("visual.") else resize_text_pos_embed)(weights, model)
    load_into(
        model, {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}, path,
        f"the CLIP model ({type(model).__name__})", "Give the architecture that it belongs to.", extra=True,
    )  # fmt: skip


def _can_be_resized(old: Tensor | None, new: Tensor | None, grid: bool) -> bool:
    """Whether positions of a width are there in another number; ``grid``: those of a class token and of a square."""
    if old is None or new is None or old.dim() != 2 or old.shape[1:] != new.shape[1:] or len(old) == len(new):
        return False
    return len(old) > 1 and (not grid or math.isqrt(len(old) - 1) ** 2 == len(old) - 1)


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
