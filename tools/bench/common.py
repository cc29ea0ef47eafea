"""What all benchmarks share: memory, a line about the machine, and tables in a Markdown file."""

from __future__ import annotations

import gc
import platform
import re
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from hypvision.io.errors import HypvisionError
from hypvision.io.files import replacing

MIB = 2**20
GIB = 2**30


def peak_bytes(function: Callable[[], object], device: str = "cpu") -> int:
    """Bytes allocated at the worst moment of a call, beyond those that were allocated before it.

    On a GPU the allocator keeps count. On a CPU the profiler records every allocation and release,
    and they are added up in order.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, profile_memory=True, acc_events=True
    ) as profile:
        function()
    events = [
        event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    level = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak


def held_bytes(module: nn.Module) -> int:
    """Bytes of the parameters and buffers of a network."""
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))


def machine(device: str) -> str:
    """What the numbers were measured on, in one line."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file() and (match := re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())):
        name = match[1].strip()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}, PyTorch {torch.__version__}"


def write_section(
    path: Path, marks: tuple[str, str], text: str, introduction: str | None = None
) -> None:
    """Replace what stands between two marks in a Markdown file.

    Args:
        path: the file.
        marks: comments before and after the text.
        text: the new text.
        introduction: a section with the marks, appended to a file that has none of them; a missing
            file begins with it. Without one the file must be there and have the marks.

    Raises:
        HypvisionError: a mark is missing or they are in the wrong order, or the file cannot be read
            or written.
    """
    try:
        page = (
            path.read_text(encoding="utf-8")
            if introduction is None or path.exists()
            else "# Benchmarks\n"
        )
    except OSError as error:
        raise HypvisionError(
            f"'{path}' cannot be read: {error.strerror}. Name a Markdown file that is there."
        ) from error
    if introduction is not None and not any(mark in page for mark in marks):
        page = f"{page.rstrip()}\n{introduction}"
    begin = page.find(marks[0])
    end = page.find(marks[1])
    if not 0 <= begin < end:
        raise HypvisionError(
            f"'{path}' lacks the marks {marks[0]} and {marks[1]}, between which the table goes."
        )
    with replacing(path) as temporary:
        temporary.write_text(
            f"{page[: begin + len(marks[0])]}\n{text}\n{page[end:]}", encoding="utf-8"
        )


def timings(
    calls: dict[str, Callable[[], object]],
    repeats: int,
    device: str,
    bar: tqdm | None = None,
    warm: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call in every round, one after the other; a round to warm up, if wanted, does
    not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(0 if warm else 1, repeats + 1):
        for name, call in calls.items():
            begin = clock()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            if number:
                times[name].append(clock() - begin)
            if bar is not None:
                bar.update()
    return times


def in_turns(
    calls: dict[str, Callable[[], object]],
    repeats: int,
    device: str,
    bar: tqdm | None = None,
    warm: bool = True,
) -> dict[str, float]:
    """Median seconds of each call, see :func:`timings`."""
    return {
        name: statistics.median(values)
        for name, values in timings(calls, repeats, device, bar, warm).items()
    }


def add_run_arguments(parser: ArgumentParser, repeats: int) -> None:
    """The options of every benchmark: ``--repeats``, ``--threads``, ``--device``, ``--write``."""
    parser.add_argument(
        "--repeats",
        type=int,
        default=repeats,
        help=f"timed calls of each kind (default: {repeats})",
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's choice)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--write", metavar="FILE", type=Path, help="write the table into this Markdown file, too"
    )


def start(args: Namespace, **least: int) -> None:
    """Check options, take the threads that are asked for and seed PyTorch.

    Args:
        args: of the command line.
        least: smallest value of further options; ``repeats`` and ``threads`` are 1 or more.

    Raises:
        HypvisionError: an option is too small, or there is no GPU.
    """
    for name, value in dict(least, repeats=1, threads=1).items():
        if getattr(args, name) is not None and getattr(args, name) < value:
            raise HypvisionError(f"--{name} must be at least {value}, got {getattr(args, name)}.")
    set_device(args.device, args.threads)
    torch.manual_seed(0)


def set_device(device: str, threads: int | None) -> None:
    """Check that there is the GPU that is asked for, and take as many CPU threads as are.

    Raises:
        HypvisionError: there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise HypvisionError(
            "--device cuda: PyTorch finds no GPU here. Leave the option out to measure on the CPU."
        )
    if threads:
        torch.set_num_threads(threads)


def report(
    args: Namespace,
    options: Sequence[str],
    facts: str,
    table: str,
    marks: tuple[str, str],
    introduction: str,
) -> None:
    """Print the command that repeats the measurement, the machine, and the table; write them with
    ``--write``.

    Args:
        args: of the command line.
        options: names of the options to show beside those of every benchmark; one without a value
            is left out.
        facts: versions and sizes, a sentence.
        table: Markdown.
        marks, introduction: see :func:`write_section`.
    """
    command = ["tools/benchmark.py", args.benchmark]
    for name in (*options, "repeats", "device"):
        value = getattr(args, name)
        if value is not None:
            command += [
                f"--{name}",
                *map(str, value if isinstance(value, (list, tuple)) else [value]),
            ]
    if args.device == "cpu":
        command += ["--threads", str(torch.get_num_threads())]
    text = f"`{' '.join(command)}`\n\n{machine(args.device)}; {facts}\n\n{table}"
    print(text)
    if args.write:
        write_section(args.write, marks, text, introduction)
        print(f"\nWritten to {args.write}")
