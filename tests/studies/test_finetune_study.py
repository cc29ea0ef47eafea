"""The study of fine-tuned backbones on drawn images: its configs, what it keeps and does not
repeat, its table."""

import json
import runpy
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from hypvision.io.errors import HypvisionError

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(STUDIES))
    try:
        return runpy.run_path(str(STUDIES / "finetune_study.py"))
    finally:
        sys.path.remove(str(STUDIES))


def test_both_geometries_of_pixels_have_one_recipe(tool):
    from hypvision.engine.config import load_config

    for study, has_tree in (("camvid", True), ("camvid-flat", False)):
        runs = tool["STUDIES"][study]
        assert len(runs) == 6
        for dim in (2, 3, 256):
            flat, ball = (
                load_config(tool["CONFIGS"] / run.config, run.changes)
                for run in (runs[f"{name}, {dim} dimensions"] for name in tool["GEOMETRIES"])
            )
            assert flat.model.decode_head.dim == ball.model.decode_head.dim == dim
            assert (ball.model.decode_head.tree is not None) == has_tree
            assert flat.model.decode_head.pop("geometry") == "euclidean"
            assert flat.model.decode_head == ball.model.decode_head
            assert flat.model.backbone == ball.model.backbone
            assert flat.optim_wrapper == ball.optim_wrapper
            assert flat.train_dataloader == ball.train_dataloader
        flat, ball = tool["CHOICES"][study].values()
        assert (flat.candidates, flat.trial) == (ball.candidates, ball.trial)
        assert len(flat.candidates) == 3
        trial = load_config(tool["CONFIGS"] / flat.config, flat.trial)
        assert trial.train_cfg.max_iters == trial.param_scheduler[1].end == 300
        assert (trial.model.decode_head.tree is not None) == has_tree


def test_the_linear_probe_is_that_of_the_command(tool):
    """What the study changes is what ``hypvision train --method probe`` changes."""
    from hypvision.engine.config import load_config
    from hypvision.tasks.probe import only_probe

    probe = tool["STUDIES"]["himapper"]["linear probe"]
    found = load_config(tool["CONFIGS"] / probe.config, probe.changes)
    wanted = only_probe(load_config(tool["CONFIGS"] / probe.config))
    assert found.train_cfg.max_epochs == 0
    for part in ("model", "train_cfg", "param_scheduler", "default_hooks"):
        assert found[part] == wanted[part]


def test_transformers_of_equal_size_have_one_recipe(tool):
    """Blocks, heads, dimensions and parameters, and the training but for the chosen rate."""
    import timm

    from hypvision.engine.config import load_config

    counts = []
    trials = []
    for name, run in tool["STUDIES"]["vit"].items():
        config = load_config(tool["CONFIGS"] / run.config, run.changes)
        backbone = dict(config.model.backbone)
        assert (backbone["embed_dim"], backbone["depth"], backbone["num_heads"]) == (64, 4, 2)
        network = timm.create_model(backbone.pop("model_name"), **backbone)
        counts.append(sum(p.numel() for p in network.parameters()))
        assert (network.global_pool == "avg") == (name == "ViT")
        assert config.train_cfg.max_epochs == (5 if "equal time" in name else 3)
        first = load_config(tool["CONFIGS"] / "lvit/lvit-slim_3e_cifar10.py", run.changes)
        for key in ("train_dataloader", "optim_wrapper", "param_scheduler", "train_cfg"):
            assert config[key] == first[key]
        choice = tool["CHOICES"]["vit"][run.choice]
        trial = load_config(tool["CONFIGS"] / choice.config, choice.trial)
        assert trial.train_cfg.max_epochs == trial.param_scheduler[1].end == 1
        assert trial.val_dataloader.dataset.root == "train"
        seen = set(trial.train_dataloader.dataset.indices)
        assert not seen & set(trial.val_dataloader.dataset.indices)
        for key in ("class_token", "global_pool"):
            assert trial.model.backbone.get(key) == config.model.backbone.get(key)
        trials.append(choice.candidates)
    assert max(counts) < 1.02 * min(counts)
    assert trials == trials[:1] * 6


def test_each_clip_is_tried_alike(tool):
    """All of one schedule and as many trials; the space is what differs."""
    from hypvision.engine.config import load_config

    choices = tool["CHOICES"]["clip"]
    assert list(choices) == ["CLIP", "MERU", "HyCoCLIP", "UNCHA", "PHyCLIP", "ATMG"]
    assert set(choices) <= set(tool["STUDIES"]["clip"])
    configs = [
        load_config(tool["CONFIGS"] / about.config, about.trial) for about in choices.values()
    ]
    for config, about in zip(configs, choices.values()):
        assert about.candidates == choices["CLIP"].candidates
        assert config.train_cfg == configs[0].train_cfg
        assert config.param_scheduler == configs[0].param_scheduler
        assert config.train_dataloader.batch_size == configs[0].train_dataloader.batch_size
    assert len({str(config.model) for config in configs}) == 6


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
        ("lhier", "configs/lhier/README.md", "lhier/curves/grocery-losses"),
        ("omniglot", "configs/lhier/README.md", "lhier/curves/omniglot"),
        ("vit", "configs/lvit/README.md", "lvit/curves/cifar10"),
        (
            "camvid",
            "configs/hyperbolic-segmentation/README.md",
            "hyperbolic-segmentation/curves/camvid",
        ),
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


def test_some_of_the_runs(tool, tmp_path, monkeypatch):
    """Only what is asked for, the trials that it needs, and the choice that these follow."""
    done = []

    def several(tasks, jobs, options, out):
        for task in tasks:
            done.append(task.key)
            yield task.key, dict(curve={"1": 1.0}, core_hours=0.1, metrics={}, changes={})

    monkeypatch.setitem(tool["study"].__globals__, "several", several)
    asked = dict(cfg_options=[], results=None, out=str(tmp_path), jobs=1, seeds=2)
    tool["study"](Namespace(study="himapper", only=["Hi-Mapper"], **asked))
    kinds = [key.partition(",")[0] for key in done]
    assert kinds == ["fine-tuned"] * 3 + ["Hi-Mapper"] * 3 + ["Hi-Mapper"] * 2
    assert done[-2:] == ["Hi-Mapper, seed 0", "Hi-Mapper, seed 1"]
    with pytest.raises(HypvisionError, match="Busemann MLR"):
        tool["study"](Namespace(study="himapper", only=["nothing"], **asked))


def test_forms_of_a_training_differ_in_nothing_else(tool):
    """Half precision and layout: the configs of one family but for the one setting."""
    from hypvision.engine.config import load_config

    runs = tool["STUDIES"]["precision"]
    for family in tool["FAMILIES"]:
        given = {
            form: load_config(tool["CONFIGS"] / run.config, run.changes)
            for form, run in ((form, runs.get(f"{family}, {form}")) for form in tool["FORMS"])
            if run is not None
        }
        plain = given.pop("float32").to_dict()
        assert plain["optim_wrapper"]["type"] == "OptimWrapper"
        assert not plain["model"].get("channels_last")
        half = given.pop("bfloat16").to_dict()
        assert half["optim_wrapper"].pop("type") == "BFloat16OptimWrapper"
        plain["optim_wrapper"].pop("type")
        assert half == plain
        for layout in given.values():
            layout.optim_wrapper.pop("type")
            assert layout.model.pop("channels_last") is True
            assert layout.to_dict() == plain
