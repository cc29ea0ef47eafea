"""``tools/benchmark.py radial`` measures equal things and writes what it says; the times themselves
are not tested."""

import argparse

import pytest

pytest.importorskip("open_clip")

from bench import radial as bench

from hypvision.io.errors import HypvisionError


def arguments(*words):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    parser.set_defaults(benchmark="radial")
    return parser.parse_args(words)


@pytest.mark.slow
def test_what_is_compared_is_equal(tmp_path, capsys):
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n\nkept\n")
    words = (
        f"--model emoji-s16 --images 30 --chains 3 --captions 20 --repeats 1 --write {page}".split()
    )
    bench.run(arguments(*words))
    text = page.read_text()
    assert text.startswith("# Benchmarks\n\nkept\n") and "--captions 20" in capsys.readouterr().out
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if "x | >=" in line
    ]
    assert [row[0].split(",")[0] for row in rows] == [
        "metrics",
        "tuning step",
        "tuning step",
        "embedding 20 captions",
    ]
    assert float(rows[0][-1]) <= 1e-9 and float(rows[1][-1]) < 1e-4 and float(rows[3][-1]) < 1e-5


def test_made_up_texts_are_as_long_as_those_of_the_levels():
    positive, negative = bench.made_up(400)
    for level, length in enumerate(bench.TOKENS_A_LEVEL):
        assert sum(len(c[level].split()) for c in positive) / 400 == pytest.approx(length, rel=0.1)
    assert len({chain[0] for chain in positive}) < 200 and len(negative) == 400


def test_mistakes_are_explained():
    with pytest.raises(HypvisionError, match="must be at least 2"):
        bench.run(arguments("--images", "1"))
