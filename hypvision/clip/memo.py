"""A cache for a value, valid until the tensors change from which it was computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Memo:
    """A cache for one value; copies and pickles of it start empty.

    A cached value is invalid once one of its tensors was replaced, or was changed in place with a
    new autograd version: by optimisers, ``copy_``, ``load_state_dict``. A change through ``.data``
    goes unnoticed: code that moves, casts or swaps weights that way must call :meth:`clear`
    (modules do so in ``_apply`` and in ``train``).
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._state: tuple[object, list[tuple[int, int]]] | None = None
        self._tensors: Sequence[Tensor] = ()
        self._value: Any = None

    def get(self, tensors: Sequence[Tensor], make: Callable[[], T], key: object = None) -> T:
        """Return the cached value, or the new value of ``make()``, which runs without gradients.

        The value depends on ``tensors`` and on ``key``, which is compared by ``==``. The tensors
        are kept, so that no new tensor can get the address of an old one. A compiled graph always
        calls ``make``.
        """
        if torch.compiler.is_compiling():  # a compiled graph cannot read tensor versions
            with torch.no_grad():
                return make()
        state = (key, [(id(tensor), _version(tensor)) for tensor in tensors])
        if state != self._state:
            # The value must not be an inference tensor, as it may later be used in a computation
            # with gradients.
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
    # Inference tensors have no version counter.
    return 0 if tensor.is_inference() else tensor._version
