"""Any number of labels an image: the metric against scikit-learn, and from a table to predictions
on the console."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("mmengine")
from helpers.engine import ROOT, make_images
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

import hypvision
from hypvision.cli import main
from hypvision.engine.run import test as measure
from hypvision.engine.run import train
from hypvision.inference.results import Tags
from hypvision.io.errors import HypvisionError
from hypvision.tasks import ImageClassifier, MultiLabelAP, TopKAccuracy
from hypvision.tasks.classification_metrics import auroc, average_precision

CONFIG = """
_base_ = [
    "{root}/configs/_base_/datasets/own_multi_label.py",
    "{root}/configs/_base_/schedules/own_adamw_30e.py",
    "{root}/configs/_base_/default_runtime.py",
]
data_root = "{data}"
model = dict(
    type="ImageClassifier",
    backbone=dict(model_name="test_vit", num_classes=3, img_size=32),
    multi_label=True,
)
view = dict(transform=dict(_delete_=True, input_size=32))
train_dataloader = dict(num_workers=0, batch_size=16, dataset=view)
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=view)
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=2e-3))
train_cfg = dict(max_epochs=6)
param_scheduler = []
default_hooks = dict(checkpoint=dict(save_best="mAP"))
"""


@pytest.mark.parametrize("ties", [1000, 3])
def test_the_metric_is_scikit_learns(tmp_path, ties):
    generator = np.random.default_rng(0)
    truth = generator.random((40, 4)) < [0.5, 0.1, 0.9, 0.0]
    scores = np.floor(generator.random((40, 4)) * ties) / ties
    samples = [dict(scores=torch.tensor(s), label=y.astype(float).tolist(), index=i)
               for i, (s, y) in enumerate(zip(scores, truth))]  # fmt: skip
    metric = MultiLabelAP(threshold=0.4, out_file=str(tmp_path / "found.json"))
    metric.dataset_meta = dict(classes=("ant", "bee", "cow", "doe"))
    metric.process({}, samples)
    found, there = metric.evaluate(40), truth.any(0)
    expected = [
        100 * average_precision_score(truth[:, c], scores[:, c]) for c in np.flatnonzero(there)
    ]
    assert found["mAP"] == pytest.approx(np.mean(expected))
    assert found["f1"] == pytest.approx(
        100 * f1_score(truth, scores >= 0.4, average="macro", labels=[0, 1, 2])
    )
    assert [entry.value for entry in metric.classes] == pytest.approx(
        expected
    ) and metric.without_truth == ["doe"]
    report = json.loads((tmp_path / "found.json").read_text())
    assert [*report["ap_per_class"]] == ["ant", "bee", "cow"] and len(report["predictions"]) == 40


def test_the_area_below_the_curve_counts_equal_scores_half():
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 9, 200).astype(float)
    truth = generator.random(200) < 0.1 * scores
    assert auroc(scores, truth) == pytest.approx(roc_auc_score(truth, scores))
    assert auroc(np.full(4, 0.5), np.array([1, 0, 0, 0], bool)) == 0.5
    assert np.isnan(auroc(scores, np.ones(200, bool)))


def test_average_precision_in_closed_form():
    assert (
        average_precision(np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 0, 1, 0], bool))
        == (1 + 2 / 3) / 2
    )
    assert average_precision(np.full(5, 0.5), np.array([1, 0, 0, 0, 0], bool)) == 1 / 5


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A network that learned which of three colours are strong in an image, and its folder."""
    folder = tmp_path_factory.mktemp("labels")
    make_images(folder, 24)
    for split in ("train", "val"):
        paths = sorted((folder / split).glob("*/*.png"))
        rows = [f"{path.relative_to(folder)},{path.parent.name}" for path in paths]
        (folder / f"{split}.csv").write_text("\n".join(["image,labels", *rows]))
    (folder / "config.py").write_text(CONFIG.format(root=ROOT, data=folder))
    return folder, train(folder / "config.py", folder / "work")


def test_from_a_table_to_labels(trained, tmp_path, capsys):
    folder, runner = trained
    weights = folder / "work/epoch_6.pth"
    assert runner.message_hub.get_scalar("val/mAP").current() > 80
    log = "".join(path.read_text() for path in folder.glob("work/*/*.log"))
    assert "MultiLabelAP of each class (samples):" in log and " blue (24)" in log
    places = dict(out=tmp_path / "report", show_dir=tmp_path / "shown")
    metrics = measure(folder / "config.py", weights, tmp_path / "test", tta=True, **places)
    rows = (tmp_path / "report/classes.csv").read_text().splitlines()[1:]
    assert sum(float(row.split(",")[2]) for row in rows) / 3 == pytest.approx(
        metrics["mAP"], abs=0.01
    )
    assert (tmp_path / "report/precision_recall.png").is_file()
    assert metrics["mAP"] > 80 and len(list((tmp_path / "shown").glob("*.png"))) == 72
    words = [
        "predict",
        str(folder / "val/red"),
        "--model",
        str(folder / "config.py"),
        "--weights",
        str(weights),
    ]
    for score, most in ((None, 24), ("0", 72), ("1", 0)):
        more = [] if score is None else ["--score", score]
        assert main([*words, *more, "--out", str(tmp_path / "out")]) == 0
        found = json.loads((tmp_path / "out/predictions.json").read_text())["annotations"]
        assert len(found) == most if score else 0 < len(found) <= 2 * most
        assert all(item["score"] >= float(score or 0.5) for item in found)
    [result] = hypvision.predict(
        folder / "val/red/0.png", folder / "config.py", weights, expect=Tags
    )
    assert result.result.names == ("blue", "green", "red") and result.result.scores.argmax() == 2
    logits = runner.model.eval()(runner.val_dataloader.dataset[48]["inputs"][None])
    np.testing.assert_allclose(result.result.scores, logits.detach()[0].sigmoid(), rtol=1e-3)
    # The weights alone know it, too.
    [again] = hypvision.predict(
        folder / "val/red/0.png", "test_vit", weights, expect=Tags, img_size=32
    )
    np.testing.assert_allclose(again.result.scores, result.result.scores, rtol=1e-5)


def test_single_label_and_multi_label_data_are_not_confused():
    vit = dict(model_name="test_vit", num_classes=3, img_size=32)
    images, one, several = torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]), torch.eye(3)[:2]
    for model, label, said in (
        (
            ImageClassifier(vit),
            several,
            "has several labels an image, but model.multi_label is False",
        ),
        (
            ImageClassifier(vit, multi_label=True),
            one,
            "has one label an image, but model.multi_label is True",
        ),
    ):
        with pytest.raises(HypvisionError, match=said):
            model(images, label, mode="loss")
    scores = torch.zeros(3)
    for metric, label, said in (
        (TopKAccuracy(), [0.0, 1.0, 0.0], "one label"),
        (MultiLabelAP(), 1, "several labels"),
    ):
        with pytest.raises(HypvisionError, match=f"measures {said} an image"):
            metric.process({}, [dict(scores=scores, label=label, index=0)])
    with pytest.raises(HypvisionError, match="leave out mixup with multi_label"):
        ImageClassifier(vit, multi_label=True, mixup=dict(mixup_alpha=0.2))
