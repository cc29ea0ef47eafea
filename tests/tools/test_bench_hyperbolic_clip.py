"""``tools/benchmark.py hyperbolic-clip`` measures equal things; the times themselves are not
tested."""

import argparse

import pytest
import torch

pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
from bench import hyperbolic_clip as bench

from hypvision.clip.models import ARCHITECTURES
from hypvision.io.errors import HypvisionError


def arguments(*words):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    parser.set_defaults(benchmark="hyperbolic-clip")
    return parser.parse_args(words)


@pytest.mark.slow
def test_what_is_compared_is_equal(monkeypatch, tmp_path, capsys):
    for name in ("clip-vit-s-16", "meru-vit-s-16"):
        text = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=1)
        vision = ARCHITECTURES[name]["vision_cfg"] | dict(timm_model_name="vit_tiny_patch16_224")
        small = dict(embed_dim=24, vision_cfg=vision, text_cfg=text, vision_heads=3)
        monkeypatch.setitem(ARCHITECTURES, name, ARCHITECTURES[name] | small)
    monkeypatch.setattr(bench, "peak_bytes", lambda step, device: step() or 2**20)
    page = tmp_path / "benchmarks.md"
    bench.run(arguments(*f"--batch 2 --images 30 --texts 40 --repeats 1 --write {page}".split()))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.read_text().splitlines()
    ]
    rows = [row for row in rows if len(row) == 7][2:]
    assert [row[0].split()[0] for row in rows] == ["MERU's", "official", "ranking"]
    assert float(rows[1][-1]) < 1e-5 and "1.00x (<= 0.7x)" in rows[1][5]
    assert "--batch 2" in capsys.readouterr().out


def test_made_up_captions_are_as_long_as_they_should_be():
    texts = bench.made_up(400, 12.0, torch.Generator().manual_seed(0))
    assert sum(len(text.split()) for text in texts) / 400 == pytest.approx(12, rel=0.05)


def test_mistakes_are_explained():
    with pytest.raises(HypvisionError, match="--batch must be at least 2"):
        bench.run(arguments("--batch", "1"))
