"""The benchmark counts and writes what it says; the times themselves are not tested."""

import argparse

import pytest
import torch
from bench import hcformer as bench
from bench.common import write_section

from hypvision.io.errors import HypvisionError


def test_peak_is_that_of_known_allocations():
    def step():
        a = torch.ones(1000, 1000)
        b = a + 1  # 8 MB at this moment, the peak
        del a
        return b * 2 if b.dim() == 3 else b.sum()

    assert bench.peak_bytes(step) == pytest.approx(8_000_000, rel=1e-3)


def test_peak_includes_new_memory_but_not_memory_in_use_before_the_call():
    kept = [torch.ones(500_000)]

    def step():
        kept.append(torch.ones(250_000))

    assert bench.peak_bytes(step) == pytest.approx(1_000_000, rel=1e-3)

    def replace():
        kept.clear()  # releases 3 MB that were there before
        kept.append(torch.ones(250_000))

    assert bench.peak_bytes(replace) < 1_000_000


def test_backward_keeps_activations():
    x = torch.ones(1000, 250, requires_grad=True)
    assert bench.peak_bytes(lambda: x.exp().exp().sum().backward()) >= 2 * 1_000_000


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "OTHERS", ("resnet18",))
    parser = argparse.ArgumentParser()
    parser.set_defaults(benchmark="hcformer")
    bench.add_arguments(parser)
    options = (
        "--models hcformer_nano --batch 1 --size 64 --repeats 1 --write "
        f"{tmp_path / 'docs' / 'benchmarks.md'}"
    )
    return parser.parse_args(options.split())


@pytest.mark.slow
def test_the_table_has_all_rows_and_is_written(arguments, capsys):
    bench.run(arguments)
    page = arguments.write.read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    names = [row[0].removeprefix("| ") for row in rows]
    assert names == ["model", "hcformer_nano", "hcformer_nano, reference", "resnet18", "target"]
    assert len({len(line.split("|")) for line in page.splitlines() if line.startswith("|")}) == 1
    assert [cell.endswith("x") for cell in rows[1][4:-1]] == [True] * 3
    assert page.startswith("# Benchmarks") and "hcformer --models hcformer_nano --batch 1" in page
    assert rows[1][1] in capsys.readouterr().out

    arguments.write.write_text(page + "\nkept\n")
    write_section(arguments.write, bench.MARKS, "new")
    page = arguments.write.read_text()
    assert "new" in page and "resnet18" not in page and page.endswith("kept\n")


def test_mistakes_are_explained(arguments, tmp_path):
    for name, value in (("batch", 0), ("size", 32), ("repeats", 0)):
        with pytest.raises(HypvisionError, match=f"--{name} must be at least"):
            bench.run(argparse.Namespace(**{**vars(arguments), name: value}))
    (tmp_path / "page.md").write_text(f"only {bench.MARKS[1]}")
    with pytest.raises(HypvisionError, match="lacks the marks"):
        write_section(tmp_path / "page.md", bench.MARKS, "text", bench.INTRODUCTION)


def test_other_models_take_the_size():
    for name in ("swin_tiny_patch4_window7_224", "resnet18"):
        with torch.inference_mode():
            assert bench.other(name, 64).eval()(torch.randn(1, 3, 64, 64)).shape == (1, 1000)
