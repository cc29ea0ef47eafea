"""What a program that is exported computes, without exporting it."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# what onnxruntime has in float32, but not in float64: asked of version 1.31
LACKING = "sinh", "cosh", "asinh", "acosh", "atanh", "tan", "atan", "atan2", "asin", "acos", "erf"


class _Runtime(TorchDispatchMode):
    """Refuses the operations of float64 that onnxruntime lacks."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::").removesuffix("_")
        if name in LACKING and out.dtype == torch.float64:
            raise TypeError(f"onnxruntime has no {name} of float64.")
        return out


@contextmanager
def as_exported() -> Iterator[None]:
    """Context in which code computes as it does while it is exported, and in which operations that
    onnxruntime lacks are errors."""
    with (
        patch("torch.compiler.is_exporting", lambda: True),
        patch("torch.compiler.is_compiling", lambda: True),
        torch.no_grad(),
        _Runtime(),
    ):
        yield
