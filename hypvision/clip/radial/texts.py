"""Embed many texts fast: each distinct text once, in batches of similar length that are cut to the longest.

>>> texts = embed_texts(clip.model, clip.tokenizer, captions)     # (N, d), unit vectors
>>> root = embed_texts(clip.model, clip.tokenizer, [""])[0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from tqdm import tqdm

from hypvision.clip.spaces import space_of
from hypvision.clip.towers import MANY_TEXTS, encode_text, find_towers, token_lengths
from hypvision.errors import HypvisionError, require_finite

_TOKENS = 4096  # tokens per batch without gradients


def distinct(texts: Sequence[str]) -> tuple[list[str], Tensor]:
    """The distinct texts in order of appearance, and each text's index into them, int64 ``(N,)``."""
    number: dict[str, int] = {}
    rows = torch.tensor([number.setdefault(text, len(number)) for text in texts], dtype=torch.int64)
    return list(number), rows


@torch.no_grad()
def embed_texts(
    model: nn.Module,
    tokenizer: Callable[[list[str]], Tensor],
    texts: Sequence[str],
    progress: bool = False,
    where: Mapping[str, str] | None = None,
) -> Tensor:
    """Points ``(N, d)`` of N texts in the model's space, float32 at least, without gradients; equal texts get equal
    ones. ``where`` has the place of a text for messages, such as `` (row 2, level 1)``."""
    if not texts:
        raise HypvisionError("There are no texts to embed.")
    if not any(tower.modality == "text" for tower in find_towers(model)) and not hasattr(model, "encode_text"):
        raise HypvisionError(f"The model ({type(model).__name__}) has no text tower. Give a CLIP model of open_clip.")
    device = next(model.parameters()).device
    once, rows = distinct(texts)
    tokens = torch.cat([tokenizer(once[i : i + 4096]) for i in range(0, len(once), 4096)])
    lengths = token_lengths(tokens)
    order = lengths.argsort(stable=True)
    parts = []
    shown = progress or len(once) > MANY_TEXTS
    with tqdm(total=len(once), desc="texts", disable=None if shown else True, leave=False) as bar:
        rest = order
        while len(rest):
            # Add texts to the batch while their number times the longest length is at most _TOKENS.
            sizes = lengths[rest[:_TOKENS]] * torch.arange(1, len(rest[:_TOKENS]) + 1)
            count = max(1, int((sizes <= _TOKENS).sum()))
            part = encode_text(model, tokens[rest[:count]].to(device))
            parts.append(space_of(model).embed(part, "text"))
            rest = rest[count:]
            bar.update(count)
    found = torch.cat(parts)[order.argsort().to(device)]
    require_finite(found, lambda row: f"The embedding of '{once[row]}'{(where or {}).get(once[row], '')}")
    return found[rows.to(device)]
