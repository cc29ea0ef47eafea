#!/usr/bin/env python
"""What a language model of configs/helm has learned: ``python tools/helm_study.py FOLDER --text test.txt``.

FOLDER is what ``hypvision lm-save`` wrote. Prints the curvatures of experts; how far out the points of words lie, by
how often the text has the word; how the rotary code makes attention fall with the distance; and with ``--items`` the
accuracy on a jsonl of ``{context, choices, label}``, by the likelihood of a choice and by that of a character of it.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path

import torch
from tqdm import tqdm

from hypvision.errors import guard
from hypvision.tasks.language_models import load_folder


@torch.inference_mode()
def norms_by_rarity(model, tokenizer, text: str, pieces: int = 300, length: int = 128) -> list[tuple[str, float, int]]:
    """Mean radius of the point behind a word, by quarters of the words from frequent to rare."""
    frequency = Counter(re.findall(r"[a-z]+", text.lower()))
    found: dict[str, list[float]] = {}
    for begin in range(0, min(len(text) - length, pieces * length), length):
        part = text[begin : begin + length]
        ids = tokenizer(part, add_special_tokens=False, return_tensors="pt").input_ids
        if ids.shape[1] != len(part.encode()) or not part.isascii():
            continue  # bytes are counted as letters below
        hidden = model.model.hidden(ids, model.model.context(ids))[0][0]
        norms = hidden[:, : model.model.layout.size].norm(dim=-1)
        for word in re.finditer(r"\b[A-Za-z]+\b", part):
            if word.start() and word.end() < length:
                found.setdefault(word[0].lower(), []).append(norms[word.end() - 1].item())
    words = sorted(found, key=lambda w: -frequency[w])
    tokens = [(frequency[w], n) for w in words for n in found[w]]
    quarter = max(1, len(tokens) // 4)
    rows = []
    for i in range(4):
        part = tokens[i * quarter : (i + 1) * quarter]
        rows.append((f"{part[0][0]} to {part[-1][0]} times", sum(n for _, n in part) / len(part), len(part)))
    return rows


@torch.inference_mode()
def rotary_decay(model, distances=(0, 1, 2, 4, 8, 16, 32, 64)) -> tuple[list[float], float]:
    """Mean logit of a random query and the key that equals it, by distance; and how far logits of equal distances at
    different places differ."""
    attention = model.model.layers[0].attn
    d, generator = attention.d, torch.Generator().manual_seed(0)
    x = torch.randn(256, d, generator=generator)
    from hypvision.helm.rows import turn

    def at(position: int) -> torch.Tensor:
        return turn(x, *attention.rotary(position, 1, x.device))

    means = [float((at(0) * at(m)).sum(-1).mean() / d) for m in distances]
    spread = max(float(((at(m) * at(m + 7)).sum(-1) - (at(0) * at(7)).sum(-1)).abs().max()) for m in (1, 50, 100))
    return means, spread


@torch.inference_mode()
def accuracy(model, tokenizer, path: Path, limit: int) -> tuple[float, float, int]:
    """Shares of items whose right choice is the likeliest, in all and for its length."""
    right = [0, 0]
    lines = path.read_text().splitlines()
    items = [json.loads(line) for line in lines[:: max(1, len(lines) // limit)]][:limit]
    begin, longest = model.config.bos_token_id, model.config.max_seq_len
    for item in tqdm(items, leave=False):
        scores = []
        for choice in item["choices"]:
            glue = " " if item["context"] and not item["context"].endswith(" ") else ""
            ahead = [begin, *tokenizer.encode(item["context"] + glue, add_special_tokens=False)]
            behind = tokenizer.encode(choice, add_special_tokens=False)[: longest - 1]
            ids = torch.tensor([ahead[-(longest - len(behind)) :] + behind])
            logits = model(ids, logits_to_keep=len(behind) + 1, use_cache=False).logits[0, :-1].log_softmax(-1)
            total = logits.gather(1, torch.tensor(behind)[:, None]).sum().item()
            scores.append((total, total / max(len(choice), 1)))
        for i in range(2):
            right[i] += max(range(len(scores)), key=lambda k: scores[k][i]) == item["label"]
    return right[0] / len(items), right[1] / len(items), len(items)


def run(args: Namespace) -> None:
    torch.set_num_threads(1)
    model, tokenizer = load_folder(args.folder)
    curvatures = {name: p.item() for name, p in model.named_parameters() if name.endswith(".c")}
    print("curvatures:", {name: round(value, 3) for name, value in curvatures.items()})
    if args.text:
        for what, norm, count in norms_by_rarity(model, tokenizer, args.text.read_text()):
            print(f"words that the text has {what}: norm {norm:.3f} over {count}")
    means, spread = rotary_decay(model)
    print("rotary code, distances 0 1 2 4 8 16 32 64:", [round(m, 3) for m in means], f"relative to {spread:.1e}")
    for path in args.items:
        plain, length, count = accuracy(model, tokenizer, path, args.limit)
        print(f"{path.name}: {plain:.3f}, by length {length:.3f}, {count} items")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--items", type=Path, nargs="*", default=[])
    parser.add_argument("--limit", type=int, default=300)
    sys.exit(guard(run, parser.parse_args()))
