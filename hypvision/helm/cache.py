"""A cache for generating text without the transformers library, whose caches work as well."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Cache(Protocol):
    """The methods that a cache of keys and values must have."""

    def update(self, keys: Tensor, values: Tensor, layer: int, /) -> tuple[Tensor, Tensor]:
        """Add keys and values ``(B, H, L, d)`` of tokens of a layer; return those of all tokens."""

    def get_seq_length(self) -> int:
        """Return the number of tokens in the cache."""


class _Layer:
    """Keys and values ``(B, H, all, d)`` of one layer, in memory that doubles when it is full."""

    def __init__(self, keys: Tensor, values: Tensor):
        self.stored = [keys, values]
        self.length = keys.shape[-2]

    @property
    def keys(self) -> Tensor:
        return self.stored[0].narrow(-2, 0, self.length)

    @property
    def values(self) -> Tensor:
        return self.stored[1].narrow(-2, 0, self.length)

    def append(self, keys: Tensor, values: Tensor) -> None:
        total = self.length + keys.shape[-2]
        for i, new in enumerate((keys, values)):
            stored = self.stored[i]
            if stored.shape[-2] < total:
                larger = stored.new_empty(*stored.shape[:-2], 2 * total, stored.shape[-1])
                larger.narrow(-2, 0, self.length).copy_(stored.narrow(-2, 0, self.length))
                self.stored[i] = stored = larger
            stored.narrow(-2, self.length, keys.shape[-2]).copy_(new)
        self.length = total


class LatentCache:
    """Cache of the keys and values of earlier tokens, for all layers.

    >>> cache = LatentCache()
    >>> logits = model(prompt, cache=cache, logits_to_keep=1).logits
    >>> logits = model(next_token, cache=cache).logits
    """

    def __init__(self) -> None:
        self.layers: list[_Layer] = []

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Add keys and values ``(B, H, L, d)`` of tokens of a layer; return those of all tokens."""
        if layer == len(self.layers):
            self.layers.append(_Layer(keys, values))
        else:
            self.layers[layer].append(keys, values)
        return self.layers[layer].keys, self.layers[layer].values

    def get_seq_length(self) -> int:
        """Return the number of tokens in the cache."""
        return self.layers[0].length if self.layers else 0

    def crop(self, length: int) -> None:
        """Forget all tokens but the first ``length``."""
        for layer in self.layers:
            layer.length = min(layer.length, length)

    def reorder(self, index: Tensor) -> None:
        """Select the rows ``index`` of the batch, as beam search needs it."""
        for layer in self.layers:
            layer.stored = [torch.index_select(stored, 0, index) for stored in layer.stored]
