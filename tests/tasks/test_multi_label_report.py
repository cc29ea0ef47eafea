"""The report of several labels an image, against scikit-learn and by hand."""

import numpy as np
import pytest
import torch

pytest.importorskip("mmengine")
from sklearn.metrics import average_precision_score, precision_recall_curve

from hypvision.engine.reports import add_report
from hypvision.tasks.classification_report import MultiLabelReport, precision_curve

CLASSES = ("ant", "bee", "cow", "doe")


def parts_of(truth, scores, classes=CLASSES):
    metric = MultiLabelReport(threshold=0.4)
    metric.dataset_meta = dict(classes=classes)
    samples = [dict(label=t.tolist(), scores=torch.tensor(s)) for t, s in zip(truth, scores)]
    unlabelled, broken = (
        dict(label=None, scores=torch.zeros(4)),
        dict(samples[0], scores=torch.full((4,), torch.nan)),
    )
    metric.process(None, [*samples, unlabelled, broken])
    return {part.title: part for part in metric.report(metric.results)}


@pytest.fixture
def cases():
    generator = np.random.default_rng(0)
    truth = (generator.random((60, 4)) < (0.5, 0.3, 0.1, 0.0)).astype(int)
    return truth, generator.random((60, 4)).round(1) * 0.5 + 0.5 * truth * generator.random((60, 4))


def test_curves_and_classes(cases):
    truth, scores = cases
    parts = parts_of(truth, scores)
    head, *rows = parts["Classes"].table
    assert (
        head == ("class", "images", "AP", "recall", "precision", "F1") and rows[-1][0] == "doe"
    )  # without a true one
    values = [row[2] for row in rows[:-1]]
    assert values == sorted(values) and [row[0] for row in rows[:-1]] != list(CLASSES[:3])
    for name, images, ap, recall, precision, _ in rows[:-1]:
        c = CLASSES.index(name)
        assert images == truth[:, c].sum() and ap == pytest.approx(
            100 * average_precision_score(truth[:, c], scores[:, c])
        )
        given = scores[:, c] >= 0.4
        assert recall == pytest.approx(100 * given[truth[:, c] > 0].mean())
        assert precision == pytest.approx(100 * truth[given, c].mean())
    curves = parts["Precision and recall"]
    assert curves.picture is not None and len(curves.table) == 1 + 101 * 4
    assert [row[0] for row in curves.table[1::101]] == ["(mean)", "ant", "bee", "cow"]
    for c in range(3):
        precision, recall, _ = precision_recall_curve(truth[:, c], scores[:, c])
        wanted = [precision[recall >= r - 1e-9].max() for r in np.linspace(0, 1, 101)]
        drawn = [row[2] for row in curves.table[1:] if row[0] == CLASSES[c]]
        assert (
            precision[-1] == 1
        )  # scikit-learn adds a point without any prediction, which is no threshold
        np.testing.assert_allclose(drawn[1:], wanted[1:])


def test_a_curve_by_hand():
    curve = precision_curve(np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 0, 1, 0], bool))
    assert curve[:51].tolist() == [1.0] * 51 and curve[51:].tolist() == pytest.approx([2 / 3] * 50)


def test_nothing_to_show():
    empty = MultiLabelReport()
    empty.compute_metrics([])
    assert empty.parts[0].text == MultiLabelReport.NOTHING
    nothing = parts_of(np.zeros((3, 4), int), np.full((3, 4), 0.5))
    assert nothing["Precision and recall"].text == "No image of the test data has a label."
    assert all(np.isnan(row[2]) for row in nothing["Classes"].table[1:])


def test_the_option_adds_it(tmp_path):
    from hypvision.engine.config import Run

    config = Run(dict(test_evaluator=dict(type="MultiLabelAP", threshold=0.3)))
    add_report(config, tmp_path, "x.pth")
    assert config.test_evaluator[1] == dict(type="MultiLabelReport", threshold=0.3)
