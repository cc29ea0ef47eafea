"""CLIP's tokenizer, which warns once of texts that are too long."""

from __future__ import annotations

import warnings
from typing import Any

from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor


class Tokenizer(SimpleTokenizer):
    """A tokenizer that returns tokens ``(T, L)`` int64 of texts. A text that is too long keeps its
    first L - 1 tokens and the end token, as in CLIP's code; with ``ends=False`` its first L tokens
    without the end token, as in UNCHA's code. ``options`` are the other arguments of open_clip's
    ``SimpleTokenizer``, such as ``clean``."""

    warned = False

    def __init__(self, context_length: int = 77, ends: bool = True, **options: Any):
        super().__init__(context_length=context_length, **options)
        self.ends = ends

    def __call__(self, texts: str | list[str], context_length: int | None = None) -> Tensor:
        texts = [texts] if isinstance(texts, str) else texts
        length = context_length or self.context_length
        # One position more takes the end token of a long text, and is then cut off.
        tokens: Tensor = super().__call__(texts, length + (not self.ends))[:, :length]
        if not self.warned and len(texts) and tokens[:, -1].any():
            self._warn(texts[int(tokens[:, -1].argmax())], tokens.shape[1])
        return tokens

    def _warn(self, text: str, length: int) -> None:
        words: Any = self.encode(text)
        if len(words) + 2 > length:  # the text was truncated
            self.warned = True
            warnings.warn(
                f"The text '{text[:60]}...' has {len(words) + 2} tokens. The model takes {length}: "
                "this text and longer ones are cut to their beginning. This warning appears once.",
                stacklevel=4,
            )
