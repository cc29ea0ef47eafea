"""HCFormer against its literal formulation (``hcformer_reference``) and timm's Swin-T and ResNets.

Times are medians of repeats that alternate between the models, so that a machine whose speed drifts hurts all alike.
Peak memory counts what the step allocates beyond the model and its input.
"""

from __future__ import annotations

import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from hcformer_reference import VARIANTS, ClusterMixer, ReferenceHCFormer
from torch import nn
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

import hypvision  # noqa: F401 - registers the models
from hypvision.nn import ClusterMixer as FastMixer

__all__ = ["add_arguments", "peak_memory", "run"]

PEERS = ("swin_tiny_patch4_window7_224", "resnet18", "resnet50")


def peak_memory(function: Callable[[], object], device: str = "cpu") -> int:
    """Bytes allocated at the highest point of a call, above what was allocated before it."""
    if device != "cpu":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        function()
    level = peak = 0
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak


def training_step(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Forward and backward, without an optimiser: it is the same for all."""

    def step() -> None:
        model.train()
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()

    return step


def inference(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Forward in inference mode."""

    def step() -> None:
        model.eval()
        with torch.inference_mode():
            model(x)

    return step


def medians(functions: dict[str, Callable[[], None]], repeats: int, device: str, title: str) -> dict[str, float]:
    """Median seconds of each function; one warm-up, then ``repeats`` rounds through all of them."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in tqdm(range(repeats + 1), desc=title, unit="round", leave=False):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            if device != "cpu":
                torch.cuda.synchronize()
            if turn:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def mixers(device: str) -> tuple[nn.Module, nn.Module]:
    """The first-stage mixer of HCFormer-small, literal and ours."""
    arguments = dict(heads=4, head_dim=32, fold=7, prop=4, win=4)
    literal = ClusterMixer(64, nominal=56, is_global=True, **arguments)
    return literal.to(device), FastMixer(64, nominal_size=56, **arguments).to(device)


def measure(args: Namespace) -> str:
    """The table, in Markdown."""
    device, batch = args.device, args.batch
    x = torch.randn(batch, 3, args.size, args.size, device=device)
    models: dict[str, nn.Module] = {}
    for name in args.models:
        models[f"{name}, literal"] = ReferenceHCFormer(name).to(device)
        models[name] = timm.create_model(name).to(device)
    for name in PEERS:
        sized = {"img_size": args.size} if name.startswith("swin") else {}
        models[name] = timm.create_model(name, **sized).to(device)
    infer = medians({n: inference(m, x) for n, m in models.items()}, args.repeats, device, "inference")
    train = medians({n: training_step(m, x) for n, m in models.items()}, args.repeats, device, "training")
    memory = {n: peak_memory(training_step(m, x), device) for n, m in tqdm(models.items(), "memory", leave=False)}

    lines = [
        "| model | inference, img/s | against literal | training step, img/s | against literal | peak memory of a step, MiB | against literal |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name in models:
        literal = f"{name}, literal"
        ratios = ("", "", "")
        if literal in models:
            ratios = (
                f"{infer[literal] / infer[name]:.2f}x",
                f"{train[literal] / train[name]:.2f}x",
                f"{memory[name] / memory[literal]:.2f}x",
            )
        lines.append(
            f"| {name} | {batch / infer[name]:.1f} | {ratios[0]} | {batch / train[name]:.1f} | {ratios[1]} | "
            f"{memory[name] / 2**20:.0f} | {ratios[2]} |"
        )
    literal, ours = mixers(device)
    maps = torch.randn(batch, 64, args.size // 4, args.size // 4, device=device)
    slow = peak_memory(training_step(literal, maps), device)
    fast = peak_memory(training_step(ours, maps.permute(0, 2, 3, 1).contiguous()), device)
    lines += ["", f"Mixer of the first stage of hcformer_small alone, peak memory of forward and backward: "
                  f"{fast / 2**20:.0f} MiB against {slow / 2**20:.0f} MiB, {fast / slow:.2f}x."]  # fmt: skip
    return "\n".join(lines)


def machine(device: str) -> str:
    """What the figures were taken on."""
    if device != "cpu":
        return f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    name = "CPU"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return f"{name}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``tools/benchmark.py hcformer``."""
    parser.add_argument("--models", nargs="+", default=["hcformer_nano", "hcformer_small"], choices=list(VARIANTS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224, help="side of the pictures in pixels")
    parser.add_argument("--repeats", type=int, default=5, help="rounds after the warm-up")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])


def run(args: Namespace) -> str:
    """Measure; returns a section in Markdown."""
    table = measure(args)
    return f"{machine(args.device)}; {args.size} px, batch {args.batch}, medians of {args.repeats}.\n\n{table}\n"
