"""Names of this project's CLIP models in open_clip.

>>> import open_clip
>>> import hypvision.clip
>>> model, _, transform = open_clip.create_model_and_transforms("meru-vit-s-16", "redcaps")

open_clip's registry holds sizes for its own classes, whose embeddings lie on a sphere. So its
``list_models`` adds the names of :data:`~hypvision.clip.models.ARCHITECTURES`; its ``create_model``
passes them on to :func:`~hypvision.clip.models.create_clip`, and returns, for example, a
:class:`~hypvision.clip.hyperbolic.HyperbolicCLIP` with its curvature; and ``get_tokenizer`` returns
the tokenizer of these models.
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

from hypvision.clip.models import ARCHITECTURES, create_clip, tokenizer_of

# Arguments of open_clip's own loading, which create_clip does not take.
_OF_LOADING = ("device", "cache_dir", "weights_only", "require_pretrained")


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

    @wraps(plain_tokenizer)
    def get_tokenizer(model_name: str = "", *given: Any, **options: Any) -> Any:
        if model_name not in ARCHITECTURES:
            return plain_tokenizer(model_name, *given, **options)
        return tokenizer_of(ARCHITECTURES[model_name], *given, **options)

    plain_list = factory.list_models

    @wraps(plain_list)
    def list_models() -> list[str]:
        return [*plain_list(), *ARCHITECTURES]

    factory.create_model = create_model
    module.create_model = create_model
    factory.get_tokenizer = get_tokenizer
    module.get_tokenizer = get_tokenizer
    factory.list_models = list_models
    module.list_models = list_models


def _ours(asked: dict[str, Any]) -> nn.Module:
    """Return the model for those arguments of ``create_model`` that differ from its defaults."""
    name = asked.pop("model_name")
    device = asked.get("device", "cpu")
    options = {key: value for key, value in asked.items() if key not in _OF_LOADING}
    return create_clip(name, options.pop("pretrained", None), **options).model.to(device)
