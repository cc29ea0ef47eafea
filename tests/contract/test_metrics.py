"""What every metric keeps: of nothing it gives NaN and one warning, never a number; of what is not
finite it gives an error that names the image."""

import importlib
import inspect
import logging
import math

import numpy as np
import pytest
import torch
from helpers.cases import each

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")
pytest.importorskip("open_clip")
import mmdet.registry
import mmengine.registry
import mmseg.registry

from hypvision.clip.spaces import Sphere
from hypvision.engine.metrics import Metric
from hypvision.engine.reports import ReportMetric
from hypvision.io.errors import HypvisionError
from hypvision.openmmlab.preparing import PREPARATIONS  # noqa: F401 - registers nothing by itself

for module in (
    "tasks.contrastive", "tasks.language", "tasks.metric_learning_metrics", "tasks.radial",
    "openmmlab.label_maps", "openmmlab.coco_metric", "openmmlab.datasets.detection",
    "openmmlab.open_vocabulary.detection", "openmmlab.open_vocabulary.panoptic",
    "openmmlab.open_vocabulary.segmentation", "openmmlab.tree_metric",
):  # fmt: skip
    importlib.import_module(f"hypvision.{module}")

CLASSES = ("ant", "bee", "cow", "doe")
NAN, INF = math.nan, math.inf


def scored(values=(0.1, 0.6, 0.2, 0.1), label=1, **more):
    return dict(scores=torch.tensor(values), label=label, **more)


def embedded(values=(1.0, 2.0), label=0, index=0):
    return dict(embedding=torch.tensor(values), label=label, index=index, space="cosine")


def paired(image=(1.0, 2.0), text=(1.0, 2.0)):
    return dict(image=torch.tensor(image), text=torch.tensor(text), caption="a bee", space=Sphere())


def segmented(truth, predicted=((0, 0),), logit=0.0):
    logits = torch.full((4, 1, 2), logit)
    return dict(pred_sem_seg=dict(data=torch.tensor(predicted)[None]),
    gt_sem_seg=dict(data=torch.tensor(truth)[None]),
                seg_logits=dict(data=logits), img_path="street.jpg")  # fmt: skip


BOX = [0.0, 0.0, 40.0, 40.0]


def detected(truth, box=BOX, score=0.9):
    """``truth``: (label, crowd) of boxes in the same place as the one that is found, of the first
    class."""
    found = dict(bboxes=torch.tensor([box]), labels=torch.tensor([0]), scores=torch.tensor([score]))
    instances = [dict(bbox=BOX, bbox_label=label, ignore_flag=crowd) for label, crowd in truth]
    return dict(
        pred_instances=found,
        img_id=3,
        ori_shape=(50, 50),
        instances=instances,
        img_path="street.jpg",
    )


def panoptic(truth, predicted=((0, 0),)):
    """``truth``: (category, crowd) of the segments 1, 2, ... that halve the image; without any all
    is void."""
    ids = np.array([[min(k, len(truth)) for k in (1, 2)]])
    segments = [dict(id=k, category=c, iscrowd=crowd) for k, (c, crowd) in enumerate(truth, 1)]
    return dict(pred_panoptic_seg=dict(sem_seg=torch.tensor(predicted)[None]), panoptic_ids=ids,
                segments_info=segments, img_path="street.jpg")  # fmt: skip


# For each metric: its options; samples that it can measure; lists of samples without any truth;
# samples without truth for a class, and how it is called; samples that are not finite, and the
# image.
CASES = {
    "TopKAccuracy": dict(
        good=[scored(index=0)], no_truth=[[scored(label=None, index=0)]],
        partly=([scored(index=0), scored(label=None, index=1)], "1 of 2 images"),
        bad=[[scored(index=0), scored((NAN,) * 4, index=7)], [scored((INF, 0.0, 0.0, 0.0),
        index=7)]],
        named="image 7 of the data",
    ),
    "MultiLabelAP": dict(
        good=[scored(label=[0.0, 1.0, 1.0, 0.0], index=0)],
        no_truth=[[scored(label=None, index=0)], [scored(label=[0.0] * 4, index=0)]],
        partly=([scored(label=[1.0] * 4, index=0), scored(label=None, index=1)], "1 of 2 images"),
        bad=[[scored((INF, 0.0, 0.0, 0.0), label=[1.0] * 4, index=7)]],
        named="image 7 of the data",
    ),
    "ZeroShotAccuracy": dict(good=[scored()], bad=[[scored(), scored((NAN,) * 4)]],
    named="sample 1"),
    "ImageTextRetrieval": dict(
        good=[paired()], bad=[[paired(), paired((NAN, 0.0))], [paired(), paired(text=(INF, 0.0))]],
        named="sample 1"
    ),
    "BitsPerByte": dict(
        good=[dict(loss=3.0, count=2)], no_truth=[[dict(loss=0.0, count=0)]],
        bad=[[dict(loss=1.0, count=1), dict(loss=NAN, count=3)], [dict(loss=1.0, count=1),
        dict(loss=INF, count=3)]],
        named="sample 1",
    ),
    "ChainOrder": dict(
        good=[dict(radii=torch.tensor([1.0, 2.0]))],
        no_truth=[[dict(radii=torch.ones(1))]],  # one text is in any order
        bad=[[dict(radii=torch.tensor([1.0, NAN]))]],
        named="sample 0",
    ),
    "RetrievalMetric": dict(
        good=[embedded(index=i, label=0) for i in range(3)],
        no_truth=[[embedded(index=i, label=i) for i in range(3)], [embedded()]],
        partly=([embedded(index=i, label=i // 2) for i in range(3)], "1 of 3 queries"),
        bad=[[embedded(index=0), embedded((NAN, 1.0), index=9)], [embedded(index=0), embedded((INF,
        1.0), index=9)]],
        named="image 9 of the data", options=dict(recall=(1,), device="cpu"),
    ),
    "IoUMetric": dict(
        good=[segmented([[0, 0]])],
        no_truth=[[segmented([[255, 255]])]],
        partly=([segmented([[0, 0]])], "bee, cow, doe"),
        bad=[[segmented([[0, 0]], logit=NAN)], [segmented([[0, 0]], logit=INF)]],
        named="street.jpg",
        variants=(dict(), dict(iou_metrics=["mIoU", "mDice", "mFscore"]), dict(nan_to_num=0)),
    ),
    "TreeIoUMetric": dict(
        good=[segmented([[0, 0]])],
        no_truth=[[segmented([[255, 255]])]],
        partly=([segmented([[0, 0]])], "bee, cow, doe"),
        bad=[[segmented([[0, 0]], logit=NAN)], [segmented([[0, 0]], logit=INF)]],
        named="street.jpg", options=dict(tree={"small": ["ant", "bee"], "cow": [], "doe": []}),
    ),
    "CocoMetric": dict(
        good=[detected([(0, 0)])],
        no_truth=[[detected([])], [detected([(0, 1)])]],  # nothing, and crowds alone
        partly=([detected([(0, 0)])], "bee, cow, doe"),
        bad=[[detected([(0, 0)], box=[NAN] * 4)], [detected([(0, 0)], score=NAN)], [detected([(0,
        0)], score=INF)]],
        named="street.jpg",
        variants=(dict(), dict(classwise=True), dict(metric="proposal"),
        dict(metric="proposal_fast"),
                  dict(proposal_nums=(1, 10, 100)),
                  dict(metric_items=["mAP_50"])),
    ),
    "OpenVocabPanopticMetric": dict(
        good=[panoptic([(0, 0)])],
        no_truth=[[panoptic([])], [panoptic([(1, 1)])], [panoptic([(0, 1)], ((1, 1),))]],
        partly=([panoptic([(0, 0)])], "bee, cow, doe"),
        # Segments are whole numbers: the model looks at its scores, see tests/openmmlab.
        variants=(dict(), dict(groups=dict(novel=["bee"]))),
    ),
}  # fmt: skip
CASES["CalibrationError"] = CASES["TopKAccuracy"]
GROUPS = dict(
    ancestors=dict(ant=["bug"], bee=["bug"], cow=["beast"], doe=["beast"]), levels=["kind"]
)
CASES["HierarchicalErrors"] = CASES["ZeroShotAccuracy"] | dict(
    variants=(dict(ancestors=GROUPS["ancestors"]),)
)
CASES["GroupAccuracy"] = CASES["TopKAccuracy"] | dict(variants=(GROUPS,))
CASES["OpenVocabIoUMetric"] = CASES["IoUMetric"] | dict(
    variants=(dict(), dict(absent_classes="zero"), dict(groups=dict(novel=["bee"])))
)
CASES["OpenVocabCocoMetric"] = CASES["CocoMetric"] | dict(
    variants=(dict(), dict(groups=dict(novel=["bee"])))
)
REGISTRIES = (mmengine.registry.METRICS, mmdet.registry.METRICS, mmseg.registry.METRICS)


def registered():
    """Every metric of hypvision by its name, those that take the place of others included."""
    return {name: kind for registry in REGISTRIES for name, kind in registry.module_dict.items()
            if kind.__module__.startswith("hypvision") and not issubclass(kind,
            ReportMetric)}  # fmt: skip


@pytest.fixture(autouse=True)
def told(caplog):
    """The warnings of this package."""
    caplog.set_level(logging.WARNING)

    def messages():
        own = [record for record in caplog.records if record.name.startswith("hypvision")]
        texts = [record.getMessage() for record in own]
        return [text for text in texts if "Nothing was detected" not in text]

    return messages


def measure(name, samples, options, **attributes):
    metric = registered()[name](**(options or CASES[name].get("options", {})))
    metric.dataset_meta = dict(classes=CLASSES)
    for key, value in attributes.items():
        setattr(metric, key, value)
    if samples:
        metric.process({}, samples)
    return metric.evaluate(len(samples))


def variants(key="good"):
    return [pytest.param(name, options, id="-".join([name, *map(str, options)]))
            for name, case in CASES.items() if case.get(key) for options in case.get("variants",
            ({},))]  # fmt: skip


def test_every_metric_has_a_case():
    assert set(registered()) == set(CASES)
    assert all(issubclass(kind, Metric) for kind in registered().values())
    for registry, name in (
        (mmdet.registry.METRICS, "CocoMetric"),
        (mmseg.registry.METRICS, "IoUMetric"),
    ):
        assert registry.get(name).__module__.startswith(
            "hypvision"
        )  # what a user's config means by it


@pytest.mark.parametrize(("name", "options"), variants())
def test_nothing_gives_no_number(name, options, told):
    good = measure(name, CASES[name]["good"], options)
    assert any(math.isfinite(value) for value in good.values())
    before = len(told())
    for samples in ([], *CASES[name].get("no_truth", ())):
        found = measure(name, samples, options)
        assert found and all(math.isnan(value) for value in found.values()), (samples, found)
        assert len(told()) == before + 1 and "NaN" in told()[-1], told()
        before += 1
    if not options.get("classwise"):  # names of classes come with samples
        assert measure(name, [], options).keys() == good.keys()


@pytest.mark.parametrize(("name", "options"), variants())
def test_metrics_work_without_class_names_or_ask_for_them(name, options):
    """In a loop of one's own nobody has taken them from a data set."""
    try:
        found = measure(name, CASES[name]["good"], options, dataset_meta=None)
    except HypvisionError as error:
        assert f"{name} needs the names of the classes" in str(error).replace("Checked", "")
    else:
        assert any(math.isfinite(value) for value in found.values())


@pytest.mark.parametrize(("name", "options"), variants("partly"))
def test_missing_ground_truth_is_reported_once(name, options, told):
    samples, missing = CASES[name]["partly"]
    found = measure(name, samples, options)
    assert [text for text in told() if f"no truth for {missing}" in text] == told() and len(
        told()
    ) == 1
    assert any(math.isfinite(value) for value in found.values())
    metric = registered()[name](**(options or CASES[name].get("options", {})))
    metric.dataset_meta = dict(classes=CLASSES)
    for _ in range(2):  # of each validation of a training
        metric.process({}, samples)
        metric.evaluate(len(samples))
    assert len(told()) == 2


@pytest.mark.parametrize(("name", "options"), variants("bad"))
def test_what_is_not_finite_is_an_error_that_names_the_image(name, options, told):
    for samples in CASES[name]["bad"]:
        with pytest.raises(HypvisionError, match=rf"{CASES[name]['named']}.* is not finite"):
            measure(name, samples, options)
        found = measure(
            name, samples, options, allow_nonfinite=True
        )  # hypvision test --allow-nonfinite
        assert found and all(math.isnan(value) for value in found.values())
        assert CASES[name]["named"] in told()[-1]


MAPS = [
    name
    for name, case in CASES.items()
    if any("Seg" in key or "seg" in key for key in case["good"][0])
]


@pytest.mark.parametrize("name", MAPS)
def test_pixels_and_segments_of_a_long_test_set_are_counted_exactly(name):
    """2**24 maps and one more: float32 would not see the last."""
    metric = registered()[name](**CASES[name].get("options", {}))
    metric.dataset_meta = dict(classes=CLASSES)
    metric.process({}, CASES[name]["good"])
    (last,) = metric.results
    for found in zip(*last) if isinstance(last, np.ndarray) else last:
        one = np.asarray(found)
        assert sum([one * 2**24, one]).tolist() == [int(count) * (2**24 + 1) for count in one]
    assert {"IoUMetric", "OpenVocabIoUMetric", "OpenVocabPanopticMetric", "TreeIoUMetric"} == set(
        MAPS
    )


# Functions


def retrieval(x, labels=(0, 0, 1, 1), **options):
    from hypvision.tasks.metric_learning_metrics import evaluate_retrieval

    return evaluate_retrieval(
        x, torch.tensor(labels, dtype=torch.long), recall=(1,), space="cosine", **options
    )


def neighbours(x):
    from hypvision.tasks.metric_learning_metrics import nearest

    return list(nearest(x, x, 1, "cosine"))


def hierarchy(x, labels=(0, 0, 1, 1)):
    from hypvision.geometry import lorentz
    from hypvision.tasks.class_hierarchy import recovered_hierarchy

    return recovered_hierarchy(
        lorentz.expmap0(x, 1.0), torch.tensor(labels), [("a",), ("a",), ("b",)]
    )


def chains(x):
    from hypvision.clip.radial.metrics import chain_metrics

    texts, space = [["thing", "cat"], ["thing", "dog"]], Sphere(torch.tensor([1.0, 0.0]))
    return chain_metrics(texts, x.reshape(2, 2, 2), ["a", "b"], torch.eye(2), space).summary()


def images_of_chains(x):
    from hypvision.clip.radial.metrics import chain_metrics

    texts, space = [["thing", "cat"], ["thing", "dog"]], Sphere(torch.tensor([1.0, 0.0]))
    return chain_metrics(texts, torch.randn(2, 2, 2), ["a", "b"], x[2:], space).summary()


def levels(x):
    from hypvision.clip.radial.retrieval import level_accuracy

    return level_accuracy([["thing", "cat"], ["thing", "dog"]], [0, 1], x[2:] @ torch.randn(2, 4))


def tree(x, labels=(0, 1, 0, 1)):
    from hypvision.clip.radial.retrieval import tree_recall

    return tree_recall(x @ torch.randn(2, 3), labels, [[0, 2], [1, 2]])


def recalled(x, matches=True):
    from hypvision.clip.radial.retrieval import recall_at

    return recall_at(x @ torch.randn(2, 3), torch.full((len(x), 3), matches))


def ordered(x):
    from hypvision.clip.radial.metrics import kendall_tau

    return dict(enumerate(kendall_tau(x)))


def related(x):
    from hypvision.clip.radial.retrieval import HyperLexPair, hyperlex_correlation

    words, pairs = (
        dict(cat=0, animal=1, dog=2, pet=3),
        [("animal", "cat"), ("pet", "dog"), ("pet", "cat")],
    )
    pairs = [HyperLexPair(*pair, "N", float(k)) for k, pair in enumerate(pairs)]
    return hyperlex_correlation(pairs, words, x, Sphere(torch.tensor([1.0, 0.0])))


def neighbourhood(x):
    from hypvision.losses.graph import graph_map

    return graph_map(torch.cdist(x, x), torch.ones(4, 4))


FUNCTIONS = {
    "evaluate_retrieval": retrieval, "nearest": neighbours, "recovered_hierarchy": hierarchy,
    "chain_metrics": chains, "chain_metrics, images": images_of_chains, "level_accuracy": levels,
    "tree_recall": tree, "recall_at": recalled, "kendall_tau": ordered,
    "hyperlex_correlation": related, "graph_map": neighbourhood,
}  # fmt: skip
NO_NUMBERS_OF_A_MODEL = {
    "lca_heights": "of a tree", "read_hyperlex": "a file", "read_tree": "a file",
    "walk": "numbers of texts, which chain_metrics judges",
}  # fmt: skip


def test_every_function_that_measures_has_a_case():
    from hypvision.clip.radial import metrics, retrieval
    from hypvision.tasks import metric_learning_metrics

    public = {
        name
        for module in (metrics, retrieval, metric_learning_metrics)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }
    assert public - {name.partition(",")[0] for name in FUNCTIONS} == set(NO_NUMBERS_OF_A_MODEL)


def test_an_image_whose_embedding_is_not_finite_is_named(tmp_path):
    from PIL import Image

    from hypvision.inference.sources import Sources
    from hypvision.tasks.embedding import Embedder, embed_sources

    paths = [tmp_path / f"{name}.png" for name in "ab"]
    for path in paths:
        Image.new("RGB", (4, 4)).save(path)
    embedder = Embedder(
        lambda x: torch.tensor([[1.0], [NAN]])[: len(x)], lambda image: torch.zeros(3), "cosine", ""
    )
    assert (
        len(embed_sources(embedder, Sources(tuple(paths[:1])))[1])
        == len(Sources(tuple(paths[:1])))
        == 1
    )
    with pytest.raises(HypvisionError, match=r"b\.png' is not finite"):
        embed_sources(embedder, Sources(tuple(paths)))


@each("value", [NAN, -INF])
@each("name", FUNCTIONS)
def test_functions_name_the_row_that_is_not_finite(name, value):
    x = torch.randn(4, 2)
    FUNCTIONS[name](x)
    x[2, 0] = value
    rows = {"chain_metrics, images": "1", "level_accuracy": "1", "hyperlex_correlation": "dog"}
    rows["graph_map"] = "node 0"
    row = rows.get(name, "[23]")
    with pytest.raises(HypvisionError, match=rf"{row}'?.* is not finite"):
        FUNCTIONS[name](x)


@pytest.mark.parametrize(
    "found",
    [
        lambda: retrieval(torch.randn(4, 2), (0, 1, 2, 3)),
        lambda: retrieval(torch.randn(0, 2), ()),
        lambda: retrieval(torch.randn(1, 2), (0,)),
        lambda: retrieval(torch.randn(2, 2), (0, 1), gallery=torch.randn(2, 2),
                          gallery_labels=torch.tensor([2, 3])),
        lambda: hierarchy(torch.randn(4, 2), (0, 0, 0, 0)),
    ],
    ids=["alone", "none", "one", "gallery", "one class"],
)  # fmt: skip
def test_functions_without_truth_give_nan_and_one_warning(found, told):
    values = found()
    assert values and all(map(math.isnan, values.values())) and len(told()) == 1


def test_metrics_without_data_are_nan():
    assert all(map(math.isnan, recalled(torch.randn(4, 2), False).values()))
    assert all(map(math.isnan, tree(torch.randn(0, 2), ()).values()))
    assert all(map(math.isnan, ordered(torch.randn(3, 1)).values()))
    from hypvision.tasks.few_shot_tables import harmonic

    assert (
        math.isnan(harmonic(NAN, 50.0))
        and math.isnan(harmonic(0.0, NAN))
        and harmonic(0.0, 0.0) == 0.0
    )


def test_products_that_overflow_are_not_ranked():
    from hypvision.tasks.metric_learning_metrics import nearest

    x = torch.randn(4, 3, dtype=torch.float64)
    x[1] *= 1e200
    with pytest.raises(HypvisionError, match="product of the embedding of query .* is not finite"):
        list(nearest(x, x, 2, "lorentz"))
