"""``tools/benchmark.py scaling`` measures and writes what it says; the times themselves are not
tested."""

import argparse

import pytest
from bench import scaling as bench

from hypvision.io.errors import HypvisionError


def arguments(*words):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    args = parser.parse_args(words)
    args.benchmark = "scaling"
    return args


def test_the_section_is_written(tmp_path, capsys):
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n\nkept\n")
    words = "--features 40 --batch 16 --steps 5 --widths 3 10 --repeats 1 --threads 1 --write"
    bench.run(arguments(*words.split(), str(page)))
    text = page.read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert text.startswith("# Benchmarks\n\nkept\n") and [row[0] for row in rows] == ["| 3", "| 10"]
    assert all(float(row[1]) > 0 and float(row[2]) > 0 and row[3].endswith("x") for row in rows)
    assert all(float(row[-1].removesuffix(" |")) < 1e-10 for row in rows) and rows[1][4] == ">= 3x"
    assert "--widths 3 10" in capsys.readouterr().out


def test_mistakes_are_explained():
    with pytest.raises(HypvisionError, match="--batch must be at least 1"):
        bench.run(arguments("--batch", "0"))
