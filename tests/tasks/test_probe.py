"""The linear probe against scikit-learn, as the head that a training begins with, and as a
command."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.cases import each

pytest.importorskip("mmengine")
from helpers.engine import make_images, write_config
from torch import nn

from hypvision.cli import main
from hypvision.engine.config import load_config
from hypvision.io.errors import HypvisionError
from hypvision.tasks import ImageClassifier
from hypvision.tasks.own_folder import config_of, folder_config
from hypvision.tasks.probe import (
    DECAYS,
    every_fifth,
    fit_path,
    fit_probe,
    head_inputs,
    linear_head,
    only_probe,
)

VIT = dict(model_name="test_vit", num_classes=5, img_size=32)


def blobs(count=60, classes=3, size=8, apart=1.5):
    """Gaussian classes around different means, far from 0 and of another scale."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(count) % classes
    centres = apart * torch.randn(classes, size, generator=generator)
    return 7 * (centres[labels] + torch.randn(count, size, generator=generator)) + 100, labels


@each("decay", [1.0, 0.03])
@each("weighted", [False, True])
def test_it_is_the_logistic_regression_of_scikit_learn(decay, weighted):
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, labels = blobs()
    weights = torch.tensor([1.0, 2.0, 0.5]) if weighted else None
    ((weight, bias),) = fit_path(features, labels, 3, (decay,), weights, steps=500)
    mean = features.mean(0)
    scale = (features - mean).square().mean().sqrt()
    x = ((features - mean) / scale).double().numpy()
    # its loss is the sum over the images, ours their weighted mean
    total = len(labels) if weights is None else weights[labels].sum().item()
    given = None if weights is None else {i: float(value) for i, value in enumerate(weights)}
    expected = linear_model.LogisticRegression(
        C=1 / (decay * total), class_weight=given, tol=1e-9, max_iter=5000
    )
    expected.fit(x, labels.numpy())
    own = torch.softmax(features @ weight.T + bias, 1)
    torch.testing.assert_close(
        own, torch.from_numpy(expected.predict_proba(x)).float(), atol=2e-4, rtol=0
    )


def test_the_decay_is_the_best_on_held_out_images():
    features, labels = blobs(apart=0.4)
    new, truth = blobs(600, apart=0.4)
    probe = fit_probe(features, labels, 3, held_out=(new, truth))
    path = fit_path(features, labels, 3)
    scores = [100 * ((new @ w.T + b).argmax(1) == truth).float().mean().item() for w, b in path]
    assert probe.score == pytest.approx(max(scores))
    assert scores[DECAYS.index(probe.decay)] == pytest.approx(max(scores)) and len(set(scores)) > 1


def test_without_held_out_images_every_fifth_is_held_out_and_then_used():
    assert every_fifth(
        torch.tensor([0, 0, 0, 0, 0, 0, 0, 1, 1, 2])
    ).nonzero().flatten().tolist() == [1, 6, 8]
    features, labels = blobs()
    probe = fit_probe(features, labels, 3)
    path = fit_path(features, labels, 3, DECAYS[: DECAYS.index(probe.decay) + 1])
    torch.testing.assert_close(probe.weight, path[-1][0])


def test_what_the_head_gets():
    model = ImageClassifier(VIT).backbone
    head = linear_head(model)
    images = torch.randn(4, 3, 32, 32)
    features = head_inputs(model, [images[:3], images[3:]])
    torch.testing.assert_close(head(features), model.eval()(images))


@pytest.mark.parametrize("init", ["zero", "probe", "timm"])
def test_a_new_head_on_trained_features(tmp_path, init):
    """Zeros, which timm's own head for the classes of the checkpoint, or of no checkpoint, never
    is."""
    torch.manual_seed(0)
    path = tmp_path / "start.pth"
    torch.save(ImageClassifier(VIT).backbone.state_dict(), path)
    model = ImageClassifier(dict(VIT, num_classes=3), checkpoint=str(path), head_init=init)
    model.init_weights()
    assert model.head_is_new and bool(linear_head(model.backbone).weight.any()) == (init == "timm")
    for same in (
        ImageClassifier(VIT, checkpoint=str(path), head_init=init),
        ImageClassifier(VIT, head_init=init),
    ):
        same.init_weights()
        assert not same.head_is_new and linear_head(same.backbone).weight.any()
    with pytest.raises(ValueError, match="head_init"):
        ImageClassifier(VIT, head_init="small")


def metrics_of(folder):
    lines = [
        json.loads(line) for path in folder.glob("*/vis_data/scalars.json") for line in path.open()
    ]
    return {line["step"]: line["top1"] for line in lines if "top1" in line}


@pytest.mark.parametrize("average", [False, True])
def test_a_training_begins_with_the_probe(tmp_path, capsys, average):
    data = make_images(tmp_path / "data")
    hooks = [dict(type="EMAHook")] if average else []
    config = write_config(tmp_path / "config.py", data, epochs=2, hooks=hooks)
    config.write_text(config.read_text() + "\nmodel.update(head_init='probe')\n")
    work = tmp_path / "run"
    options = ["optim_wrapper.optimizer.lr=1e-9", "model.label_smoothing=0"]
    assert main(["train", str(config), "--work-dir", str(work), "--cfg-options", *options]) == 0
    found = metrics_of(work)
    text = capsys.readouterr().err
    assert list(found) == [0, 1, 2] and found[0] == 100.0, "noise of three colours"
    assert found[1] == found[0]
    assert "linear probe 100, fine-tuned 100 at the end; take epoch_2.pth" in text
    weights = torch.load(work / "probe.pth", weights_only=False)
    assert "optimizer" not in weights and weights["meta"]["dataset_meta"]["classes"] == (
        "blue",
        "green",
        "red",
    )
    assert list(work.glob("best_top1_epoch_0.pth")), "none of the epochs is better than the probe"
    assert (
        main(
            [
                *f"train {config} --work-dir {work} --resume --cfg-options".split(),
                *options,
                "train_cfg.max_epochs=3",
            ]
        )
        == 0
    )
    again = capsys.readouterr().err
    assert "probe  " not in again
    assert "linear probe 100, fine-tuned 100 at the end; take epoch_3.pth" in again


def test_the_probe_alone(tmp_path, capsys):
    config = write_config(tmp_path / "config.py", make_images(tmp_path / "data"))
    work = tmp_path / "run"
    assert main(["train", str(config), "--work-dir", str(work), "--method", "probe"]) == 0
    assert f"weights {work / 'probe.pth'}" in capsys.readouterr().err
    assert sorted(path.name for path in work.glob("*.pth")) == ["probe.pth"]
    assert (
        main(["test", str(config), str(work / "probe.pth"), "--work-dir", str(tmp_path / "test")])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["top1"] == 100.0
    image = tmp_path / "data/val/green/0.png"
    out = tmp_path / "predicted"
    words = f"predict {image} --model {config} --weights {work / 'probe.pth'} --out {out}".split()
    assert main(words) == 0
    assert "green" in (out / "predictions.csv").read_text()
    assert main(["train", str(config), "--method", "probe", "--resume"]) == 2


def test_other_models_have_no_probe(tmp_path):
    config = load_config(write_config(tmp_path / "config.py", tmp_path))
    config.model.type = "MetricLearner"
    with pytest.raises(HypvisionError, match="is for classifiers"):
        only_probe(config)


def test_folders_of_photos(tmp_path):
    make_images(tmp_path / "mine", per_class=6)
    config = folder_config(tmp_path / "mine")
    assert config.model.backbone.num_classes == 3 and config.work_dir == "work_dirs/mine"
    assert config.train_dataloader.dataset.root == str(tmp_path / "mine/train")
    assert (
        config.val_dataloader.dataset.root
        == config.test_dataloader.dataset.root
        == str(tmp_path / "mine/val")
    )
    flat = folder_config(tmp_path / "mine/train")
    held_out = flat.val_dataloader.dataset.indices
    assert held_out == [1, 7, 13] and len(flat.train_dataloader.dataset.indices) == 15
    assert not set(held_out) & set(flat.train_dataloader.dataset.indices)
    assert config_of("nothing.py") == "nothing.py" and config_of(config) is config
    for name in ("green", "red"):
        shutil.rmtree(tmp_path / "mine/train" / name)
    with pytest.raises(HypvisionError, match="1 class folders"):
        folder_config(tmp_path / "mine")


def test_a_folder_without_an_image_to_validate_with(tmp_path):
    make_images(tmp_path / "mine", per_class=1)
    with pytest.raises(HypvisionError, match="one to validate with"):
        folder_config(Path(tmp_path / "mine/train"))


def test_a_head_that_is_no_linear_layer_is_told():
    class Other(nn.Module):
        def get_classifier(self):
            return nn.Conv2d(3, 3, 1)

    with pytest.raises(HypvisionError, match="is Conv2d"):
        linear_head(Other())


def test_the_head_of_a_hi_mapper_gets_what_its_hierarchy_gives():
    import timm

    model = timm.create_model("himapper", backbone="test_resnet", num_classes=3).eval()
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(linear_head(model)(head_inputs(model, [images])), model(images))


def several_blobs(count=60, seed=2):
    """Features, and three labels of each, of which some images have none and some all."""
    generator = torch.Generator().manual_seed(seed)
    features = 7 * torch.randn(count, 8, generator=generator) + 100
    centred = (features - 100) / 7 + 0.7 * torch.randn(count, 8, generator=generator)
    return features, (centred[:, :3] > torch.tensor([0.0, 0.5, -0.5])).float()


@each("weighted", [False, True])
def test_with_several_labels_each_class_has_a_regression_of_scikit_learn(weighted):
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, labels = several_blobs()
    weights = torch.tensor([1.0, 2.0, 0.5]) if weighted else None
    ((weight, bias),) = fit_path(features, labels, 3, (0.1,), weights, steps=500)
    mean = features.mean(0)
    scale = (features - mean).square().mean().sqrt()
    x = ((features - mean) / scale).double().numpy()
    own = torch.sigmoid(features @ weight.T + bias)
    for place in range(3):
        given = None if weights is None else {0: 1.0, 1: float(weights[place])}
        expected = linear_model.LogisticRegression(
            C=1 / (0.1 * len(x)), class_weight=given, tol=1e-9, max_iter=5000
        )
        found = expected.fit(x, labels[:, place].numpy()).predict_proba(x)[:, 1]
        torch.testing.assert_close(
            own[:, place], torch.from_numpy(found).float(), atol=5e-4, rtol=0
        )


def test_the_decay_for_several_labels_is_the_best_by_average_precision():
    metrics = pytest.importorskip("sklearn.metrics")
    features, labels = several_blobs(40)
    new, truth = several_blobs(300, seed=3)
    probe = fit_probe(features, labels, 3, held_out=(new, truth))
    scores = [
        100 * metrics.average_precision_score(truth, new @ w.T + b, average="macro")
        for w, b in fit_path(features, labels, 3)
    ]
    assert probe.score == pytest.approx(max(scores)) and len(set(scores)) > 1
    assert scores[DECAYS.index(probe.decay)] == pytest.approx(max(scores))
    assert every_fifth(labels).nonzero().flatten().tolist() == [*range(1, 40, 5)]
