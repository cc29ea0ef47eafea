"""Embed many texts fast: each distinct text once, in batches of texts of similar length.

>>> texts = embed_texts(clip.model, clip.tokenizer, captions)     # (N, d), unit vectors
>>> root = embed_texts(clip.model, clip.tokenizer, [""])[0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from hypvision.clip.towers import encode_by_length, find_towers
from hypvision.io import list_of_texts, refuse, require_finite

_TOKENS = 4096  # largest number of tokens in a batch


def distinct(texts: Sequence[str]) -> tuple[list[str], Tensor]:
    """Return the distinct texts in the order of their first appearance, and for each text the
    number of its distinct text, int64 ``(N,)``."""
    number: dict[str, int] = {}
    rows = torch.tensor([number.setdefault(text, len(number)) for text in texts], dtype=torch.int64)
    return list(number), rows


@torch.no_grad()
def embed_texts(
    model: nn.Module,
    tokenizer: Callable[[list[str]], Tensor],
    texts: Sequence[str],
    where: Mapping[str, str] | None = None,
) -> Tensor:
    """Return points ``(N, d)`` of N texts in the model's space, at least in float32 and without
    gradients; equal texts get equal points. ``where`` gives, for messages, the place of a text,
    such as `` (row 2, level 1)``."""
    towers = [tower.modality for tower in find_towers(model)]
    list_of_texts(texts=texts)
    refuse(
        (
            "text" not in towers and not hasattr(model, "encode_text"),
            f"The model ({type(model).__name__}) has no text tower. Give a CLIP model of "
            "open_clip.",
        ),
    )
    device = next(model.parameters()).device
    once, rows = distinct(texts)
    tokens = torch.cat([tokenizer(once[i : i + 4096]) for i in range(0, len(once), 4096)]).to(
        device
    )
    found = encode_by_length(model, tokens, normalize=True, budget=_TOKENS)
    require_finite(
        found, lambda row: f"The embedding of '{once[row]}'{(where or {}).get(once[row], '')}"
    )
    return found[rows.to(device)]
