"""The diagnosis tool on small networks and drawn images: what it prints, keeps and refuses."""

import copy
import functools
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from helpers.cases import each
from helpers.shapes.export import export

ROOT = Path(__file__).parents[2]
SMALL = [
    "layers=(1,1,1,1)",
    "dims=(8,16,24,32)",
    "heads=(2,2,2,2)",
    "head_dim=4",
    "mlp_ratios=(2,2,2,2)",
]


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
        runpy.run_path(str(ROOT / "studies/hcformer_diagnosis.py"), run_name="__main__")
    return end.value.code


def test_a_segmenter(monkeypatch, data, tmp_path, capsys):
    config = ROOT / "configs/hcformer/semantic-fpn_hcformer-nano_600i_camvid.py"
    options = [
        *(f"model.backbone.{item}" for item in (*SMALL, "alpha=8.0")),
        "model.neck.in_channels=[8,16,24,32]",
    ]
    path = tmp_path / "numbers.json"
    where = ["--json", path, "--cfg-options", f"data_root={data / 'camvid'}", *options]
    assert tool(monkeypatch, config, "--images", 2, *where) == 0
    found = json.loads(path.read_text())
    assert [row["stage"] for row in found["purity"]] == [0, 1, 2, 3] and len(found["blocks"]) == 4
    assert all(0 < row[key] <= 1 for row in found["purity"] for key in ("purity", "grid", "place"))
    # Places alone are no help before training: all pixels of a window go to one centre.
    assert all(row["place"] < min(row["purity"], row["grid"]) for row in found["purity"][:2])
    assert tool(monkeypatch, config, "--images", 1, *where) == 0
    for both, first in zip(found["purity"], json.loads(path.read_text())["purity"]):
        of_both, of_first = (row["purity"] - row["grid"] for row in (both, first))
        assert both["error"] == pytest.approx(abs(of_both - of_first), abs=1e-6)
        assert "error" not in first

    path.unlink()
    for option, why in (
        ("--ablate", "classifier's"),
        ("--merge", "classifier's"),
        ("--draw", "paints for classifiers"),
        ("--images", "at least 1"),
    ):
        value = {"--draw": [tmp_path / "no.png"], "--images": [0]}.get(option, [])
        assert tool(monkeypatch, config, option, *value, *where) == 2
        assert why in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.slow
def test_what_is_taken_away_is_away():
    """Labels are what the network says without its mixers, without content, ...: there it is always
    right."""
    import hypvision.models

    torch.manual_seed(0)
    module = runpy.run_path(str(ROOT / "studies/hcformer_diagnosis.py"))
    few = dict(
        layers=(1, 1, 1, 1), dims=(8, 16, 24, 32), heads=(2,) * 4, head_dim=4, mlp_ratios=(2,) * 4
    )
    build = functools.partial(
        hypvision.models.HCFormer, num_classes=10, img_size=32, patch_size=2, locality=1.0, **few
    )
    network = build(layer_scale=3.0).eval()
    zeros = {"all mixers": r"layer_scale1", "content": r"mixer\.(window_)?alpha"}
    zeros["assignments (uniform)"] = (
        zeros["content"] + r"|mixer\.locality"
    )  # position biases are 0 as they begin
    images = 3 * torch.randn(64, 3, 32, 32)
    for name, pattern in zeros.items():
        other = copy.deepcopy(network)
        other.load_state_dict(
            {k: 0 * v if re.search(pattern, k) else v for k, v in network.state_dict().items()}
        )
        with torch.no_grad():
            labels = other(images).argmax(1)
        data = [{"inputs": image, "label": label} for image, label in zip(images, labels)]
        found = {row["without"]: row["top1"] for row in module["ablations"](network, network, data)}
        assert [variant for variant, top1 in found.items() if top1 == 100] == [name], found


def test_parameters_are_away_for_a_while():
    import hypvision.models

    network = hypvision.models.HCFormer(
        num_classes=3, img_size=32, patch_size=2, **dict(dims=(8, 8, 8, 8)), locality=1.0
    )
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    module = runpy.run_path(str(ROOT / "studies/hcformer_diagnosis.py"))
    blocks = list(network.stages[0].blocks)
    with pytest.raises(KeyError), module["without"](blocks, module["ASSIGNMENT"]):
        assignment = network.forward_assignments(torch.randn(1, 3, 32, 32))[0].assignment
        assert assignment.patch.std() < 1e-6 and assignment.window.std() < 1e-6
        assert blocks[0].mixer.locality.sum() == 0
        assert network.stages[1].blocks[0].mixer.locality.min() == 1
        raise KeyError
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())


@each("by", ["clusters", "grid", "windows"])
def test_a_merged_mlp_gives_the_pixels_of_a_region_that_of_their_mean(by):
    import hypvision.models

    module = runpy.run_path(str(ROOT / "studies/hcformer_diagnosis.py"))
    torch.manual_seed(0)
    options = dict(
        dims=(8,) * 4,
        head_dim=4,
        fold=(2,) * 4,
        prop=(2,) * 4,
        pad="minimal",
        alpha=8.0,
        layers=(1,) * 4,
    )
    network = hypvision.models.HCFormer(num_classes=3, img_size=32, patch_size=2, **options)
    block = network.stages[0].blocks[0]
    x, seen = torch.randn(2, 16, 16, 8), []
    with torch.no_grad(), module["merged"]([block], by, seen):
        block.mixer(x)
        found = block.mlp(x)
    with torch.no_grad():
        assignment = block.mixer.assignments(x)
        best = assignment.patch.mean(1).argmax(1)
        rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
        window = rows // 8 * 2 + columns // 8
        cell = rows % 8 // 4 * 2 + columns % 8 // 4
        labels = {"clusters": 4 * window + best, "grid": (4 * window + cell).expand(2, -1, -1)}
        labels["windows"] = window.expand(2, -1, -1)
        for image in range(2):
            for label in labels[by][image].unique():
                inside = labels[by][image] == label
                expected = block.mlp(x[image][inside].mean(0, keepdim=True))
                assert torch.allclose(found[image][inside], expected, atol=1e-5)
        assert not torch.allclose(block.mlp(x), found, atol=1e-3)  # as before, afterwards
    assert seen == [pytest.approx(sum(len(row.unique()) for row in labels[by]) / 512)]
