"""The study of radial tuning on a few drawn emoji: what it tries, measures and does not run
again."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from helpers.emoji import make_emoji

pytest.importorskip("open_clip")

from hypvision.clip.models import create_clip

TOOL = Path(__file__).parents[2] / "studies/radial_study.py"


@pytest.mark.slow
def test_trials_and_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path / "home"))
    root, out = make_emoji(tmp_path / "emoji"), tmp_path / "out"
    torch.save(create_clip("emoji-s16").model.state_dict(), tmp_path / "clip.pth")
    words = [
        "--root",
        root,
        "--out",
        out,
        "--clip",
        tmp_path / "clip.pth",
        "--seeds",
        2,
        "--steps",
        1,
    ]

    def run():
        monkeypatch.setattr(sys, "argv", ["radial_study.py", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(TOOL), run_name="__main__")
        assert end.value.code == 0
        return capsys.readouterr().out

    text = run()
    results = json.loads((out / "results.json").read_text())
    assert [name.split()[0] for name in results] == ["before"] * 2 + ["trial"] * 6 + ["run"] * 6
    assert (
        "| radial embeddings, rate" in text
        and " ± " in text
        and (out / "tables.md").read_text() in text
    )
    made = sorted(path.name for path in out.iterdir())
    assert run().strip() in text and sorted(path.name for path in out.iterdir()) == made
