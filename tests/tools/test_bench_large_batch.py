"""``tools/benchmark.py large-batch`` measures equal things, of which chunks take less memory; the
times themselves are not tested."""

import argparse

import pytest
import torch

pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
from bench import large_batch as bench
from bench.common import peak_bytes


@pytest.mark.slow
def test_a_chunk_needs_less_memory_than_the_batch():
    steps = bench.steps(64, 8, "cpu")
    for step in steps.values():
        step()  # the optimiser's moments are there from now on
    peaks = {name: peak_bytes(step) for name, step in steps.items()}
    assert peaks["chunks"] < 0.6 * peaks["whole"]


def test_the_rows_of_one_process_are_the_table_of_all(monkeypatch):
    found = []
    plain = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda loss, x: found.append((loss, plain(loss, x)))
    )
    for contrast in bench.contrasts(8, 1, "cpu").values():
        contrast()
    (of_all, expected), (of_one, gradients) = found
    assert of_one.item() == pytest.approx(of_all.item(), rel=1e-6)
    for one, other in zip(gradients, expected):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_a_page(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    parser.set_defaults(benchmark="large-batch")
    page = tmp_path / "benchmarks.md"
    words = f"--batches 3 --chunk 2 --pairs 8 --processes 2 --repeats 1 --write {page}"
    bench.run(parser.parse_args(words.split()))
    assert "--batches 3 --chunk 2" in capsys.readouterr().out
    assert "| 3 |" in page.read_text() and "rows of one of 2 processes" in page.read_text()


@pytest.mark.slow
def test_a_large_step_stands_beside_the_plain_one(tmp_path):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    parser.set_defaults(benchmark="large-batch")
    page = tmp_path / "benchmarks.md"
    bench.run(parser.parse_args(f"--large 5 --chunk 2 --pairs 8 --write {page}".split()))
    written = page.read_text()
    assert "--large 5 --pixels 32 --chunk 2" in written and "| 5 |" in written
