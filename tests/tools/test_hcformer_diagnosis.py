"""The diagnosis tool on small networks and drawn images: what it prints, keeps and refuses."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from hypvision.data.export import export

ROOT = Path(__file__).parents[2]
SMALL = ["layers=(1,1,1,1)", "dims=(8,16,24,32)", "heads=(2,2,2,2)", "head_dim=4", "mlp_ratios=(2,2,2,2)"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    export(root / "folder", "imagefolder", 10, 10, 32, level="kind")
    (root / "folder/val").rename(root / "folder/test")
    export(root / "camvid", "ade", 2, 2, 64, level="kind")
    for old, new in (("images", "img"), ("annotations", "ann")):
        (root / "camvid" / old).rename(root / "camvid" / new)
        (root / f"camvid/{new}/validation").rename(root / f"camvid/{new}/val")
    return root


def tool(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["hcformer_diagnosis.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "tools/hcformer_diagnosis.py"), run_name="__main__")
    return end.value.code


def test_a_classifier(monkeypatch, data, tmp_path, capsys):
    config = ROOT / "configs/hcformer/hcformer-nano_cifar10.py"
    options = [f"data_root={data / 'folder'}", *(f"model.backbone.{item}" for item in SMALL)]
    path, image = tmp_path / "numbers.json", tmp_path / "clusters.png"
    out = ["--json", path, "--draw", image, "--images", 8]
    assert tool(monkeypatch, config, *out, "--cfg-options", *options, "model.backbone.alpha=2.0") == 0
    rows = json.loads(path.read_text())["blocks"]
    assert [(row["stage"], row["block"]) for row in rows] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    for row in rows:
        assert row["alpha"] == 2 and row["bias"] == 0 and row["scale1"] == pytest.approx(0.1)
        assert 0 < row["excess"] < 1 and 0 < row["entropy"] < 1 and row["mixer"] > 0 and row["mlp"] > 0
        assert row["grad"] > 0 and row["grad_alpha"] > 0
    assert len(capsys.readouterr().out.strip().splitlines()) == 5 and image.stat().st_size > 0

    few = [f"model.backbone.{item}" for item in ("locality=2.0", "layer_scale=[0,3.0]")]  # mixers that add nothing
    assert tool(monkeypatch, config, "--ablate", "--json", path, "--cfg-options", *options, *few) == 0
    rows = json.loads(path.read_text())["ablations"]
    assert [row["without"] for row in rows][:3] == ["nothing", "all mixers", "mixers of stage 0"] and len(rows) == 8
    assert len({row["top1"] for row in rows}) == 1 and 0 < rows[0]["top1"] < 100

    assert tool(monkeypatch, ROOT / "configs/baselines/resnet10t_cifar10.py", "--cfg-options", options[0]) == 2
    assert "does not cluster" in capsys.readouterr().err


def test_a_segmenter(monkeypatch, data, tmp_path, capsys):
    config = ROOT / "configs/hcformer/semantic-fpn_hcformer-nano_600i_camvid.py"
    options = [*(f"model.backbone.{item}" for item in SMALL), "model.neck.in_channels=[8,16,24,32]"]
    path = tmp_path / "numbers.json"
    where = ["--json", path, "--images", 2, "--cfg-options", f"data_root={data / 'camvid'}"]
    assert tool(monkeypatch, config, *where, *options) == 0
    found = json.loads(path.read_text())
    assert [row["stage"] for row in found["purity"]] == [0, 1, 2, 3] and len(found["blocks"]) == 4
    assert all(0 < row[key] <= 1 for row in found["purity"] for key in ("purity", "grid", "place"))
    assert all(0 <= row["error"] < 0.5 for row in found["purity"])
    assert (
        tool(monkeypatch, config, "--ablate", *where, *options) == 2
        and "give a classifier's" in capsys.readouterr().err
    )


def test_parameters_are_away_for_a_while():
    import torch

    import hypvision.models

    network = hypvision.models.HCFormer(
        num_classes=3, img_size=32, patch_size=2, **dict(dims=(8, 8, 8, 8)), locality=1.0
    )
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    module = runpy.run_path(str(ROOT / "tools/hcformer_diagnosis.py"))
    blocks = list(network.stages[0].blocks)
    with pytest.raises(KeyError), module["without"](blocks, module["ASSIGNMENT"]):
        assignment = network.forward_assignments(torch.randn(1, 3, 32, 32))[0].assignment
        assert assignment.patch.std() < 1e-6 and assignment.window.std() < 1e-6
        assert blocks[0].mixer.locality.sum() == 0 and network.stages[1].blocks[0].mixer.locality.min() == 1
        raise KeyError
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())
