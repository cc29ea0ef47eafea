"""The study of HCFormer on drawn images: its runs, what it keeps and does not compute again, its
table."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from helpers.shapes.export import export

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "folder"
    export(root, "imagefolder", 10, 10, 32, level="kind")
    return root


def tool(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["hcformer_study.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(STUDIES / "hcformer_study.py"), run_name="__main__")
    return end.value.code


@pytest.mark.slow
def test_every_variant_is_a_config():
    study = runpy.run_path(str(STUDIES / "hcformer_study.py"))
    from mmengine.optim import build_optim_wrapper
    from mmengine.registry import MODELS

    from hypvision.engine.config import load_config

    fixed = {}
    for name, (config, changes) in study["STUDY"].items():
        loaded = load_config(study["CONFIGS"] / config, changes)
        with torch.device("meta"):
            model = MODELS.build(loaded.model)
        groups = build_optim_wrapper(model, loaded.optim_wrapper).optimizer.param_groups
        moved = {id(p) for group in groups for p in group["params"]}
        fixed[name] = {
            key.partition("blocks.")[2][2:]
            for key, p in model.named_parameters()
            if id(p) not in moved
        }
    assert fixed["position biases fixed at 0"] == {"mixer.bias", "mixer.window_bias"}
    assert fixed["recipe, locality 4"] == {"layer_scale1"} and fixed["ViT, Muon"] == set()


def test_the_table_in_the_readme_is_that_of_the_results():
    study = runpy.run_path(str(STUDIES / "hcformer_study.py"))
    folder = study["CONFIGS"] / "hcformer"
    results = json.loads((folder / "curves/study.json").read_text())
    page = (study["CONFIGS"].parent / "docs/studies/hcformer.md").read_text()
    assert study["table"](results, list(study["STUDY"]), 2).strip() in page


def test_other_options_go_into_another_folder():
    folder = runpy.run_path(str(STUDIES / "hcformer_study.py"))["_folder"]
    folders = [
        folder("center, seed 1", options, amp)
        for options in ({}, {"a.b": 1}, {"a.b": 2})
        for amp in (0, 1)
    ]
    assert folders[0] == "center-seed-1" and len(set(folders)) == 6
    assert folder("x", {"a": 1, "b": 2}, True) == folder("x", {"b": 2, "a": 1}, True)


@pytest.mark.slow
def test_runs_are_kept_and_not_repeated(monkeypatch, data, tmp_path, capsys):
    few = [
        "train_dataloader.dataset.indices=None",
        "val_dataloader.dataset.indices=None",
        f"data_root={data}",
    ]
    few += ["train_dataloader.batch_size=2", "train_cfg.max_epochs=1", "train_cfg.val_interval=1"]
    only = [
        "--only",
        "center, alpha 3, window alpha 4",
        "ResNet-10-T",
        "--out",
        tmp_path,
        "--seeds",
    ]
    assert tool(monkeypatch, *only, 1, "--cfg-options", *few) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    ours, other = results["center, alpha 3, window alpha 4, seed 0"], results["ResNet-10-T, seed 0"]
    assert 0 <= ours["top1"] <= 100 and "excess" not in other
    assert len(ours["excess"]) == 4 and 0.3 < ours["excess"][0] < 1  # so it begins
    assert len(ours["mixer"]) == 4 and all(share > 0 for share in ours["mixer"])
    assert len(ours["grad"]) == 4 and all(share > 0 for share in ours["grad"])
    assert ours["window"][2:] == [None, None] and ours["alpha"] == pytest.approx(3, abs=0.1)
    results["ResNet-10-T, seed 0"]["top1"] = 12.3
    results["ResNet-10-T, seed 1"] = {"top1": 13.3, "minutes": 6.0}
    # A run of an earlier version, which did not measure the gradient: the column is of those that
    # did.
    earlier = {key: value for key, value in ours.items() if key != "grad"}
    results["center, alpha 3, window alpha 4, seed 1"] = earlier | {"top1": ours["top1"]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    capsys.readouterr()
    assert tool(monkeypatch, *only, 2, "--cfg-options", *few) == 0
    out = capsys.readouterr().out
    assert "| ResNet-10-T | 12.8 ± 0.7 |" in out
    assert f"| {', '.join(f'{100 * share:.2g}' for share in ours['grad'])} |" in out
    assert tool(monkeypatch, "--only", "ResNet-11", "--out", tmp_path) == 2
    assert "ResNet-10-T" in capsys.readouterr().err
