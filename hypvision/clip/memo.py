"""A value that is kept while the tensors it was computed from stay what they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Memo:
    """Keeps one value. A copy, pickled or not, begins empty.

    It notices tensors that were replaced, or changed in place by anything that autograd counts: optimisers,
    ``copy_``, ``load_state_dict``. It cannot see a change through ``.data``: what moves, casts or swaps weights that
    way calls :meth:`clear` (modules do so in ``_apply``, and when they change between training and evaluation).
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the value."""
        self._state: tuple[object, list[tuple[int, int]]] | None = None
        self._tensors: Sequence[Tensor] = ()
        self._value: Any = None

    def get(self, tensors: Sequence[Tensor], make: Callable[[], T], key: object = None) -> T:
        """The kept value, or that of ``make()``, which runs without gradients; always the latter in a compiled graph.

        Args:
            tensors: what the value depends on; kept with it, so that no other can get the address of one.
            make: computes the value.
            key: what else it depends on, compared by ``==``.
        """
        if torch.compiler.is_compiling():  # a graph does not see versions
            with torch.no_grad():
                return make()
        state = (key, [(id(tensor), _version(tensor)) for tensor in tensors])
        if state != self._state:
            # Not an inference tensor: it may be used under no_grad later.
            with torch.inference_mode(False), torch.no_grad():
                self._value = make()
            self._state, self._tensors = state, list(tensors)
        return self._value

    def __deepcopy__(self, memo: dict[int, Any]) -> Memo:
        return Memo()

    def __reduce__(self) -> tuple[type[Memo], tuple[()]]:
        return Memo, ()


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # inference tensors do not count
