#!/usr/bin/env python
"""Trainings of configs/helm side by side, and what a model has learned.

    python studies/helm_study.py runs work_dirs/helm-d-s0 work_dirs/llama-s0 ... --figure curves.png
    --keep runs.json python studies/helm_study.py model FOLDER --text test.txt --items blimp.jsonl
    --figure decay.png

``runs`` reads the logs of trainings, whose folders are called NAME-sSEED: held-out bits a byte
after validations, mean and spread over the seeds, tokens a second, minutes, curvatures at the end.
It keeps what it has read in a file, which it takes instead of the folders. ``model`` takes what
``hypvision lm save`` has written: the curvatures of experts; how far out the points of words lie
behind the last layer, by how often the text has the word; how RoPE makes logits fall
with the distance; the accuracy on a jsonl of ``{context, choices, label}``, by the likelihood of a
choice and by that of a character of it.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from hypvision.helm.rows import turn
from hypvision.io.errors import HypvisionError, guard, require
from hypvision.io.files import replacing
from hypvision.tasks.language_models import load_folder

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def read_run(folder: Path) -> dict[str, Any]:
    """Of a training its ``curve`` (bits a byte by the step), the ``seconds`` of its fastest step
    and the ``minutes`` of all, as far as logs tell, and its ``curvatures``."""
    lines = [
        line
        for path in sorted(folder.glob("*/vis_data/scalars.json"))
        for line in path.read_text().splitlines()
    ]
    records = [json.loads(line) for line in lines]
    curve = {
        record["step"]: record["bits_per_byte"] for record in records if "bits_per_byte" in record
    }
    if not curve:
        raise HypvisionError(
            f"'{folder}' has no log of a language model with a validation. Give its work_dir."
        )
    steps = {
        record["step"]: record for record in records if "time" in record and "loss" in record
    }  # a resumed one anew
    ends = sorted(steps)
    return dict(
        run=folder.name,
        curve=curve,
        seconds=min(record["time"] for record in steps.values()),
        minutes=sum(steps[end]["time"] * (end - begin) for begin, end in zip([0, *ends], ends))
        / 60,
        curvatures={
            name.rpartition("/")[2]: value
            for name, value in steps[ends[-1]].items()
            if "expert_c" in name
        },
    )


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Runs of a work_dir, or those that a file keeps."""
    if path.is_dir():
        return [read_run(path)]
    try:
        return [
            run | dict(curve={int(step): bits for step, bits in run["curve"].items()})
            for run in json.loads(path.read_text())
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HypvisionError(
            f"'{path}' is no work_dir, and no file that --keep has written ({error})."
        ) from None


def runs(args: Namespace) -> None:
    """The table of trainings, and their curves."""
    read = [run for path in args.folders for run in read_runs(path)]
    if args.keep:
        with replacing(args.keep) as temporary:
            rows = (json.dumps(_rounded(run)) for run in read)
            temporary.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    found = defaultdict(list)
    for run in read:
        found[re.sub(r"-s\d+$", "", run["run"])].append(run)
    steps = args.steps or sorted({step for run in read for step in run["curve"]})
    print(
        "| config | seeds | " + " | ".join(map(str, steps)) + " | tokens a second | minutes a run |"
    )
    print("|---|--:|" + "--:|" * (len(steps) + 2))
    for name, group in found.items():
        cells = [
            _spread([run["curve"][step] for run in group if step in run["curve"]]) for step in steps
        ]
        rate = args.tokens / min(run["seconds"] for run in group)
        minutes = statistics.mean(run["minutes"] for run in group)
        print(
            f"| `{name}` | {len(group)} | "
            + " | ".join(cells)
            + f" | {rate:,.0f} | {minutes:.0f} |"
        )
    print(f"core-hours: {sum(run['minutes'] for run in read) / 60:.1f}")
    for name, group in found.items():
        for run in group:
            if run["curvatures"]:
                print(
                    f"{name}: c =",
                    {key: round(value, 3) for key, value in run["curvatures"].items()},
                )
    if args.figure:
        pyplot = require("matplotlib.pyplot", "viz")
        figure, axis = pyplot.subplots(figsize=(5.4, 3.6))
        for number, (name, group) in enumerate(found.items()):
            for i, run in enumerate(group):
                style = dict(color=f"C{number}", linewidth=1, label=name if i == 0 else None)
                axis.plot(run["curve"].keys(), run["curve"].values(), **style)
        axis.set(xlabel="steps", ylabel="held-out bits a byte")
        axis.legend(fontsize=7, frameon=False)
        _write(figure, args.figure)


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.3f}"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _write(figure, path: Path) -> None:
    figure.tight_layout()
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110)


@torch.inference_mode()
def norms_by_rarity(
    model, tokenizer, text: str, pieces: int = 300, length: int = 128
) -> list[tuple[str, float, int]]:
    """Mean norm of the space part of the point behind a word, by quarters of the words from
    frequent to rare.

    The point is what the last layer gives, at the word's last token. Behind the final norm all
    would be as long. Words, and what is between them, are given to the tokenizer one by one: any
    will do.
    """
    frequency = Counter(_WORD.findall(text.lower()))
    found: dict[str, list[float]] = {}
    points: list[torch.Tensor] = []
    hook = model.model.layers[-1].register_forward_hook(
        lambda layer, given, out: points.append(out[0][0])
    )
    try:
        for ids, ends in _pieces(tokenizer, text, pieces, min(length, model.config.max_seq_len)):
            tokens = torch.tensor([ids])
            model.model.hidden(tokens, model.model.context(tokens))
            norms = points.pop()[:, : model.model.layout.size].norm(dim=-1)
            for word, last in ends:
                found.setdefault(word, []).append(norms[last].item())
    finally:
        hook.remove()
    if sum(map(len, found.values())) < 4:
        raise HypvisionError(
            "The text has fewer than four words; there are no quarters of them. Give more."
        )
    words = sorted(found, key=lambda w: -frequency[w])
    tokens = [(frequency[w], n) for w in words for n in found[w]]
    rows = []
    for i in range(4):
        part = tokens[i * len(tokens) // 4 : (i + 1) * len(tokens) // 4]
        rows.append(
            (f"{part[0][0]} to {part[-1][0]} times", sum(n for _, n in part) / len(part), len(part))
        )
    return rows


def _pieces(
    tokenizer, text: str, count: int, length: int
) -> Iterator[tuple[list[int], list[tuple[str, int]]]]:
    """Rows of at most so many tokens, and the whole words in each with the places of their last
    tokens."""
    ids: list[int] = []
    ends: list[tuple[str, int]] = []
    for part in re.finditer(rf" ?{_WORD.pattern}|(?:(?! ?{_WORD.pattern}).)+", text, re.DOTALL):
        new = tokenizer.encode(part[0], add_special_tokens=False)
        if ids and len(ids) + len(new) > length:
            yield ids, ends
            ids = []
            ends = []
            count = count - 1
            if not count:
                return
        ids += new[: length - len(ids)]
        word = part[0].lower().removeprefix(" ")
        if new and len(new) <= length and _WORD.fullmatch(word):
            ends.append((word, len(ids) - 1))
    if ids:
        yield ids, ends


@torch.inference_mode()
def rotary_decay(model, distances: int = 128) -> tuple[list[float], float]:
    """Mean logit of a random query and the key that equals it, by their distance; and how far
    logits of equal distances at different places differ."""
    attention = model.model.layers[0].attn
    d = attention.d
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, d, generator=generator)

    def at(position: int) -> torch.Tensor:
        return turn(x, *attention.rotary(position, 1, x.device))

    means = [float((at(0) * at(m)).sum(-1).mean() / d) for m in range(distances)]
    spread = max(
        float(((at(m) * at(m + 7)).sum(-1) - (at(0) * at(7)).sum(-1)).abs().max())
        for m in (1, 50, 100)
    )
    return means, spread


@torch.inference_mode()
def accuracy(model, tokenizer, path: Path, limit: int) -> tuple[float, float, int]:
    """Shares of items whose right choice is the likeliest, in all and for its length."""
    right = [0, 0]
    lines = path.read_text().splitlines()
    items = [json.loads(line) for line in lines[:: max(1, len(lines) // limit)]][:limit]
    begin = model.config.bos_token_id
    longest = model.config.max_seq_len
    for item in tqdm(items, leave=False):
        scores = []
        for choice in item["choices"]:
            glue = " " if item["context"] and not item["context"].endswith(" ") else ""
            ahead = [begin, *tokenizer.encode(item["context"] + glue, add_special_tokens=False)]
            behind = tokenizer.encode(choice, add_special_tokens=False)[: longest - 1]
            ids = torch.tensor([ahead[-(longest - len(behind)) :] + behind])
            logits = (
                model(ids, logits_to_keep=len(behind) + 1, use_cache=False)
                .logits[0, :-1]
                .log_softmax(-1)
            )
            total = logits.gather(1, torch.tensor(behind)[:, None]).sum().item()
            scores.append((total, total / max(len(choice), 1)))
        for i in range(2):
            right[i] += max(range(len(scores)), key=lambda k: scores[k][i]) == item["label"]
    return right[0] / len(items), right[1] / len(items), len(items)


def model(args: Namespace) -> None:
    """What a model has learned."""
    torch.set_num_threads(1)
    network, tokenizer = load_folder(args.folder)
    curvatures = {name: p.item() for name, p in network.named_parameters() if name.endswith(".c")}
    print("curvatures:", {name: round(value, 3) for name, value in curvatures.items()})
    if args.text:
        for what, norm, count in norms_by_rarity(network, tokenizer, args.text.read_text()):
            print(f"words that the text has {what}: norm {norm:.3f} over {count}")
    means, spread = rotary_decay(network)
    kept = {m: round(means[m], 3) for m in (0, 1, 2, 4, 8, 16, 32, 64)}
    print("RoPE, logits by distance:", kept, f"relative to {spread:.1e}")
    if args.figure:
        pyplot = require("matplotlib.pyplot", "viz")
        figure, axis = pyplot.subplots(figsize=(5.4, 3.0))
        axis.plot(range(len(means)), means, color="C0", linewidth=1)
        axis.set(xlabel="distance in tokens", ylabel="mean product of a vector and itself")
        _write(figure, args.figure)
    for path in args.items:
        plain, length, count = accuracy(network, tokenizer, path, args.limit)
        print(f"{path.name}: {plain:.3f}, by length {length:.3f}, {count} items")


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    of_runs = commands.add_parser("runs", help="trainings side by side")
    of_runs.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="WORK_DIR",
        help="called NAME-sSEED; or a file kept",
    )
    of_runs.add_argument("--keep", type=Path, metavar="FILE", help="write there what was read")
    of_runs.add_argument(
        "--steps", type=int, nargs="+", metavar="N", help="columns of the table (default: all)"
    )
    of_runs.add_argument(
        "--tokens", type=int, default=1024, metavar="N", help="of a step (default: 1024)"
    )
    of_model = commands.add_parser("model", help="what a model has learned")
    of_model.add_argument("folder", metavar="FOLDER", help="as hypvision lm save writes it")
    of_model.add_argument("--text", type=Path)
    of_model.add_argument("--items", type=Path, nargs="*", default=[])
    of_model.add_argument(
        "--limit", type=int, default=300, metavar="N", help="items of a file (default: 300)"
    )
    for command, function in ((of_runs, runs), (of_model, model)):
        command.add_argument("--figure", type=Path, metavar="FILE", help="draw it there")
        command.set_defaults(function=function)
    args = parser.parse_args()
    return guard(args.function, args)


if __name__ == "__main__":
    sys.exit(main())
