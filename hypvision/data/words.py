"""Split names without spaces into words, such as the names of subreddits: ``itookapicture``."""

from __future__ import annotations

import math
import re
from functools import cache, lru_cache

from hypvision.io import require

_LONGEST = 20  # letters of the longest word that is searched for
_UNKNOWN = 2.0  # cost (negative log-likelihood) of a letter that is part of no known word


@cache
def _ranks() -> dict[str, int]:
    """Return the whole words of CLIP's vocabulary with their ranks by frequency, 0 for the most
    frequent; of single letters, only "a" and "i" are words."""
    tokens = require("open_clip", "clip").SimpleTokenizer().encoder
    words = {
        token.removesuffix("</w>"): number
        for token, number in tokens.items()
        if token.endswith("</w>")
    }
    kept = {
        word: number
        for word, number in words.items()
        if word.isalnum() and (len(word) > 1 or word in "ai")
    }
    return {word: rank for rank, word in enumerate(sorted(kept, key=kept.__getitem__))}


@lru_cache(maxsize=10_000)
def split_words(name: str) -> str:
    """Return the most likely split of a name into words, in lower case: ``itookapicture`` becomes
    ``i took a picture``.

    A word's frequency follows from its rank in CLIP's vocabulary by Zipf's law; characters of the
    name other than ASCII letters and digits are dropped. MERU uses the package ``wordsegment``
    instead, with word frequencies of the web: the two agree where the words are in the vocabulary.
    """
    text = re.sub(r"[^a-z0-9]", "", name.lower())
    ranks = _ranks()
    best: list[tuple[float, tuple[str, ...]]] = [(0.0, ())]
    for end in range(1, len(text) + 1):
        found = []
        for start in range(max(0, end - _LONGEST), end):
            word = text[start:end]
            rank = ranks.get(word)
            cost = (
                math.log(len(ranks)) + _UNKNOWN * len(word) if rank is None else math.log(rank + 30)
            )
            found.append((best[start][0] + cost, (*best[start][1], word)))
        best.append(min(found))
    return " ".join(best[-1][1])
