"""``hypvision plot``."""

import json

import pytest
from helpers.engine import fails

from hypvision.cli import main

pytest.importorskip("matplotlib")


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run/t/vis_data/scalars.json"
    path.parent.mkdir(parents=True)
    records = [dict(loss=1 / step, lr=0.1, iter=step, step=step) for step in (1, 2, 3)]
    path.write_text("\n".join(map(json.dumps, records)))
    return tmp_path / "run"


@pytest.mark.drawn
def test_figure_and_table(run, tmp_path, capsys):
    assert main(["plot", str(run), "--keys", "loss", "--save", str(tmp_path / "c.svg")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "c.svg"), str(tmp_path / "c.csv")]
    assert "<svg" in (tmp_path / "c.svg").read_text()
    assert len((tmp_path / "c.csv").read_text().splitlines()) == 7


def test_mistakes(run, tmp_path, capsys):
    assert "ends in .png, .svg or .pdf" in fails(capsys, "plot", run, "--save", tmp_path / "c.gif")
    assert "There are: loss, lr" in fails(
        capsys, "plot", run, "--keys", "top1", "--save", tmp_path / "c.png"
    )
    assert "There is no run" in fails(
        capsys, "plot", tmp_path / "none", "--save", tmp_path / "c.png"
    )
    assert not list(tmp_path.glob("c.*"))


def test_what_a_figure_leaves_out_is_said(tmp_path, capsys):
    log = tmp_path / "run/t/vis_data/scalars.json"
    log.parent.mkdir(parents=True)
    records = [
        dict(loss=1.0, iter=1, step=1),
        {**{f"IoU.{k}": 0.5 for k in range(14)}, "mIoU": 0.5, "step": 1},
    ]
    log.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert main(["plot", str(tmp_path / "run"), "--save", str(tmp_path / "c.png")]) == 0
    said = capsys.readouterr().err
    assert "Not drawn, but in the table: mIoU (validation). Choose quantities with --keys." in said
    assert "mIoU" in (tmp_path / "c.csv").read_text()
    assert (
        main(["plot", str(tmp_path / "run"), "--keys", "mIoU", "--save", str(tmp_path / "c.png")])
        == 0
    )
    assert "Not drawn" not in capsys.readouterr().err
