"""The study of fine-tuned backbones on drawn images: its configs, what it keeps and does not
repeat, its table."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch
from helpers.shapes.export import export
from helpers.shapes.taxonomy import KINDS

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(STUDIES))
    try:
        return runpy.run_path(str(STUDIES / "finetune_study.py"))
    finally:
        sys.path.remove(str(STUDIES))


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["finetune_study.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(STUDIES / "finetune_study.py"), run_name="__main__")
    return end.value.code


@pytest.mark.slow
def test_every_run_is_a_config_and_all_of_a_study_train_the_same_parts(tool):
    from mmengine.registry import MODELS

    from hypvision.engine.config import load_config

    for name, study in tool["STUDIES"].items():
        if name.startswith(("hyperclip", "camvid")):
            continue  # what of CLIP rests is what these compare; of CamVid's networks nothing rests
        resting = set()
        for config in dict.fromkeys(run.config for run in study.values()):
            with torch.device("meta"):
                model = MODELS.build(load_config(tool["CONFIGS"] / config).model)
            still = {key for key, p in model.named_parameters() if not p.requires_grad}
            resting.add(
                frozenset(key.replace(".trunk.", ".") for key in still - {"clip.curv"})
            )  # fixed in one run
        assert len(resting) == 1


@pytest.mark.slow
def test_trials_change_the_settings_in_their_names(tool):
    from hypvision.engine.config import load_config

    for study, choices in tool["CHOICES"].items():
        for config, candidates, trial, _ in choices.values():
            plain = load_config(tool["CONFIGS"] / config, trial)
            for change in candidates.values():
                loaded = load_config(tool["CONFIGS"] / config, {**change, **trial})
                if study == "clip":
                    assert loaded.train_cfg.max_iters == 250 and len(loaded.param_scheduler) == 1
                elif study == "hyperclip":
                    assert loaded.train_cfg.max_iters == loaded.param_scheduler[1].end == 300
                    assert (
                        loaded.optim_wrapper.paramwise_cfg.custom_keys.clip.lr_mult
                        == change[tool["FACTOR"]]
                    )
                else:
                    assert loaded.train_cfg.max_epochs == loaded.param_scheduler[1].end < 20
                for part in ("train_dataloader", "val_dataloader", "train_cfg", "param_scheduler"):
                    assert loaded[part] == plain[part]
                assert (loaded.model != plain.model) == ("model.frozen" in change)
        assert {run.choice for run in tool["STUDIES"][study].values()} <= {"", *choices}
    change = tool["CHOICES"]["himapper"]["Hi-Mapper"].candidates[
        "its modules at a third of the rate"
    ]
    factors = load_config(
        tool["CONFIGS"] / tool["MAPPER"], change
    ).optim_wrapper.paramwise_cfg.lr_mult
    assert factors == {"backbone.trunk.classifier": 10.0, "backbone.mapper": 0.3}


def test_both_geometries_of_pixels_have_one_recipe(tool):
    from hypvision.engine.config import load_config

    runs = tool["STUDIES"]["camvid"]
    assert len(runs) == 12
    for dim in (2, 3, 256):
        for how in ("", " with the tree"):
            flat, ball = (
                load_config(tool["CONFIGS"] / run.config, run.changes)
                for run in (
                    runs[f"{name}{how}, {dim} dimensions"] for name in ("euclidean", "hyperbolic")
                )
            )
            assert flat.model.decode_head.dim == ball.model.decode_head.dim == dim
            assert (ball.model.decode_head.tree is None) == (how == "")
            assert flat.model.decode_head.pop("geometry") == "euclidean"
            assert flat.model.decode_head == ball.model.decode_head
            assert flat.model.backbone == ball.model.backbone
            assert flat.optim_wrapper == ball.optim_wrapper
            assert flat.train_dataloader == ball.train_dataloader


def test_the_best_trial_gives_the_settings(tool):
    def trial(*validations):
        return {"curve": dict(enumerate(validations, 1))}

    results = {
        "fine-tuned, rate 3e-4": trial(9, 1),
        "fine-tuned, rate 1e-3": trial(1, 5),
        "fine-tuned, rate 3e-3": trial(8, 4),
    }
    results |= {f"Hi-Mapper, its modules at {name}": trial(2) for name in tool["MODULES"]}
    results["Hi-Mapper, its modules at three times the rate"] = trial(1, 3)
    rate = {"optim_wrapper.optimizer.lr": 1e-3}
    assert tool["settings"]("himapper", "fine-tuned", results) == rate
    factor = {"optim_wrapper.paramwise_cfg.lr_mult": {"backbone.mapper": 3.0}}
    assert tool["settings"]("himapper", "Hi-Mapper", results) == rate | factor
    assert tool["settings"]("omniglot", "", {}) == {}


@pytest.mark.parametrize(
    ("study", "page", "results"),
    [
        ("himapper", "configs/himapper/README.md", "himapper/curves/grocery"),
        ("lorentz", "configs/hecnn/README.md", "hecnn/curves/cifar10"),
        ("omniglot", "configs/lhier/README.md", "lhier/curves/omniglot"),
        ("hyperclip", "docs/studies/hyperclip.md", "hyperclip/curves/emoji"),
        ("hyperclip-boxes", "docs/studies/hyperclip.md", "hyperclip/curves/emoji-boxes"),
    ],
)
def test_the_numbers_in_the_readme_are_those_of_the_results(tool, study, page, results):
    rows = tool["table"](
        json.loads((tool["CONFIGS"] / f"{results}.json").read_text()), study
    ).splitlines()
    said = {line.strip() for line in (STUDIES.parent / page).read_text().splitlines()}
    rows = [
        row
        for row in rows
        if row.startswith("| ") and row.count("|") > 2 and not row.startswith(("| |", "| trial"))
    ]
    assert rows and set(rows) <= said


@pytest.mark.slow
def test_runs_are_kept_and_not_repeated(tool, monkeypatch, tmp_path, capsys):
    data = export(tmp_path / "data", "imagefolder", 16, 16, 64, level="shape")
    shutil.copytree(data / "val", data / "test")
    above = {shape: [kind, shape] for kind, shapes in KINDS.items() for shape in shapes}
    (tmp_path / "ancestors.json").write_text(json.dumps(above))
    few = [
        f"data_root={data}",
        "model.checkpoint=None",
        "train_dataloader.batch_size=4",
        "train_cfg.max_epochs=1",
    ]
    few += [
        "test_dataloader.dataset.transform.input_size=64",
        "val_dataloader.dataset.transform.input_size=64",
    ]
    few += ["train_dataloader.dataset.transform.input_size=64"]
    words = ["himapper", "--out", tmp_path / "out", "--results", tmp_path / "kept.json", "--seeds"]
    study = tool["STUDIES"]["himapper"]
    kept = {f"{name}, seed 0": {"metrics": {"top1": 50.0}, "core_hours": 0.5} for name in study}
    del kept["Hi-Mapper, seed 0"]
    trials = [
        f"{name}, {key}"
        for name, choice in tool["CHOICES"]["himapper"].items()
        for key in choice.candidates
    ]
    kept |= {
        key: {"curve": {"3": float(number)}, "core_hours": 0.1} for number, key in enumerate(trials)
    }
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    assert call(monkeypatch, *words, 1, "--cfg-options", *few) == 0
    row = json.loads((tmp_path / "kept.json").read_text())["Hi-Mapper, seed 0"]
    assert {"top1", "coarse", "kind", "mistake_distance", "containment", "chance"} <= set(
        row["metrics"]
    )
    assert list(row["curve"]) == ["1"] and row["core_hours"] > 0
    assert row["changes"] == tool["settings"](
        "himapper", "Hi-Mapper", kept
    )  # of the trials, without the places
    assert {"all", "0 in 1", "1 in 2", "2 in 3"} == set(row["containment"])
    kept["Hi-Mapper, seed 0"] = row | {"metrics": row["metrics"] | {"top1": 51.0}}
    kept |= {f"{name}, seed 1": {"metrics": {"top1": 53.0}, "core_hours": 0.7} for name in study}
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    capsys.readouterr()
    assert call(monkeypatch, *words, 2, "--cfg-options", *few) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| fine-tuned | 51.5 ± 2.1 |  |  |  |  |  | 2 | 36 |" in lines
    assert any(line.startswith("| Hi-Mapper | 52.0 ± 1.4 |") for line in lines)
    assert "| fine-tuned, rate 1e-3 | 1.0 | 6 |" in lines


@pytest.mark.parametrize("space", ["cosine", "lorentz"])
def test_a_projection_keeps_what_lies_in_its_directions(tool, space):
    """Vectors of 3 of 20 dimensions, turned, keep their cosines and their distances in 3; in 2 they
    keep the part along the two directions in which the training vectors are longest."""
    from hypvision.geometry import lorentz

    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(20, 20, generator=generator)).Q[:3]
    size = torch.tensor([3.0, 2.0, 0.5])
    train, test = (torch.randn(n, 3, generator=generator) * size for n in (500, 40))

    def compared(flat):
        if space == "lorentz":
            points = lorentz.expmap0(flat, 1.0)
            return lorentz.dist(points[:, None], points[None], 1.0)
        return torch.nn.functional.cosine_similarity(flat[:, None], flat[None], dim=-1)

    def placed(flat):
        return lorentz.expmap0(flat, 1.0) if space == "lorentz" else flat

    def few(dim):
        found = tool["projected"](placed(test @ turn), placed(train @ turn), space, dim)
        return compared(lorentz.logmap0(found, 1.0) if space == "lorentz" else found)

    torch.testing.assert_close(few(3), compared(test), atol=2e-3, rtol=1e-3)
    axes = torch.linalg.svd(train, full_matrices=False).Vh[:2]
    torch.testing.assert_close(few(2), compared(test @ axes.mT), atol=2e-3, rtol=1e-3)
    assert (few(2) - compared(test)).abs().max() > 0.01


def test_a_study_measures_elsewhere_too(tool, monkeypatch, tmp_path):
    """On the data that the config names, with the last checkpoint."""
    from hypvision.engine.config import load_config

    seen = []

    def measured(config, weights, folder, cfg_options):
        seen.append((weights, load_config(config, cfg_options).test_dataloader.dataset))
        return {"ov/AP50": torch.tensor(3.0)}

    monkeypatch.setattr("hypvision.engine.run.test", measured)
    (tmp_path / "last_checkpoint").write_text("iter_600.pth\n")
    for name, places in ((tool["MASKS"], ["style", "new"]), (tool["BOXES"], ["style"])):
        config = load_config(tool["CONFIGS"] / name, {"data_root": "elsewhere"})
        assert tool["measure_elsewhere"](config, tmp_path) == {
            f"AP50_{place}": 3.0 for place in places
        }
    assert [weights for weights, _ in seen] == ["iter_600.pth"] * 3
    assert [data.data_prefix.img_path for _, data in seen[:2]] == [
        "style/val/images",
        "new/val/images",
    ]
    assert seen[2][1].ann_file.startswith("boxes-style/") and seen[2][1].data_root == "elsewhere"
