"""A tiny CLIP with a tokenizer of words, for the few-shot methods."""

import zlib

import torch
from helpers import clip_models

from hypvision.clip.models import CLIPBundle

NAMES = ["cat", "big dog", "old red car", "tree"]
OTHERS = ["house", "sea or lake"]


def tokenize(texts, length=20):
    """One token a word, ``.`` and ``,`` words of their own; the largest number ends each text; long
    ones are cut."""
    found = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in zip(found, texts):
        words = text.replace(".", " .").replace(",", " ,").split()
        ids = [98, *[1 + zlib.crc32(word.encode()) % 97 for word in words][: length - 2], 99]
        row[: len(ids)] = torch.tensor(ids)
    return found


def bundle(seed=1, **vision):
    """OpenAI's architecture with biases that are not zero, so that forgetting one shows."""
    model = clip_models.openai_clip(**vision)
    generator = torch.Generator().manual_seed(seed)
    for block in [*model.visual.transformer.resblocks, *model.transformer.resblocks]:
        block.attn.in_proj_bias.data.normal_(std=0.3, generator=generator)
    for parameter in model.parameters():
        if seed != 1:
            parameter.data.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return CLIPBundle(model, tokenize, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def shaken(host, seed=3, size=0.2):
    """The host with what it learns moved away from its start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in host.learner.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return host
