"""HELM's training step and decoding beside Euclidean counterparts and the published formulation.

`plain` is the Euclidean counterpart of equal width: a LLaMA-like (for HELM-MiCE DeepSeek-like)
decoder of the same layers with fused q|k|v and w1|w3, scaled_dot_product_attention, no biases and
no final projection; `padded` is the same with our functions by hand and rows filled to a multiple
of 8. All have the same head in blocks. A step is forward and backward. `published` is the authors'
formulation, step by step (`tests/references/helm.py`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from references.helm import HelmD
from references.helm import centroid as published_centroid
from torch import Tensor, nn
from tqdm import tqdm

import hypvision
from bench.common import MIB, add_run_arguments, peak_bytes, report, start, timings
from hypvision.geometry import Lorentz, ManifoldParameter
from hypvision.helm import Architecture, Helm, preset, rows
from hypvision.helm.attention import Context, attend
from hypvision.helm.cache import LatentCache
from hypvision.helm.layers import PointEmbedding
from hypvision.optim import RiemannianAdam

MARKS = ("<!-- helm:begin -->", "<!-- helm:end -->")
INTRODUCTION = f"""
## HELM language models

{__doc__.split(chr(10), 2)[2].strip()}

{MARKS[0]}
{MARKS[1]}
"""
PARTS = ("dense", "mixed", "memory", "optimizer", "published", "decode")
COUNTERPARTS = {
    "plain": dict(geometry="euclidean", pad=1, fused=False),
    "padded": dict(geometry="euclidean"),
}


def ratios(
    calls: dict[str, Callable[[], object]],
    args: argparse.Namespace,
    bar: tqdm,
    repeats: int | None = None,
) -> dict[str, float]:
    """Least seconds of each call, in turns: the machine's noise only ever adds. One thread's are
    those that the processor gave it, in which other processes do not count."""
    alone = args.device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    found = timings(calls, repeats or args.repeats, args.device, bar, clock=clock)
    return {name: min(values) for name, values in found.items()}


def step_of(model: nn.Module, ids: Tensor) -> Callable[[], None]:
    """A training step without the optimiser."""

    def step() -> None:
        model.zero_grad()
        model(ids, labels=ids).loss.backward()

    return step


def variants(name: str, device: str, **options) -> dict[str, nn.Module]:
    """The model and its Euclidean counterparts, by the name of their row."""
    built = {}
    for row, changes in {"HELM": {}, **COUNTERPARTS}.items():
        torch.manual_seed(0)
        built[row] = Helm(preset(name, **options, **changes)).to(device)
    return built


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def dense(args: argparse.Namespace, bar: tqdm) -> Iterator[str]:
    """HELM-D's whole step."""
    for vocabulary in args.vocabulary:
        for length in args.lengths:
            models = variants(
                "helm_d_115m", args.device, vocab_size=vocabulary, n_layers=args.layers
            )
            ids = torch.randint(0, vocabulary, (1, length), device=args.device)
            for how in ("eager", "compiled") if args.compiled else ("eager",):
                if how == "compiled":
                    for model in models.values():
                        for block in model.layers:
                            block.compile()
                found = ratios({n: step_of(m, ids) for n, m in models.items()}, args, bar)
                yield step_row(f"HELM-D step, V {vocabulary}, L {length}, {how}", found, how)


TARGETS = {
    "eager": "1.03x / 1.08x",
    "compiled": "1.04x / 1.08x",
    "layer": "1.07x / 1.10x",
    "memory": "1.0x / 1.2x",
}


def step_row(
    what: str, seconds: dict[str, float], target: str, unit: float = 1e3, digits: int = 1
) -> str:
    """A row of the first table."""
    values = [f"{seconds[n] * unit:.{digits}f}" for n in ("HELM", "plain", "padded")]
    against = (seconds["HELM"] / seconds[n] for n in ("plain", "padded"))
    return row(what, *values, " / ".join(f"{r:.2f}x" for r in against), f"<= {TARGETS[target]}")


@torch.no_grad()
def even(gate: nn.Module, x: Tensor, steps: int = 1500) -> None:
    """Shift the bias of a gate until the experts have as many of these tokens each: how fast they
    are depends on it."""
    for i in range(steps):
        share = torch.bincount(gate(x)[1].flatten(), minlength=len(gate.bias)) / (
            len(x) * gate.config.n_activated_experts
        )
        gate.bias += 0.05 * 0.996**i * (share.mean() - share)


def mixed(args: argparse.Namespace, bar: tqdm) -> Iterator[str]:
    """One layer with latent attention and experts, which have as many tokens each."""
    for length in args.lengths:
        models = variants(
            "helm_mice_120m", args.device, vocab_size=512, n_layers=2, n_dense_layers=0
        )
        calls = {}
        inside = {}
        for name, model in models.items():
            block = model.layers[0]
            hidden = model.points(torch.randint(0, 512, (1, length), device=args.device)).detach()
            normed = model.first_norm(hidden).detach()
            even(block.ffn.gate, normed.flatten(0, -2))

            def layer(block=block, x=hidden, h=normed) -> None:
                block.zero_grad()
                x = x.requires_grad_()
                h = h.requires_grad_()
                out = block(x, h, Context())
                (out[0].sum() + out[1].sum()).backward()

            def ffn(block=block, h=normed) -> None:
                block.zero_grad()
                block.ffn(h.requires_grad_())[0].sum().backward()

            calls[name], inside[name] = layer, ffn
        yield step_row(f"HELM-MiCE layer, L {length}", ratios(calls, args, bar), "layer")
        yield step_row(f"- its experts alone, L {length}", ratios(inside, args, bar), "layer")


def memory(args: argparse.Namespace, bar: tqdm) -> Iterator[str]:
    """Peak of a step above the parameters; gradients count."""
    length = max(args.lengths)
    models = variants(
        "helm_d_115m", args.device, vocab_size=args.vocabulary[0], n_layers=args.layers
    )
    ids = torch.randint(0, args.vocabulary[0], (1, length), device=args.device)
    found = {}
    for name, model in models.items():
        step_of(model, ids)()
        model.zero_grad()
        found[name] = peak_bytes(step_of(model, ids), args.device)
        bar.update()
    yield step_row(
        f"HELM-D peak MiB above weights, V {args.vocabulary[0]}, L {length}",
        found,
        "memory",
        1 / MIB,
        0,
    )


def optimizer(args: argparse.Namespace, bar: tqdm) -> Iterator[str]:
    """A step of points against AdamW with its defaults on as many rows."""
    for count in args.rows:
        points = PointEmbedding(count, 390).weight.detach().to(args.device)
        table = ManifoldParameter(points.clone(), Lorentz(1.0))
        flat = nn.Parameter(points.clone())
        table.grad = torch.randn_like(points) * 1e-3
        flat.grad = torch.randn_like(points) * 1e-3
        calls = {
            "ours": RiemannianAdam([table], lr=4e-4).step,
            "AdamW": torch.optim.AdamW([flat], lr=4e-4).step,
            "fused AdamW": torch.optim.AdamW([flat], lr=4e-4, fused=True).step,
        }
        found = ratios(calls, args, bar)
        values = " / ".join(f"{1e3 * found[name]:.0f}" for name in calls)
        yield row(
            f"Riemannian Adam, {count:,} rows: ours / AdamW / fused AdamW, ms", values,
            f"{found['ours'] / found['AdamW']:.2f}x of AdamW", "<= 1x",
        )  # fmt: skip


def published(args: argparse.Namespace, bar: tqdm) -> Iterator[str]:
    """The published formulation, step by step."""
    length = max(args.lengths)
    vocabulary = max(args.rows)
    config = preset("helm_d_115m", vocab_size=vocabulary, n_layers=args.layers)
    torch.manual_seed(0)
    ours = Helm(config).to(args.device)
    theirs = HelmD(config).to(args.device)
    ids = torch.randint(0, vocabulary, (1, length), device=args.device)

    def their_step() -> None:
        theirs.zero_grad()
        logits = theirs(ids)
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()

    block = ours.layers[0]
    old = theirs.resblocks[0]
    x = ours.points(ids).detach()
    normed = ours.first_norm(x).detach().requires_grad_()
    point = torch.cat([x[..., 389:390], x[..., :389]], -1).requires_grad_()
    blocked = theirs.attn_mask[:length, :length]

    def body() -> None:
        out = block(x, normed, Context())
        (out[0].sum() + out[1].sum()).backward()

    def their_body() -> None:
        y = old.res1(point, old.attn(old.ln_1(point), blocked, theirs.freqs_complex))
        old.res2(y, old.mlp(old.ln_2(y))).sum().backward()

    with torch.no_grad():
        q, k, v, scale = block.attn.project(normed, 0)
    q, k, v = (t.detach().clone().requires_grad_() for t in (q, k, v))
    time_first = [
        torch.cat([t[..., 64:], t[..., :64]], -1).transpose(1, 2).detach() for t in (q, k, v)
    ]
    old_q, old_k, old_v = (t.contiguous().requires_grad_() for t in time_first)

    def core() -> None:
        out = attend(*(t.transpose(1, 2) for t in (q, k, v)), scale, Context())
        rows.centroid(out.transpose(1, 2), 65, 392).sum().backward()

    def their_core() -> None:
        logits = (2 + 2 * old_q @ old_k.mT) / 19.75  # the sign of the time is in q already
        published_centroid(logits.masked_fill(blocked, -1e18).softmax(-1), old_v).sum().backward()

    pairs = {
        f"whole step, V {vocabulary}, L {length}": (step_of(ours, ids), their_step, "no slower"),
        f"a block, L {length}": (body, their_body, ">= 1.4x"),
        f"core of its attention, L {length}": (core, their_core, ">= 2x"),
    }
    for what, (mine, other, target) in pairs.items():
        found = ratios({"ours": mine, "published": other}, args, bar, max(2, args.repeats // 4))
        values = f"{1e3 * found['ours']:.0f} / {1e3 * found['published']:.0f}"
        yield row(
            f"{what}: ours / published, ms",
            values,
            f"{found['published'] / found['ours']:.1f}x",
            target,
        )
    peaks = []
    for model, step in ((ours, step_of(ours, ids)), (theirs, their_step)):
        model.zero_grad()
        peaks.append(peak_bytes(step, args.device) / MIB)
        bar.update()
    values = f"{peaks[0]:.0f} / {peaks[1]:.0f}"
    yield row(
        "peak above weights: ours / published, MiB",
        values,
        f"{peaks[0] / peaks[1]:.2f}x",
        "<= 0.3x",
    )


def plain_cache(config: Architecture) -> int:
    """Numbers a token and layer that keys and values of all heads take, without times, which follow
    from the rest."""
    if config.attention == "full":
        return 2 * (config.dim - config.n_heads)
    return config.n_heads * (
        config.qk_nope_head_dim + config.qk_rope_head_dim - 1 + config.v_head_dim - 1
    )


def decode(args: argparse.Namespace, bar: tqdm) -> Iterator[str]:
    """A token with the cache, near the beginning and near the end of the context."""
    for name in ("helm_d_115m", "helm_mice_120m"):
        model = (
            Helm(preset(name, vocab_size=max(args.rows), n_layers=args.layers))
            .eval()
            .to(args.device)
        )
        seconds = {}
        held = 0
        with torch.inference_mode():
            for length in (128, 2040):
                cache = LatentCache()
                ids = torch.randint(0, 512, (1, length), device=args.device)
                model(ids, cache=cache, logits_to_keep=1)
                held = (
                    sum(t.numel() for pair in cache.layers for t in (pair.keys, pair.values))
                    / length
                    / args.layers
                )
                times = []
                for _ in range(8):
                    begin = time.perf_counter()
                    model(ids[:, :1], cache=cache, logits_to_keep=1)
                    times.append(time.perf_counter() - begin)
                    bar.update()
                seconds[length] = statistics.median(times[1:])
        full = plain_cache(model.config)
        values = f"{1e3 * seconds[128]:.1f} / {1e3 * seconds[2040]:.1f}"
        yield row(
            f"{name}: a token at 128 / at 2040, ms",
            values,
            f"{seconds[2040] / seconds[128]:.2f}x",
            "<= 1.3x",
        )
        what = f"{name}: numbers a token and layer, ours / keys and values of all heads"
        yield row(what, f"{held:.0f} / {full}", f"{4 * held:.0f} / {4 * full} bytes", "")


def table(args: argparse.Namespace) -> str:
    """The Markdown tables of the parts that are asked for."""
    first = []
    second = []
    with tqdm(unit="call", leave=False) as bar:
        for part in args.parts:
            for line in globals()[part](args, bar):
                (first if part in ("dense", "mixed", "memory") else second).append(line)
                tqdm.write(line)
    pages = []
    if first:
        head = [
            row("ms", "HELM", "plain", "padded", "HELM to plain / padded", "target"),
            "|---|--:|--:|--:|--:|--:|",
        ]
        pages.append("\n".join(head + first))
    if second:
        pages.append("\n".join([row("", "", "ratio", "target"), "|---|--:|--:|--:|", *second]))
    return "\n\n".join(pages)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all"
    )
    parser.add_argument(
        "--vocabulary", nargs="+", type=int, default=[8192], metavar="V", help="default: 8192"
    )
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=[512, 1024], metavar="L", help="default: 512 1024"
    )
    parser.add_argument(
        "--rows", nargs="+", type=int, default=[32000, 128256], help="of the tables of embeddings"
    )
    parser.add_argument("--layers", type=int, default=6, help="of the whole networks (default: 6)")
    parser.add_argument(
        "--compiled", action="store_true", help="whole steps with compiled blocks, too"
    )
    add_run_arguments(parser, repeats=20)


def run(args: argparse.Namespace) -> None:
    start(args, layers=2)
    text = table(args)
    facts = f"hypvision {hypvision.__version__}. float32, batch 1; least times."
    options = ["parts", "vocabulary", "lengths", "rows", "layers"]
    report(args, options, facts, text, MARKS, INTRODUCTION)
