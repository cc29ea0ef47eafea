"""The benchmark measures what it says and writes its table; the times themselves are not tested."""

import argparse

import pytest
import torch
from bench import hyperclip as bench

from hypvision.clip import adapters
from hypvision.clip.models import create_clip
from hypvision.io.errors import HypvisionError


@pytest.fixture
def arguments(tmp_path):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{bench.MARKS[0]}\nold\n{bench.MARKS[1]}\nafter\n")
    return parser.parse_args(
        f"--models emoji-t8 --size 32 --prompts 3 --repeats 1 --write {page}".split()
    )


def test_table_is_written(arguments):
    bench.run(arguments)
    page = arguments.write.read_text()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert page.startswith("before") and page.endswith("after\n") and "old" not in page
    assert (
        len({row.count("|") for row in rows}) == 1
        and rows[2].startswith("| emoji-t8 | ")
        and len(rows) == 4
    )


def test_both_ways_of_making_weights_have_the_same_gradient():
    model = adapters.inject(create_clip("emoji-t8").model, block=32)
    gradients = []
    for make in (bench.reference_weights, bench.fused_weights):
        model.zero_grad()
        make(model)
        gradients.append(
            [parameter.grad.clone() for parameter in adapters.trainable_parameters(model)]
        )
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(*gradients))


def test_mistakes_are_explained(arguments, tmp_path):
    for name in ("batch", "repeats", "prompts"):
        with pytest.raises(HypvisionError, match=f"--{name} must be at least 1"):
            bench.run(argparse.Namespace(**{**vars(arguments), name: 0}))
    (tmp_path / "page.md").write_text(bench.MARKS[0])
    with pytest.raises(HypvisionError, match="lacks the marks"):
        bench.run(argparse.Namespace(**{**vars(arguments), "write": tmp_path / "page.md"}))
