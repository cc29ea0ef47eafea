"""``tools/benchmark.py hier`` measures and writes what it says; the times themselves are not
tested."""

import argparse

import pytest
from bench import hier as bench

from hypvision.io.errors import HypvisionError


def arguments(*words):
    parser = argparse.ArgumentParser()
    parser.set_defaults(benchmark="hier")
    bench.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.slow
def test_the_section_is_appended_and_replaced(tmp_path, capsys):
    page = tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    page.write_text("# Benchmarks\n\nkept\n")
    words = f"--samples 12 --proxies 10 --dim 4 --repeats 1 --write {page}".split()
    for _ in range(2):
        bench.run(arguments(*words))
    text = page.read_text()
    assert (
        text.startswith("# Benchmarks\n\nkept\n")
        and text.count(bench.MARKS[0]) == text.count("## HIER") == 1
    )
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    names = [row[0].removeprefix("| ") for row in rows[1:]]
    assert names[0] == "HIER" and names[-2:] == ["published / ours", "target"]
    times = {row[0].removeprefix("| "): float(row[1]) for row in rows[1:-2]}
    assert times["HIER, published"] > 0 and "--samples 12" in capsys.readouterr().out


def test_both_forms_are_given_the_same_problem():
    """The published form and ours agree on the problem that is timed."""
    import torch
    from references.hier import reference_hier_loss

    from hypvision.geometry import PoincareBall
    from hypvision.losses import HIERLoss, clip_to_ball

    features, loss = torch.randn(12, 6) * 3, HIERLoss(PoincareBall(0.1), 6, 10)
    drawn = loss._triplets(
        clip_to_ball(features, loss.manifold), torch.arange(12) // 2, torch.rand(10, 10), None
    )
    triplets = [rows[valid] for rows, valid in drawn]
    noise = tuple(-torch.empty(2, len(t), 10).exponential_().log() for t in triplets)
    ours = loss(clip_to_ball(features, loss.manifold), torch.arange(12) // 2, triplets, noise)
    assert ours.item() == pytest.approx(
        reference_hier_loss(features, loss.proxies, triplets, noise).item(), abs=1e-3
    )


@pytest.mark.parametrize("words", ["--samples 1", "--repeats 0", "--threads 0"])
def test_mistakes_are_explained(words):
    with pytest.raises(HypvisionError, match="must be at least"):
        bench.run(arguments(*words.split()))
