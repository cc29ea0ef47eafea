"""Names of this project's CLIP models in open_clip.

>>> import open_clip
>>> import hypvision.clip
>>> model, _, transform = open_clip.create_model_and_transforms("meru-vit-s-16", "redcaps")

open_clip's registry holds sizes for its own classes, whose embeddings lie on a sphere. So its
``list_models`` adds the names of :data:`~hypvision.clip.models.ARCHITECTURES`; its ``create_model``
passes them on to :func:`~hypvision.clip.models.create_clip`, and returns, for example, a
:class:`~hypvision.clip.hyperbolic.HyperbolicCLIP` with its curvature; ``get_tokenizer`` returns
the tokenizer of these models; and ``list_pretrained_tags_by_model`` names their weights (not
``list_pretrained``, whose rows are keys of open_clip's table of addresses). Arguments of open_clip
that cannot apply to these models are an error, unless they change nothing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

from torch import nn

from hypvision.checkpoints.index import builtin_index
from hypvision.io import HypvisionError, Plain

from .hyperbolic_checkpoint import PUBLISHED
from .models import ARCHITECTURES, create_clip, scripted, tokenizer_of

# Arguments of open_clip that change nothing here: hypvision's reader runs no code of a file, files
# lie in its own cache, and no text tower here is one of Hugging Face with weights of its own.
_HARMLESS = ("cache_dir", "weights_only", "load_weights_only", "pretrained_text", "pretrained_hf")

# argument of open_clip that would change the model -> why ours refuses it
_REFUSED = {
    "force_custom_text": "its weights have the names of open_clip's CLIP, whose text tower is no "
    "module of its own",
    "pretrained_image_path": "a file has the weights of both towers. Load those of one tower with "
    "model.visual.load_state_dict(...)",
    "pretrained_text_path": "a file has the weights of both towers. Load those of one tower with "
    "model.load_state_dict(..., strict=False)",
    "pretrained_image": "its ViT has the positions and heads of MoCo v3, which timm's weights do "
    "not fit",
}
_OF_HYPERBOLIC = {
    "jit": "TorchScript cannot compile a hyperbolic CLIP. Use torch.compile",
    "init_logit_bias": "its logits have no bias: SigLIP's loss takes products of unit vectors",
    "nonscalar_logit_scale": "its logit scale is a scalar, as in the official files",
}


def register() -> None:
    """Make the names known to open_clip: at once, or when open_clip is imported."""
    if "open_clip" in sys.modules:
        _install(sys.modules["open_clip"])
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported(MetaPathFinder):
    """An import hook that calls :func:`_install` after the first import of open_clip."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> ModuleSpec | None:
        if name != "open_clip":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            _install(module)

        loader.exec_module = exec_module
        return spec


def _install(module: Any) -> None:
    factory = module.factory
    plain = factory.create_model
    parameters = inspect.signature(plain)

    @wraps(plain)
    def create_model(model_name: str, *given: Any, **options: Any) -> nn.Module:
        if model_name not in ARCHITECTURES:
            made: nn.Module = plain(model_name, *given, **options)
            return made
        asked = parameters.bind(model_name, *given, **options).arguments
        asked |= asked.pop("model_kwargs", {})
        return _ours({name: value for name, value in asked.items() if not _is_default(name, value)})

    def _is_default(name: str, value: Any) -> bool:
        known = parameters.parameters.get(name)
        return known is not None and (value is None or value == known.default or value == {})

    plain_tokenizer = factory.get_tokenizer
    of_tokenizer = inspect.signature(module.SimpleTokenizer).parameters

    @wraps(plain_tokenizer)
    def get_tokenizer(
        model_name: str = "",
        context_length: int | None = None,
        cache_dir: str | None = None,
        **options: Any,
    ) -> Any:
        if model_name not in ARCHITECTURES:
            return plain_tokenizer(model_name, context_length, cache_dir, **options)
        wrong = [option for option in options if option not in of_tokenizer]
        if wrong:
            raise HypvisionError(
                f"The tokenizer of the CLIP model '{model_name}' takes no option '{wrong[0]}'. It "
                f"takes: {', '.join(of_tokenizer)}."
            )
        return tokenizer_of(ARCHITECTURES[model_name], context_length, **options)

    plain_list = factory.list_models

    @wraps(plain_list)
    def list_models() -> list[str]:
        return [*plain_list(), *ARCHITECTURES]

    plain_tags = factory.list_pretrained_tags_by_model

    @wraps(plain_tags)
    def list_pretrained_tags_by_model(model: str) -> list[str]:
        return published(model) if model in ARCHITECTURES else plain_tags(model)

    factory.create_model = create_model
    module.create_model = create_model
    factory.get_tokenizer = get_tokenizer
    module.get_tokenizer = get_tokenizer
    factory.list_models = list_models
    module.list_models = list_models
    module.list_pretrained_tags_by_model = list_pretrained_tags_by_model


def published(name: str) -> list[str]:
    """Return what ``pretrained`` can be for a model of :data:`ARCHITECTURES`: tags of published
    weights, and the zoo's records."""
    records = [record for record in builtin_index() if record.task == "zero-shot"]
    shipped = [f"zoo:{record.name}" for record in records if record.model == name]
    return [*PUBLISHED.get(name, {}), *shipped]


def _ours(asked: Plain) -> nn.Module:
    """Return the model for those arguments of ``create_model`` that differ from its defaults."""
    name = asked.pop("model_name")
    pretrained = asked.pop("pretrained", None) or None  # open_clip's scripts give "" for none
    device = asked.pop("device", "cpu")
    loads = pretrained is not None and asked.get("load_weights", True)
    if asked.pop("require_pretrained", False) and not loads:
        raise HypvisionError(
            f"No weights are named for the CLIP model '{name}'. Give one of {published(name)} or a "
            "file as pretrained."
        )
    options = {key: value for key, value in asked.items() if key not in _HARMLESS}
    if loads or "timm_model_name" not in ARCHITECTURES[name]["vision_cfg"]:
        options.pop("pretrained_image", None)  # open_clip, too, ignores it there
    _refuse(name, options)
    as_script = options.pop("jit", False)
    model: nn.Module = create_clip(name, pretrained, **options).model.to(device)
    return scripted(model) if as_script else model


def _refuse(name: str, options: Plain) -> None:
    """Raise an error for an argument of open_clip that a model of this project cannot take."""
    reasons = dict(_REFUSED)
    config = ARCHITECTURES[name] | options
    if config.get("geometry") not in (None, "sphere"):
        reasons |= _OF_HYPERBOLIC
    if config.get("box_scales"):
        reasons["init_logit_scale"] = "UNCHA's logits have three scales of their own"
    for option, value in options.items():
        if value and option in reasons:
            raise HypvisionError(
                f"The CLIP model '{name}' takes no {option}={value!r}: {reasons[option]}."
            )
    for option in reasons:
        options.pop(option, None)
