"""Radial embeddings against their published forms: the metrics of chains, a tuning step, embedding
captions.

The metrics are compared with the reference implementation (``tests/references/radial.py``): image
by image, 50 masks each. A published step encodes 8 texts a chain and the root by themselves, all
padded to the longest of the batch, and once more by a frozen tower; ``padded to the context`` does
the same with all 77 tokens. Texts are made up of words that are one token each, as many as the
texts of HierarCaps' levels have on average without the two ends; weights are random.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import numpy as np
import open_clip
import torch
from references import radial as reference
from torch import Tensor, nn

import hypvision
from bench.common import add_run_arguments, in_turns, report, start
from hypvision.clip.features import FrozenFeatures
from hypvision.clip.models import create_clip
from hypvision.clip.radial.metrics import chain_metrics
from hypvision.clip.radial.texts import distinct, embed_texts
from hypvision.clip.spaces import Sphere
from hypvision.tasks.radial import RadialTuning

MARKS = ("<!-- radial:begin -->", "<!-- radial:end -->")
TOKENS_A_LEVEL = (1.32, 1.87, 6.82, 12.89)

INTRODUCTION = f"""
## Radial embeddings

Metrics, tuning step and embedding of captions against their published forms, written down step by
step (`tools/bench/radial.py`, `tests/references/radial.py`). "equal to" is the largest difference
of the results: of precision, recall and tau; of the loss and, relative to the largest of each
tensor, of the gradients; of embeddings.

{MARKS[0]}
{MARKS[1]}
"""


def made_up_words() -> list[str]:
    """Words that are one token each."""
    vocabulary = open_clip.get_tokenizer("ViT-B-32").encoder
    whole = [token.removesuffix("</w>") for token in vocabulary if token.endswith("</w>")]
    return [word for word in whole if word.isascii() and word.isalpha() and len(word) > 2]


def made_up(count: int, seed: int = 0) -> tuple[list[list[str]], list[list[str]]]:
    """Chains and negatives of made-up words; half of the texts of the two upper levels repeat
    themselves."""
    rng = np.random.default_rng(seed)
    words = rng.choice(made_up_words(), 2000)

    def text(level: int) -> str:
        return " ".join(
            rng.choice(
                words[: 40 if level < 2 else None], 1 + rng.poisson(TOKENS_A_LEVEL[level] - 1)
            )
        )

    return ([[text(level) for level in range(4)] for _ in range(count)] for _ in range(2))


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call."""
    return in_turns({"": call}, repeats, "cpu")[""]


def metrics_row(images: int, repeats: int) -> list[str]:
    """The metrics of HierarCaps at so many images with a chain each."""
    rng = np.random.default_rng(0)
    texts, _ = made_up(images)
    e = rng.normal(size=(images, 4, 64)) * np.array([0.4, 0.6, 0.8, 1.0])[:, None] + rng.normal(
        size=64
    )
    v, root = (rng.normal(size=shape) for shape in ((images, 64), 64))
    e, v, root = (x.astype(np.float32) for x in (e, v, root))
    tensors = [torch.from_numpy(x) for x in (e, v, root)]

    def ours():
        return chain_metrics(texts, tensors[0], range(images), tensors[1], Sphere(tensors[2]))

    found = ours()
    expected = reference.chain_metrics(texts, e, list(range(images)), v, root)
    apart = max(
        float(np.abs(a - b).max())
        for a, b in zip((found.precision, found.recall, found.tau), map(np.array, expected))
    )
    fast = seconds(ours, repeats)
    slow = seconds(lambda: reference.chain_metrics(texts, e, list(range(images)), v, root), 1)
    return [f"metrics, {images} images x {4 * images} texts", _ms(fast), _ms(slow),
    f"{slow / fast:.0f}x", ">= 30x",
            f"{apart:.0e}"]  # fmt: skip


def _encode(model: nn.Module, tokens: Tensor, length: int) -> Tensor:
    """The text tower as published: all texts of one length, no longer than the context."""
    tokens = tokens[:, :length]
    x = model.token_embedding(tokens) + model.positional_embedding[:length]
    x = model.transformer(x, attn_mask=model.attn_mask[:length, :length])
    x = model.ln_final(x)[torch.arange(len(x)), tokens.argmax(-1)] @ model.text_projection
    return x / x.norm(dim=-1, keepdim=True)


def step_rows(name: str, chains: int, repeats: int) -> list[list[str]]:
    """A training step: ours, the published one, and that padded to the context."""
    bundle = create_clip(name)
    frozen = copy.deepcopy(bundle.model).eval().requires_grad_(False)
    model = RadialTuning(bundle)
    positive, negative = made_up(chains, seed=1)
    given = dict(positive=list(zip(*positive)), negative=list(zip(*negative)))
    texts = [text for level in (*given["positive"], *given["negative"]) for text in level]
    once = distinct(texts)[0]
    # In single precision, so that equality is that of the step; the cache of a training holds half
    # precision.
    model.reference = FrozenFeatures(once, embed_texts(frozen, model.tokenizer, once))
    with torch.no_grad():  # away from where the tower began, where what is kept has no gradient
        for parameter in model.clip.parameters():
            parameter.add_(1e-3 * torch.randn_like(parameter) * parameter.std(correction=0))

    def ours() -> Tensor:
        model.zero_grad()
        loss = sum(model(**given, mode="loss").values())
        loss.backward()
        return loss.detach()

    def published(padded: bool) -> Tensor:
        model.zero_grad()
        tokens = model.tokenizer(texts)
        root = model.tokenizer([""])
        length = tokens.shape[1] if padded else int((tokens != 0).sum(1).max())
        with torch.no_grad():
            before = _encode(frozen, tokens, length)
        e = _encode(model.clip, tokens, length)
        at = _encode(model.clip, root, length if padded else 2)[0]
        loss = reference.radial_loss(
            e.unflatten(0, (8, chains)), at, before.unflatten(0, (8, chains))
        )[-1]
        loss.backward()
        return loss.detach()

    losses = []
    gradients = []
    for call in (ours, lambda: published(False)):
        losses.append(float(call()))
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    apart = max(
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for a, b in zip(*gradients)
    )
    apart = max(apart, abs(losses[0] - losses[1]))
    fast, slow, slower = (
        seconds(call, repeats) for call in (ours, lambda: published(False), lambda: published(True))
    )
    what = f"tuning step, {name}, {chains} chains"
    return [
        [
            f"{what}, published",
            _ms(fast),
            _ms(slow),
            f"{slow / fast:.1f}x",
            ">= 2x",
            f"{apart:.0e}",
        ],
        [
            f"{what}, padded to the context",
            _ms(fast),
            _ms(slower),
            f"{slower / fast:.1f}x",
            ">= 4x",
            "",
        ],
    ]


@torch.no_grad()
def embed_row(name: str, captions: int) -> list[str]:
    """Embedding captions of the last two levels, against batches of 64 padded to the context."""
    bundle = create_clip(name)
    texts = [
        chain[level] for level in (2, 3) for chain in next(iter(made_up(captions // 2, seed=2)))
    ]
    begin = time.perf_counter()
    found = embed_texts(bundle.model, bundle.tokenizer, texts)
    fast = time.perf_counter() - begin
    few = texts[:: max(1, len(texts) // 256)]  # of the slow form a part, by scale
    begin = time.perf_counter()
    padded = torch.cat(
        [
            bundle.model.encode_text(bundle.tokenizer(few[i : i + 64]), normalize=True)
            for i in range(0, len(few), 64)
        ]
    )
    slow = (time.perf_counter() - begin) * len(texts) / len(few)
    apart = float((found[:: max(1, len(texts) // 256)] - padded).abs().max())
    what = f"embedding {len(texts)} captions, {name} (50,000: {fast * 50_000 / len(texts):.0f} s)"
    return [what, _ms(fast), _ms(slow), f"{slow / fast:.1f}x", ">= 4x", f"{apart:.0e}"]


def _ms(value: float) -> str:
    return f"{1000 * value:,.0f}"


def table(model: str, images: int, chains: int, captions: int, repeats: int) -> str:
    """The Markdown table of all measurements."""
    rows = [
        metrics_row(images, repeats),
        *step_rows(model, chains, repeats),
        embed_row(model, captions),
    ]
    head = [
        "| | ours, ms | published form, ms | faster | target | equal to |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="ViT-B-32", help="of open_clip, or emoji-s16 (default: ViT-B-32)"
    )
    parser.add_argument(
        "--images", type=int, default=1000, help="images of the metrics (default: 1000)"
    )
    parser.add_argument("--chains", type=int, default=8, help="chains of a step (default: 8)")
    parser.add_argument(
        "--captions", type=int, default=2000, help="captions to embed (default: 2000)"
    )
    add_run_arguments(parser, repeats=5)


def run(args: argparse.Namespace) -> None:
    start(args, images=2, chains=2, captions=2)
    text = table(args.model, args.images, args.chains, args.captions, args.repeats)
    facts = f"hypvision {hypvision.__version__}, open_clip {open_clip.__version__}, float32."
    report(args, ["model", "images", "chains", "captions"], facts, text, MARKS, INTRODUCTION)
