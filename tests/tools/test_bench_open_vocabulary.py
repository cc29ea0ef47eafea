"""The benchmark takes real steps and writes its table; the times themselves are not tested."""

import argparse
from pathlib import Path

import pytest
import torch

pytest.importorskip("mmengine")
pytest.importorskip("open_clip")
from bench import open_vocabulary as bench

from hypvision.io.errors import HypvisionError

CONFIGS = Path(__file__).parents[2] / "configs/hyperclip"
SMALL = Path(__file__).parents[1] / "helpers/shapes/configs"
SHAPES = [SMALL / f"hyperclip{name}.py" for name in ("", "-det", "-panoptic")]


def parse(*options):
    parser = argparse.ArgumentParser()
    parser.set_defaults(benchmark="open-vocabulary")
    bench.add_arguments(parser)
    return parser.parse_args([str(option) for option in options])


@pytest.mark.slow
def test_table_is_written(tmp_path, capsys):
    page = tmp_path / "benchmarks.md"
    bench.run(
        parse(
            "--configs",
            *SHAPES,
            "--clip",
            "emoji-t8",
            "--size",
            64,
            "--repeats",
            1,
            "--write",
            page,
        )
    )
    rows = [line for line in page.read_text().splitlines() if line.startswith("| hyperclip")]
    assert [row.split(" | ")[0] for row in rows] == [f"| {path.stem}" for path in SHAPES]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("| ").split("|")]
        assert cells[1] == "64" and cells[5] == "1.00x" and int(cells[6]) > 1


def test_a_step_trains_what_the_config_says():
    torch.manual_seed(0)
    case = bench.Case(SHAPES[0], 2, 64, "emoji-t8", "cpu")
    before = {name: value.clone() for name, value in case.model.named_parameters()}
    case.step()
    changed = {
        name
        for name, value in case.model.named_parameters()
        if not torch.equal(value, before[name])
    }
    assert any("hyperclip" in name for name in changed)
    assert all(not name.startswith("clip.") or "hyperclip" in name for name in changed)


def test_the_paper_s_configs_are_there_and_others_are_refused():
    assert [bench.task_of(path) for path in bench.DEFAULT] == (
        3 * ["HyperCLIPSegmentor"] + 2 * ["HyperCLIPDetector"] + 2 * ["HyperCLIPPanoptic"]
    )
    with pytest.raises(HypvisionError, match="is no open-vocabulary config"):
        bench.task_of(CONFIGS.parent / "hcformer/hcformer-nano_cifar10.py")
    with pytest.raises(HypvisionError, match="--batch must be at least 1"):
        bench.run(parse("--batch", 0))
