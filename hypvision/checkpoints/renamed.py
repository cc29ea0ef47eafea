"""Names that parameters had in checkpoints of earlier versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

__all__ = ["current_names"]

_RENAMED = (
    # HyperCLIP's blocks, named as the official code does until adapters had a contract of their own.
    (re.compile(r"(^|\.)hyperbolic_attn\.adapter_attn_([qkv])\.weights$"), r"\1hyperclip.\2"),
)

Value = TypeVar("Value")


def current_names(weights: Mapping[str, Value]) -> dict[str, Value]:
    """The same entries under the names of this version; unknown names stay as they are.

    ``...resblocks.0.hyperbolic_attn.adapter_attn_q.weights`` becomes ``...resblocks.0.hyperclip.q``.
    """
    found = {}
    for name, value in weights.items():
        if isinstance(name, str):
            for pattern, replacement in _RENAMED:
                name = pattern.sub(replacement, name)
        found[name] = value
    return found
