"""The study of fine-tuned backbones on drawn images: its configs, what it keeps and does not repeat, its table."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch

from hypvision.data.export import export
from hypvision.data.taxonomy import KINDS

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(TOOLS))
    try:
        return runpy.run_path(str(TOOLS / "finetune_study.py"))
    finally:
        sys.path.remove(str(TOOLS))


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["finetune_study.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(TOOLS / "finetune_study.py"), run_name="__main__")
    return end.value.code


def test_every_run_is_a_config_and_all_of_a_study_train_the_same_parts(tool):
    from mmengine.registry import MODELS

    from hypvision.engine.config import load_config

    for name, study in tool["STUDIES"].items():
        resting, seen = set(), set()
        for run, (config, changes) in {**study, **tool["TRIALS"][name]}.items():
            loaded = load_config(tool["CONFIGS"] / config, changes)
            if (config, all_move := "nothing rests" in run) in seen:  # a trial of another rate
                continue
            seen.add((config, all_move))
            with torch.device("meta"):
                model = MODELS.build(loaded.model)
            still = {key for key, p in model.named_parameters() if not p.requires_grad}
            if all_move:
                assert not still
            else:
                resting.add(frozenset(key.replace(".trunk.", ".") for key in still))
        assert len(resting) == 1, name


def test_trials_choose_rates_and_change_nothing_else(tool):
    from hypvision.engine.config import load_config

    config, changes = tool["TRIALS"]["himapper"]["Hi-Mapper, rate 1e-3, its modules 3e-4"]
    loaded, plain = (load_config(tool["CONFIGS"] / config, c) for c in (changes, {}))
    assert loaded.optim_wrapper.paramwise_cfg.lr_mult["backbone.mapper"] == 0.3
    assert loaded.optim_wrapper.paramwise_cfg.lr_mult["backbone.trunk.classifier"] == 10.0
    assert loaded.train_cfg.max_epochs == loaded.param_scheduler[1].end == 3
    assert loaded.model == plain.model and loaded.train_dataloader == plain.train_dataloader


def test_runs_are_kept_and_not_repeated(monkeypatch, tmp_path, capsys):
    data = export(tmp_path / "data", "imagefolder", 16, 16, 64, level="shape")
    shutil.copytree(data / "val", data / "test")
    above = {shape: [kind, shape] for kind, shapes in KINDS.items() for shape in shapes}
    (tmp_path / "ancestors.json").write_text(json.dumps(above))
    few = [f"data_root={data}", "model.checkpoint=None", "train_dataloader.batch_size=4", "train_cfg.max_epochs=1"]
    few += ["test_dataloader.dataset.transform.input_size=64", "val_dataloader.dataset.transform.input_size=64"]
    few += ["train_dataloader.dataset.transform.input_size=64"]
    words = ["himapper", "--out", tmp_path / "out", "--results", tmp_path / "kept.json", "--seeds"]
    study = runpy.run_path(str(TOOLS / "finetune_study.py"))["STUDIES"]["himapper"]
    kept = {f"{name}, seed 0": {"metrics": {"top1": 50.0}, "core_hours": 0.5} for name in study}
    del kept["Hi-Mapper, seed 0"]
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    assert call(monkeypatch, *words, 1, "--cfg-options", *few) == 0
    row = json.loads((tmp_path / "kept.json").read_text())["Hi-Mapper, seed 0"]
    assert {"top1", "coarse", "kind", "mistake_distance", "containment", "chance"} <= set(row["metrics"])
    assert list(row["curve"]) == ["1"] and row["core_hours"] > 0 and row["changes"] == {}
    assert {"all", "0 in 1", "1 in 2", "2 in 3"} == set(row["containment"])
    kept["Hi-Mapper, seed 0"] = row | {"metrics": row["metrics"] | {"top1": 51.0}}
    kept |= {f"{name}, seed 1": {"metrics": {"top1": 53.0}, "core_hours": 0.7} for name in study}
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    capsys.readouterr()
    assert call(monkeypatch, *words, 2, "--cfg-options", *few) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| fine-tuned | 51.5 ± 2.1 |  |  |  |  |  | 2 | 36 |" in lines
    assert any(line.startswith("| Hi-Mapper | 52.0 ± 1.4 |") for line in lines)
