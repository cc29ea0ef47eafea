"""Cache a value until the tensors that it was computed from change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Memo:
    """Caches one value. Copies and pickles start empty.

    It notices tensors that were replaced, or changed in place with a new autograd version: by
    optimisers, ``copy_``, ``load_state_dict``. It does not notice a change through ``.data``: code
    that moves, casts or swaps weights that way must call :meth:`clear` (modules do so in ``_apply``
    and in ``train``).
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._state: tuple[object, list[tuple[int, int]]] | None = None
        self._tensors: Sequence[Tensor] = ()
        self._value: Any = None

    def get(self, tensors: Sequence[Tensor], make: Callable[[], T], key: object = None) -> T:
        """The cached value, or that of ``make()``, which runs without gradients. It depends on the
        tensors, which are stored with it, so that no new tensor can get the address of an old one,
        and on ``key``, compared by ``==``. A compiled graph always calls ``make``."""
        if torch.compiler.is_compiling():  # a compiled graph cannot read versions of tensors
            with torch.no_grad():
                return make()
        state = (key, [(id(tensor), _version(tensor)) for tensor in tensors])
        if state != self._state:
            # Do not return an inference tensor: the value may be used in a computation with
            # gradients later.
            with torch.inference_mode(False), torch.no_grad():
                self._value = make()
            self._state = state
            self._tensors = list(tensors)
        return self._value

    def __deepcopy__(self, memo: dict[int, Any]) -> Memo:
        return Memo()

    def __reduce__(self) -> tuple[type[Memo], tuple[()]]:
        return Memo, ()


def _version(tensor: Tensor) -> int:
    # inference tensors have no version counter
    return 0 if tensor.is_inference() else tensor._version
