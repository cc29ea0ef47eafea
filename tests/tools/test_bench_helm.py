"""The benchmark of language models counts and writes what it says; the times themselves are not
tested."""

import argparse
import time

import pytest
from bench import helm as bench

from hypvision.helm import PRESETS, preset


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(PRESETS, "helm_d_115m", dict(dim=390, n_heads=6, inter_dim=390))
    monkeypatch.setitem(
        PRESETS,
        "helm_mice_120m",
        {**PRESETS["helm_mice_120m"], "inter_dim": 390, "mice_inter_dim": 98},
    )


def arguments(*words):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    args = parser.parse_args([*words, "--repeats", "1", "--layers", "2"])
    args.benchmark = "helm"
    return args


def test_numbers_of_a_plain_cache():
    """Space parts of keys and values of all heads, as published for each size."""
    for name, count in {"helm_d_115m": 768, "helm_mice_120m": 486, "helm_mice_1b": 2702}.items():
        assert bench.plain_cache(preset(name)) == count


def test_memory_of_other_processes_is_not_counted():
    """On one thread; a call that only waits has taken next to nothing of the processor."""
    calls = {"waits": lambda: time.sleep(0.05)}
    args = argparse.Namespace(device="cpu", repeats=2)
    assert bench.ratios(calls, args, None)["waits"] < 0.01


@pytest.mark.slow
def test_all_parts(small, tmp_path, capsys):
    page = tmp_path / "benchmarks.md"
    bench.run(
        arguments("--vocabulary", "300", "--lengths", "16", "--rows", "600", "--write", str(page))
    )
    text = page.read_text()
    for row in (
        "HELM-D step, V 300, L 16, eager", "HELM-MiCE layer, L 16", "peak MiB above weights",
        "600 rows", "core of its attention", "helm_mice_120m: a token at 128",
    ):  # fmt: skip
        assert row in text
    for cache in (
        "| 93 / 486 | 372 / 1944 bytes |",
        "| 768 / 768 | 3072 / 3072 bytes |",
    ):  # of the published sizes
        assert cache in text
    parts = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    tables = [[line for line in part if not line.startswith("<!--")] for part in parts]
    assert len(tables) == 2 and all(
        len({line.count("|") for line in table}) == 1 for table in tables
    )
