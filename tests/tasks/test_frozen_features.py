"""A metric learner on trained weights is compared with retrieval by these weights' features."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch

pytest.importorskip("mmengine")
from helpers.metric_learning import VIT
from mmengine.logging import MessageHub
from PIL import Image

from hypvision.engine.config import load_config
from hypvision.engine.run import test as run_test
from hypvision.engine.run import train
from hypvision.io.shipped import config_folder
from hypvision.tasks.frozen_features import FrozenFeaturesHook

CLASSES = ("cat", "dog", "owl", "red")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A config on random images, whose backbone begins with weights of a file."""
    root = tmp_path_factory.mktemp("data")
    noise = np.random.default_rng(0)
    for place in (root / part / name for part in ("train", "test") for name in CLASSES):
        place.mkdir(parents=True)
        for number in range(6):
            pixels = noise.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{number}.png")
    torch.manual_seed(0)
    torch.save(timm.create_model(**VIT).state_dict(), root / "start.pth")
    config = load_config(config_folder() / "lhier/euclid_resnet10t_cifar10.py")
    config.model.update(
        backbone=VIT, checkpoint=str(root / "start.pth"), num_classes=4, neck=dict(
            dim=8, geometry="euclidean"
        ),
    )  # fmt: skip
    for part in ("train", "val", "test"):
        loader = config[f"{part}_dataloader"]
        loader.update(num_workers=0, persistent_workers=False)
        loader.dataset.update(
            root=str(root / ("train" if part == "train" else "test")), classes=None, ancestors=None
        )
        loader.dataset.transform.input_size = 32
    config.train_dataloader.batch_sampler.update(batch_size=8, m=2)
    config.train_cfg.update(max_epochs=2, val_interval=1)
    config.param_scheduler = []
    return config


def by_hand(config):
    """Recall@1 of the features of the weights in the file."""
    from mmengine.registry import DATASETS

    network = timm.create_model(**VIT, num_classes=0).eval()
    network.load_state_dict(torch.load(config.model.checkpoint), strict=False)
    data = DATASETS.build(config.val_dataloader.dataset)
    with torch.no_grad():
        features = network(torch.stack([data[i]["inputs"] for i in range(len(data))]))
    features = torch.nn.functional.normalize(features.double())
    scores = features @ features.T - 2 * torch.eye(len(features))
    labels = torch.as_tensor(data.labels)
    return 100 * (labels[scores.argmax(1)] == labels).double().mean().item()


@pytest.mark.parametrize("better", ["features", "training"])
def test_the_better_of_the_two_is_named(recipe, tmp_path, capsys, monkeypatch, better):
    from hypvision.tasks import frozen_features

    measure = frozen_features.retrieval_by_features
    found = []

    def measured(runner, model):
        before = [parameter.clone() for parameter in model.parameters()]
        found.append(measure(runner, model))
        assert all(map(torch.equal, before, model.parameters())) and model.training
        return {**found[0], "recall@1": 100.5 if better == "features" else -1.0}

    monkeypatch.setattr(frozen_features, "retrieval_by_features", measured)
    runner = train(recipe, tmp_path / "run")
    assert 0 < by_hand(recipe) < 100
    assert found[0]["recall@1"] == pytest.approx(by_hand(recipe))
    values = runner.message_hub.get_scalar("val/recall@1").data[0]
    assert len(values) == 2, "the features are no validation of the training"
    text = capsys.readouterr().err
    assert f"trained {values[-1]:.4g} at the end, {max(values):.4g} at best" in text
    wanted = "take best_recall@1_epoch_" if better == "training" else "the features were better"
    assert wanted in text
    told = re.search(r"^weights (\S+)$", text, re.MULTILINE)[1]
    assert Path(told).name.startswith("best_recall@1_epoch_") and Path(told).is_file()
    weights = tmp_path / "run/epoch_2.pth"
    run_test(recipe, weights, tmp_path / "test", out=tmp_path / "report")
    page = (tmp_path / "report/metrics.csv").read_text()
    assert "recall@1 of the features of the backbone, before the training" in page


def test_a_network_from_scratch_has_no_features_to_beat(recipe, tmp_path, capsys):
    runner = train(recipe, tmp_path, cfg_options={"model.checkpoint": None})
    assert runner.message_hub.get_info("baseline") is None
    assert "features of the backbone" not in capsys.readouterr().err


def test_without_a_best_checkpoint_the_last_one_counts(recipe, tmp_path, capsys, monkeypatch):
    """Also of a metric that measures the encoder's features as well."""
    from hypvision.tasks import frozen_features

    measure = frozen_features.retrieval_by_features
    known = []
    monkeypatch.setattr(
        frozen_features,
        "retrieval_by_features",
        lambda *args: known.append(measure(*args)) or {"recall@1": -1.0},
    )
    options = {
        "val_evaluator.encoder": True,
        "test_evaluator.encoder": True,
        "default_hooks.checkpoint.save_best": None,
    }
    train(recipe, tmp_path / "run", cfg_options=options)
    assert known[0].keys() >= {"recall@1"}
    assert not any(key.startswith("encoder_") for key in known[0])
    assert "take epoch_2.pth" in capsys.readouterr().err
    train(recipe, tmp_path / "run", cfg_options=options, resume="auto")
    assert "result  " not in capsys.readouterr().err


@pytest.mark.parametrize("last", [20.0, float("nan")])
def test_what_is_advised_is_the_value_of_the_weights_that_are_named(last, tmp_path, capsys):
    hub = MessageHub.get_instance(f"advice {last}")
    hub.update_info("baseline", {"recall@1": 25.0, "name": "features of the backbone"})
    hub.update_info("last_ckpt", "work/epoch_2.pth")
    for value in (30.0, last):
        hub.update_scalar("val/recall@1", value)
    hook = FrozenFeaturesHook()
    runner = SimpleNamespace(message_hub=hub, iter=4)
    hook.after_val_epoch(runner)
    hook.after_train(runner)
    text = capsys.readouterr().err
    assert ("the features were better" in text) == (last == 20.0)
    assert "take epoch_2.pth" not in text
