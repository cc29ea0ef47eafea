"""Adapters of CLIP: methods that train a few parameters on a frozen model, with one interface
(:mod:`.base`)."""

from . import (
    bottleneck,
    hyperclip,
    lathadapter,
    lora,
    vpt,
)  # Importing the module of a method registers the method.
from .base import (
    ADAPTERS,
    Adapter,
    AdapterConfig,
    adapter_of,
    adapter_state_dict,
    inject,
    is_injected,
    load,
    merge,
    register,
    remove,
    save,
    summary,
    trainable_parameters,
)

__all__ = [
    "ADAPTERS",
    "Adapter",
    "AdapterConfig",
    "adapter_of",
    "adapter_state_dict",
    "bottleneck",
    "hyperclip",
    "inject",
    "is_injected",
    "lathadapter",
    "load",
    "lora",
    "merge",
    "register",
    "remove",
    "save",
    "summary",
    "trainable_parameters",
    "vpt",
]
