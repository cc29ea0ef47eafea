"""``tools/benchmark.py growth`` calls what grows too fast by its name; the times themselves are not
tested."""

import argparse

import pytest

pytest.importorskip("mmdet")
pytest.importorskip("open_clip")
from bench import growth as bench


def arguments(*words):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    parser.set_defaults(benchmark="growth")
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("power", "wrong"), [(1, ["step: closure"]), (2, ["data: captions", "step: closure"])]
)
def test_what_grows_faster_than_it_may_fails(power, wrong, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "measure", lambda case, size, repeats: 1e-6 * size**power)
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n")
    for name in ("data: captions", "loss: contrastive", "step: closure"):
        assert bench.run(arguments("--only", name, "--write", str(page))) == int(name in wrong)
        assert f"| {name} |" in page.read_text() and f"| {power:.2f} |" in capsys.readouterr().out
        assert ("**above** |" in page.read_text()) == (name in wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", bench.CASES)
def test_every_case_runs(name, tmp_path):
    bench.CASES[name].make(160, tmp_path)()
