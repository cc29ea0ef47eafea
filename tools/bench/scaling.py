"""A training step of the toy model of superposition: the published form against ours.

The published step draws two dense uniform matrices, differentiates by autograd and updates
parameter by parameter (`tests/references/toy_reference.py`); ours draws the active entries and has
loss and gradient in closed form. Both are timed in turns, whole steps from drawing to update. Then
both train in float64 on the same batches.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import torch
from references import toy_reference as reference
from torch import Tensor
from tqdm import tqdm

import hypvision
from bench.common import add_run_arguments, in_turns, report, start
from hypvision.scaling.data import frequencies, sample, sparse, stream
from hypvision.scaling.model import initial, joined, loss_and_gradient, parts
from hypvision.scaling.optimizer import AdamW

TARGETS = {10: ">= 3x", 39: ">= 3x", 100: ">= 2x"}
MARKS = ("<!-- scaling:begin -->", "<!-- scaling:end -->")
_DECAY = -0.5556
_RATE = 1e-3

INTRODUCTION = f"""
## Toy model of superposition

`published` is a step of the paper's scripts, written down step by step
(`tests/references/toy_reference.py`). Whole steps: drawing the batch, loss and gradient, update.
`difference` is the largest one of losses, `W` and `b` after as many steps as the row says, in
float64, on the same batches, with the schedule of a run of 20,000 steps.

{MARKS[0]}
{MARKS[1]}
"""


def steps(m: int, features: int, batch: int, device: str) -> dict[str, Callable[[], object]]:
    """A step of each form, both from the same weights."""
    p = frequencies("power", features, 1.0)
    weight, bias = initial(features, m, stream("bench", m))
    model = reference.Autoencoder(weight, bias).to(device)
    optimizer = reference.Optimizer(model, _DECAY)
    parameters = joined([(weight, bias)]).to(device)
    ours = AdamW(parameters, torch.tensor([_DECAY]))
    rate = torch.tensor([_RATE], device=device)
    thin = p.float().to(device)
    generator = torch.Generator(device).manual_seed(0)
    number = iter(range(2**62))

    def published() -> None:
        first, second = (
            torch.rand(batch, features, generator=generator, device=device) for _ in range(2)
        )
        x = (first < thin).float() * second * 2
        model.zero_grad()
        loss = ((model(x) - x) ** 2).mean()
        loss.backward()
        optimizer.step((_RATE, _RATE))
        loss.item()

    @torch.no_grad()
    def closed_form() -> None:
        drawn = sample(p, batch, stream("bench", next(number))).to(device, torch.float32)
        ours.step(loss_and_gradient(parameters, drawn)[1], rate, rate)

    return {"published": published, "ours": closed_form}


@torch.no_grad()
def difference(m: int, features: int, batch: int, count: int) -> float:
    """The largest difference of losses, ``W`` and ``b`` between both forms after ``count`` steps in
    float64."""
    p = frequencies("power", features, 1.0).float()
    weight, bias = initial(features, m, stream("bench", m), torch.float64)
    parameters = joined([(weight, bias)])
    ours = AdamW(parameters, torch.tensor([_DECAY], dtype=torch.float64))
    losses = []

    def rates(step: int) -> tuple[float, float]:
        return (reference.small_rate(step, 20000),) * 2  # the beginning of a whole run

    def batches() -> Iterator[Tensor]:
        for k in range(count):
            x = reference.draw(p, batch, stream("equal", k)).double()
            with torch.no_grad():
                found, gradient = loss_and_gradient(parameters, sparse(x))
                rate = torch.tensor([rates(k)[0]], dtype=torch.float64)
                ours.step(gradient, rate, rate)
            losses.append(found.item())
            yield x

    with torch.enable_grad():
        *theirs, their_losses = reference.train(weight, bias, batches(), _DECAY, rates)
    differences = [(a - b).abs().max().item() for a, b in zip(parts(parameters, 0, m), theirs)]
    return max(*differences, *(abs(a - b) for a, b in zip(losses, their_losses)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--features", type=int, default=1000, help="number of features (default: 1000)"
    )
    parser.add_argument("--batch", type=int, default=2048, help="samples of a step (default: 2048)")
    parser.add_argument(
        "--steps", type=int, default=200, help="steps of the comparison in float64 (default: 200)"
    )
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[10, 39, 100], help="widths (default: 10 39 100)"
    )
    add_run_arguments(parser, repeats=30)


def run(args: argparse.Namespace) -> None:
    start(args, features=2, batch=1, steps=1)
    lines = [
        "| width m | published, ms | ours, ms | faster | target | steps | difference in float64 |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    with tqdm(total=2 * (args.repeats + 1) * len(args.widths), unit="step") as bar:
        for m in args.widths:
            found = in_turns(
                steps(m, args.features, args.batch, args.device), args.repeats, args.device, bar
            )
            theirs = found["published"]
            ours = found["ours"]
            far = difference(m, args.features, args.batch, args.steps)
            lines.append(
                f"| {m} | {1000 * theirs:.1f} | {1000 * ours:.1f} | {theirs / ours:.1f}x | "
                f"{TARGETS.get(m, '')} | {args.steps} | {far:.0e} |"
            )
    facts = (
        f"hypvision {hypvision.__version__}. Medians of {args.repeats}; {args.features} features, "
        f"batch {args.batch}, float32; alpha 1, decay -0.556."
    )
    report(
        args, ["features", "batch", "steps", "widths"], facts, "\n".join(lines), MARKS, INTRODUCTION
    )
