"""Weights of classes: by hand, and counted in a training with the balanced sampler."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.cases import each

pytest.importorskip("mmengine")
from helpers.engine import make_images, write_config
from sklearn.utils.class_weight import compute_class_weight

from hypvision.clip.prompting.hosts import HostOutput
from hypvision.data.samplers import BalancedSampler
from hypvision.engine.hooks.classes import ClassWeights, ClassWeightsHook
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError
from hypvision.tasks import ImageClassifier
from hypvision.tasks.few_shot_recipes import few_shot_config

VIT = dict(model_name="test_vit", num_classes=3, img_size=32)
NAMES = dict(classes=("ant", "bee", "cow"))


def fitted(given, labels, names=NAMES):
    weights = ClassWeights(given)
    weights.fit(SimpleNamespace(labels=labels, metainfo=names), torch.device("cpu"))
    return weights()


def test_balanced_is_scikit_learns():
    labels = np.array([0] * 7 + [1] * 2 + [2])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(fitted("balanced", labels), expected, rtol=1e-6)
    np.testing.assert_allclose(
        fitted("balanced", labels[:9]), [9 / 14, 9 / 4, 1.0], rtol=1e-6
    )  # no image of the last
    several = np.array([[1, 0, 1], [1, 0, 0], [1, 0, 1], [0, 0, 1]], dtype=np.float32)
    assert fitted("balanced", several).tolist() == pytest.approx([1 / 3, 1.0, 1 / 3])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_by_hand(smoothing):
    given = [1.0, 0.0, 3.0]
    model = ImageClassifier(VIT, class_weights=given, label_smoothing=smoothing)
    weights, logits, label = torch.tensor(given), torch.randn(4, 3), torch.tensor([0, 1, 2, 2])
    target = torch.eye(3)[label] * (1 - smoothing) + smoothing / 3
    loss = -(target * weights * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(model.class_loss(logits, label), loss.sum() / weights[label].sum())
    mixed = loss.sum() / (target * weights).sum()  # targets that mixup mixed
    torch.testing.assert_close(model.class_loss(logits, target), mixed)
    fit = HostOutput.fit(SimpleNamespace(teacher=None), logits, label, weights)
    torch.testing.assert_close(
        fit, -(weights * torch.eye(3)[label] * logits.log_softmax(-1)).sum() / 7
    )
    model = ImageClassifier(VIT, class_weights=given, label_smoothing=smoothing, multi_label=True)
    wanted = torch.tensor([[1.0, 0, 1]]) * (1 - smoothing) + smoothing / 2
    p = logits[:1].sigmoid()
    by_hand = -(weights * wanted * p.log() + (1 - wanted) * (1 - p).log()).mean()
    torch.testing.assert_close(model.class_loss(logits[:1], torch.tensor([[1.0, 0, 1]])), by_hand)


def test_weights_stay_with_their_classes_where_a_checkpoint_has_another_order(tmp_path):
    data = make_images(tmp_path / "data", 2)  # blue, green, red
    config = write_config(tmp_path / "config.py", data)
    train(config, tmp_path / "first")
    path = tmp_path / "first/epoch_1.pth"
    checkpoint = torch.load(path, weights_only=False)
    checkpoint["meta"]["dataset_meta"]["classes"] = ("red", "green", "blue")
    torch.save(checkpoint, path)
    options = {"load_from": str(path), "model.class_weights": [1.0, 2.0, 3.0]}
    runner = train(config, tmp_path / "second", cfg_options=options)
    assert runner.train_dataloader.dataset.metainfo["classes"] == ("red", "green", "blue")
    assert runner.model.class_weights().tolist() == [3.0, 2.0, 1.0]


def test_a_training_counts_its_classes_and_draws_them_alike(tmp_path):
    data = make_images(tmp_path / "data", 6)
    for path in [*data.glob("train/red/*")][1:] + [*data.glob("train/blue/*")][4:]:
        path.unlink()
    options = {
        "model.class_weights": "balanced", "train_dataloader.sampler.type": "BalancedSampler",
        "train_dataloader.sampler.power": 0.5,
    }  # fmt: skip
    config = write_config(tmp_path / "config.py", data, epochs=2)
    runner = train(config, tmp_path / "work", cfg_options=options)
    assert (
        "Rare classes count twice over"
        in Path(runner.log_dir, f"{runner.timestamp}.log").read_text()
    )
    torch.testing.assert_close(runner.model.class_weights(), 11 / 3 / torch.tensor([4.0, 6.0, 1.0]))
    assert runner.train_dataloader.sampler.epoch == 1 and len(runner.train_dataloader.sampler) == 11
    assert not any("class_weights" in name for name in runner.model.state_dict())


@each(
    "given, labels, sampler, told",
    [
        ("balanced", [0] * 9 + [1], dict(power=1.0), True),
        ("balanced", [0] * 9 + [1], dict(power=0.0), False),  # drawn as the data are
        ("balanced", [0, 0, 1, 1], {}, False),  # nothing to balance
        ([1.0, 2.0], [0] * 9 + [1], {}, False),  # chosen by somebody
        ("balanced", [0] * 9 + [1], None, False),
    ],
)
def test_rare_classes_that_count_twice_over_are_told(given, labels, sampler, told):
    class Data(list):
        metainfo = dict(classes=("a", "b"))

    data, said = Data(labels), []
    data.labels = np.array(labels)
    model = torch.nn.Linear(1, 1)
    model.class_weights = ClassWeights(given)
    loader = SimpleNamespace(
        dataset=data, sampler=sampler if sampler is None else BalancedSampler(data, **sampler)
    )
    run = SimpleNamespace(
        model=model, train_dataloader=loader, logger=SimpleNamespace(warning=said.append)
    )
    ClassWeightsHook().before_train(run)
    assert bool(said) == told


def test_few_shots_take_both():
    config = few_shot_config("coop", "shots", class_weights="balanced", balanced=True, steps=20)
    assert config["train_dataloader"]["sampler"] == dict(type="BalancedSampler", length=32)
    assert config["model"]["class_weights"] == "balanced"


@each(
    "given, said",
    [
        ("balance", "one of 'balanced', got 'balance'"),
        ([1, -1, 1], "of at least 0, got -1"),
        ([0, 0, 0], "above 0"),
        ([1, float("nan"), 1], "got nan"),
        ([1, 2], "2 class_weights, but the training data has 3 classes: ant, bee, cow"),
    ],
)
def test_mistakes(given, said):
    with pytest.raises(HypvisionError, match=said):
        fitted(given, np.array([0, 1, 2]))
    with pytest.raises(HypvisionError, match="balanced.*counts of the training data"):
        ClassWeights("balanced")()
