"""``tools/benchmark.py fewshot``: both sides compute the same, and a run of some rows leaves the
others."""

import argparse

import pytest
import torch

pytest.importorskip("open_clip")

from bench import fewshot as bench
from helpers.fewshot import bundle


def arguments(*words):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    parser.set_defaults(benchmark="fewshot")
    return parser.parse_args(list(map(str, words)))


@pytest.mark.parametrize("name", ["maple", "promptsrc"])
def test_a_plain_step_has_the_loss_of_ours(name):
    model = bench.made(
        name, bundle(), 4, **(dict(templates=2) if name == "promptsrc" else {})
    ).train()
    images, labels = bench.batch(argparse.Namespace(size=64, device="cpu"), 4)
    tokens = model.host.tokens(model.host.sentences())
    ours = sum(model(images, labels, mode="loss").values())
    plain = bench.plain_step(model.host, tokens, images, labels, name)
    torch.testing.assert_close(plain, ours, rtol=1e-4, atol=1e-5)


def test_rows_of_several_runs(tmp_path, capsys):
    page = tmp_path / "benchmarks.md"
    shared = [
        "--model",
        "emoji-s16",
        "--classes",
        3,
        "--repeats",
        1,
        "--templates",
        1,
        "--write",
        page,
    ]
    bench.run(arguments("--only", "heads", *shared))
    bench.run(arguments("--only", "evaluation", "--batches", 4, *shared))
    rows = [
        line.split("|")[1].strip()
        for line in page.read_text().splitlines()
        if line.startswith("| ")
    ]
    names = [
        "evaluation, maple, 3 classes, batch 4",
        *(f"{n}, batch 8, features kept (views 0)" for n in bench.HEADS),
    ]
    assert rows[1:] == names and "clip-adapter" in capsys.readouterr().out
