"""Check class names for a CLIP: which of them it cannot distinguish, and which never occurred in its training."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hypvision.clip.classes import prompts
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP, equal_pairs
from hypvision.errors import HypvisionError

# Long lists have a few classes with equal texts (ADE-847: 18 of 847); a larger share is a mistake of the user.
_EQUAL_SHARE = 0.1
_ADVICE = (
    "Small CLIPs ship: shapes-s8 knows drawn shapes (disk, red star, grey ground), emoji-s16 what emoji show (cat "
    "face, fruit). For other words take one that was trained on photos, downloaded once: --clip ViT-B-16:openai."
)


def check_words(model: OpenVocabularyCLIP, names: Sequence[str]) -> None:
    """Raise an error for names that a CLIP cannot distinguish, or if it knows none of them; warn of single names that
    it does not know.

    Raises:
        HypvisionError: two names have the same embedding (in a long list: more than a tenth of them), or the model was
            trained on none of the names.
    """
    foreign = unknown_words(model.clip, model.tokenizer, names)
    listed = _listed(foreign)
    if len(foreign) == len(names):
        raise HypvisionError(f"This CLIP was never taught {'any of the words ' * (len(names) > 1)}{listed}. {_ADVICE}")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # encode_classes warns of equal texts; the error below says more
        pairs = equal_pairs(model.encode_classes(names))
    if len({number for pair in pairs for number in pair}) > _EQUAL_SHARE * len(names):
        pair = f"'{names[pairs[0][0]]}' from '{names[pairs[0][1]]}'"
        more = f" (and {len(pairs) - 1} more such pairs)" if len(pairs) > 1 else ""
        why = f"It was never taught {listed}. {_ADVICE}" if foreign else "Leave one out, or give it another name."
        raise HypvisionError(f"This CLIP cannot distinguish {pair}{more}: their texts have the same embedding. {why}")
    if foreign:
        warnings.warn(f"This CLIP was never taught {listed}: what it finds there means little. {_ADVICE}", stacklevel=3)


def warn_of_classes(clip: nn.Module, tokenizer: object, names: Sequence[str], data: str) -> None:
    """Warn of the classes of a data set that a CLIP does not know (:func:`unknown_words`)."""
    if foreign := unknown_words(clip, tokenizer, names):
        warnings.warn(
            f"This CLIP was never taught {len(foreign)} of the {len(names)} classes of '{data}' ({_listed(foreign)}): "
            f"methods that compare with their names guess there. {_ADVICE}",
            stacklevel=3,
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:5]) + (", ..." if len(names) > 5 else "")


def lacks_words(clip: nn.Module) -> bool:
    """Whether there are words that never occurred in the training of a CLIP, see :func:`unknown_words`."""
    return bool(_blank_tokens(clip).any())


def _blank_tokens(clip: nn.Module) -> Tensor:
    """For each token whether its row of the embedding is zero; () of a CLIP without such a table."""
    words = getattr(getattr(clip, "text", None) or clip, "token_embedding", None)
    weight: Tensor | None = getattr(words, "weight", None)
    return torch.zeros(0, dtype=torch.bool) if weight is None else ~(weight.detach() != 0).any(1)


def unknown_words(clip: nn.Module, tokenizer: object, names: Sequence[str]) -> list[str]:
    """The names with a token that never occurred in the training of a CLIP: its row of the token embedding is zero.

    Only CLIPs that were trained with hypvision from scratch have such rows.
    """
    blank = _blank_tokens(clip)
    if not blank.any() or not callable(tokenizer):
        return []
    found = []
    for name in names:
        tokens = tokenizer([text for (text,) in prompts(name, ("{}",))]).to(blank.device)
        if (blank[tokens] & (tokens != 0)).any():  # texts are padded with 0
            found.append(name)
    return found
