"""A segmenter on a tiny CLIP, and images for it."""

from __future__ import annotations

import torch
from helpers import clip_models

from hypvision.clip.segmentation.segmenter import OpenVocabSegmenter

HEAD = dict(
    hidden=16,
    heads=2,
    window=4,
    guidance=8,
    text_guidance=8,
    decoder=(16, 8),
    decoder_guidance=(4, 4),
    pad_len=8,
)


WORDS: dict[str, int] = {}


def tokenizer(texts):
    """Word by word, 20 tokens; the largest number ends a text."""
    tokens = torch.zeros(len(texts), 20, dtype=torch.long)
    for row, text in zip(tokens, texts):
        numbers = [WORDS.setdefault(word, 1 + len(WORDS) % 90) for word in text.split()][:18]
        row[: len(numbers) + 1] = torch.tensor([*numbers, 99])
    return tokens


def build(classes=("cat", "dog", "grass"), make=clip_models.openai_clip, **options):
    torch.manual_seed(0)
    settings = dict(adapter=dict(block=16), head=HEAD, upsample=(8, 8), resolution=64, crop=64,
    slide=96,
                    tokenizer=tokenizer, mean=(120.0,) * 3, std=(60.0,) * 3)  # fmt: skip
    return OpenVocabSegmenter(make(), classes=classes, **{**settings, **options}).eval()


def random_image(height=50, width=70, seed=0):
    return torch.randint(
        0, 256, (3, height, width), generator=torch.Generator().manual_seed(seed)
    ).float()
