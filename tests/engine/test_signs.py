"""Trainings that learn nothing say so while they run; those that learn do not."""

import importlib
import math
from types import SimpleNamespace

import pytest
from helpers.cases import each

pytest.importorskip("mmengine")
import torch
from helpers.engine import make_images, write_config
from torch import nn

from hypvision.cli import main
from hypvision.engine.extensions import RUN_HOOKS
from hypvision.engine.hooks.stop import (
    SignsHook,
    chance_of,
    guessed_classes,
    listen,
    same_for_all,
    share_of_labels,
)
from hypvision.tasks.classification import ImageClassifier

CLASSES = 4


class Network(nn.Module):
    """Two layers with a ReLU6, as timm's networks have a head; ``kill`` is the bias before the
    ReLU6."""

    def __init__(self, kill=0.0):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.head = nn.Linear(16, CLASSES)
        self.kill = kill

    def get_classifier(self):
        return self.head

    def forward(self, x):
        return self.head(nn.functional.relu6(self.body(x) + self.kill))


def run(
    network,
    rate,
    interval=10,
    steps=60,
    predicted=None,
    labels=(0, 1, 2, 3),
    loss=None,
    multi_label=False,
    outputs=None,
):
    """A training as the Runner makes it, with the hook; what it has told."""
    torch.manual_seed(0)
    centres = 3 * torch.randn(CLASSES, 6)
    model = nn.Module()
    model.backbone = network
    model.num_classes = CLASSES
    model.multi_label = multi_label
    optimizer = torch.optim.SGD(network.parameters(), rate)
    told = []
    dataset = SimpleNamespace(metainfo=dict(classes=("ant", "bee", "cat", "dog")))
    runner = SimpleNamespace(
        model=model, max_iters=steps, iter=0, _train_loop=True,
        logger=SimpleNamespace(warning=told.append),
        optim_wrapper=SimpleNamespace(optimizer=optimizer),
        val_dataloader=SimpleNamespace(dataset=dataset),
    )  # fmt: skip
    hook = SignsHook(interval=interval)
    hook.before_train(runner)
    for step in range(steps):
        runner.iter = step
        label = torch.randint(CLASSES, (16,))
        hook.before_train_iter(runner, step)
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(network(centres[label]), label)
        value.backward()
        optimizer.step()
        hook.after_train_iter(
            runner, step, None, dict(loss=value if loss is None else torch.tensor(loss))
        )
    hook.before_val_epoch(runner)
    scores = torch.eye(CLASSES)[torch.tensor(predicted or [0, 1, 2])]
    outputs = outputs or [dict(scores=row, label=n) for row, n in zip(scores, labels)]
    hook.after_val_iter(runner, 0, None, outputs)
    hook.after_val_epoch(runner, {})
    return told


def test_a_healthy_training_says_nothing():
    assert run(Network(), 0.1) == []


def test_a_loss_of_guessing():
    network = Network()
    nn.init.zeros_(network.head.weight)
    nn.init.zeros_(network.head.bias)
    (told,) = run(network, 1e-9)
    assert "after step 10 the loss is 1.386" in told and f"ln 4 = {math.log(4):.3f}" in told


def test_a_long_training_has_a_tenth_of_its_steps_to_leave_the_loss_of_guessing():
    assert (
        run(Network(), 0.1, steps=200, interval=10, loss=math.log(CLASSES))[0].count(
            "after step 20 "
        )
        == 1
    )
    assert run(Network(), 0.1, loss=0.97 * math.log(CLASSES)) == []


def test_a_short_training_is_checked_in_its_middle():
    """Twelve epochs of 16 images, four at a time, are 48 steps: fewer than the interval of 50."""
    (told,) = run(Network(), 0.1, steps=48, interval=50, loss=math.log(CLASSES))
    assert "after step 24 the loss is 1.386" in told
    assert run(Network(), 0.1, steps=48, interval=50) == []
    assert run(Network(), 0.1, steps=9, interval=50, loss=math.log(CLASSES)) == []


@pytest.mark.parametrize("kill", [-100.0, 100.0], ids=["below 0", "above 6"])
def test_dead_features_and_their_gradients(kill):
    told = run(Network(kill), 1e-3)
    assert any("the features of all images of the last batch are the same" in text for text in told)
    of_gradients = [text for text in told if "the gradients of all weights are 0" in text]
    assert len(of_gradients) == (1 if kill < 0 else 0)  # at 6 the head's weights still get some


def test_gradients_of_zero_with_live_features():
    network = Network()
    nn.init.zeros_(network.head.weight)
    network.head.requires_grad_(False)  # nothing reaches the body
    told = run(network, 0.1, loss=1.0)
    assert len(told) == 1 and "the gradients of all weights are 0" in told[0]


def test_a_constant_answer():
    (told,) = run(Network(), 0.1, predicted=[2, 2, 2, 2])
    assert "all 4 validation images are taken for 'cat'" in told
    assert run(Network(), 0.1, predicted=[2, 2, 2, 2], labels=(1, 1, 1, 1)) == []
    assert run(Network(), 0.1, predicted=[2, 2, 2, 2], multi_label=True) == []


def sample(**maps):
    """The result of a segmenter or detector for an image, with what mmseg's and mmdet's have."""
    return SimpleNamespace(**maps)


def pixels(*numbers):
    return SimpleNamespace(data=torch.tensor([[numbers]]))


def test_segmenters_and_detectors_without_an_answer():
    def painted(*found, truth=(0, 1, 255)):
        return [sample(pred_sem_seg=pixels(*found), gt_sem_seg=pixels(*truth))] * 2

    (told,) = run(Network(), 0.1, outputs=painted(2, 2, 2))
    assert "all 2 validation images are taken for 'cat'" in told
    assert run(Network(), 0.1, outputs=painted(2, 2, 1)) == []
    assert run(Network(), 0.1, outputs=painted(2, 2, 2, truth=(1, 1, 255))) == []
    (told,) = run(Network(), 0.1, outputs=[sample(pred_instances=[])] * 3)
    assert "no box is found in all 3 validation images" in told
    found = [sample(pred_instances=[]), sample(pred_instances=["a box"])]
    assert run(Network(), 0.1, outputs=found) == []


def test_embeddings_are_the_features_of_a_metric_learner():
    model = nn.Module()
    model.backbone = nn.Linear(6, 16)
    model.neck = nn.Linear(16, 4)
    nn.init.zeros_(model.neck.weight)
    kept = []
    listen(model, kept.append)
    model.neck(model.backbone(torch.randn(8, 6)))
    assert kept[0].shape == (8, 4) and same_for_all(kept[0])


@each(
    "head, classes, advice",
    [
        ({}, 4, True),
        ({"busemann": {}}, 4, False),
        ({"prototypes": {"dim": 2}}, 0, False),
        ({"backbone": "hcnn_resnet18"}, 4, False),
    ],
)
def test_guessing_of_heads(head, classes, advice):
    """Prototypes have no cross-entropy, and only a linear head can begin with a probe."""
    name = head.pop("backbone", "resnet10t")
    model = ImageClassifier(dict(model_name=name, num_classes=4), head_init="timm", **head)
    assert guessed_classes(model) == classes
    told = []
    runner = SimpleNamespace(model=model, iter=9, logger=SimpleNamespace(warning=told.append))
    SignsHook()._tell(runner, "loss", "the loss is 3")
    assert ("model.head_init" in told[0]) == advice


def test_guessing_of_a_segmenter():
    pytest.importorskip("mmseg")
    import hypvision.openmmlab  # noqa: F401 - lets mmseg be imported without mmcv's operators

    mmseg = importlib.import_module("mmseg.models.losses")
    model = nn.Module()
    model.decode_head = nn.Module()
    model.decode_head.num_classes = 11
    for loss, classes in (
        (mmseg.CrossEntropyLoss(), 11),
        (mmseg.CrossEntropyLoss(use_sigmoid=True), 0),
        (mmseg.CrossEntropyLoss(class_weight=[0.5] * 11), 0),
        (mmseg.DiceLoss(), 0),
    ):
        model.decode_head.loss_decode = loss
        assert guessed_classes(model) == classes


def test_guessing_of_a_few_shot_method():
    model = nn.Module()
    model.host = nn.Module()
    model.host.names = ("ant", "bee", "cat")
    assert guessed_classes(model) == 3
    told = []
    runner = SimpleNamespace(
        model=model, iter=9, max_iters=20, logger=SimpleNamespace(warning=told.append)
    )
    hook = SignsHook(interval=10)
    hook.before_train_iter(runner, 9)  # there is no backbone to listen to
    hook.after_train_iter(runner, 9, None, dict(loss_ce=torch.tensor(1.098)))
    assert len(told) == 1 and "ln 3" in told[0]


def test_features_up_to_rounding():
    base = torch.rand(1, 5, 3, 3) + 1
    assert same_for_all(base.repeat(4, 1, 1, 1) * (1 + 1e-8))
    assert not same_for_all(base.repeat(4, 1, 1, 1) + 1e-4 * torch.rand(4, 5, 3, 3))
    assert not same_for_all(torch.zeros(1, 5))


@pytest.mark.parametrize("rate", [1e-3, 1e-12])
def test_every_run_has_it(tmp_path, capsys, rate):
    assert "SignsHook" in RUN_HOOKS
    hooks = [dict(type="SignsHook", interval=2)]
    config = write_config(
        tmp_path / "config.py", make_images(tmp_path / "data"), hooks=hooks, epochs=5
    )
    options = [f"optim_wrapper.optimizer.lr={rate}", "model.mixup=None", "model.label_smoothing=0"]
    assert (
        main(["train", str(config), "--work-dir", str(tmp_path / "run"), "--cfg-options", *options])
        == 0
    )
    assert ("Nothing seems to be learned" in capsys.readouterr().err) == (rate < 1e-6)


def test_several_labels_are_guessed_by_their_shares():
    """The best constant logits, found by gradient steps, for three classes with weights."""
    torch.manual_seed(0)
    labels = (torch.rand(4000, 3) < torch.tensor([0.02, 0.3, 0.6])).float()
    backbone = dict(model_name="resnet10t", num_classes=3)
    for smoothing, weights in ((0.0, None), (0.1, [1.0, 4.0, 0.5])):
        model = ImageClassifier(
            backbone, multi_label=True, label_smoothing=smoothing, class_weights=weights
        )
        logits = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.LBFGS([logits], max_iter=100, line_search_fn="strong_wolfe")

        def loss(model=model, logits=logits, optimizer=optimizer):
            optimizer.zero_grad()
            value = model.class_loss(logits.expand(4000, 3), labels)
            value.backward()
            return value

        optimizer.step(loss)
        shown = [share_of_labels(part) for part in labels.split(40)]
        assert chance_of(model, shown).loss == pytest.approx(loss().item(), abs=1e-4)
    assert chance_of(model) is None, "no batch was seen"


@pytest.mark.parametrize("better", [False, True])
def test_several_labels_that_learn_nothing(better):
    labels = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0])] * 4
    model = nn.Module()
    model.multi_label = True
    model.label_smoothing = 0
    model.class_weights = lambda: None
    told = []
    runner = SimpleNamespace(
        model=model, iter=9, max_iters=20, logger=SimpleNamespace(warning=told.append)
    )
    hook = SignsHook(interval=10)
    hook.before_train_iter(runner, 9)
    value = 0.5 * math.log(2)  # half of the images show the first class, none the second
    loss = torch.tensor(0.9 * value if better else value)
    hook.after_train_iter(runner, 9, dict(label=labels), dict(loss=loss))
    assert len(told) == (not better)
    assert better or "each class by its share of the images = 0.347" in told[0]


@pytest.mark.parametrize(
    "name",
    ["emoji-s16", "meru-vit-s-16"]
    + [f"{family}-emoji-s16" for family in ("hycoclip", "phyclip", "uncha", "atmg")],
)
def test_a_clip_that_guesses(name):
    """Equal images and equal points of the texts: the loss is that of guessing."""
    pytest.importorskip("open_clip")
    from hypvision.tasks.contrastive import CLIPContrast

    torch.manual_seed(0)
    model = CLIPContrast(dict(name=name))
    told = []
    runner = SimpleNamespace(
        model=model, iter=9, max_iters=20, logger=SimpleNamespace(warning=told.append)
    )
    hook = SignsHook(interval=10)
    hook.before_train_iter(runner, 9)
    inputs = torch.zeros(3, 3, *model.clip.visual.image_size, dtype=torch.uint8)
    boxes = {}
    if model.family == "uncha":
        boxes = dict(box_inputs=inputs, box_caption=["a", "b", "c"])
    text = model._texts
    model._texts = lambda tokens: text(tokens)[:1].expand(len(tokens), -1)
    with torch.no_grad():
        found = model(inputs, ["a cat", "a dog", "a cat"], mode="loss", **boxes)
    # two different texts for an image, and three images for a text
    assert model.chance == pytest.approx(
        dict(loss_image=0.5 * math.log(2), loss_text=0.5 * math.log(3))
    )
    for part, value in model.chance.items():
        assert found[part].item() == pytest.approx(value, abs=1e-4)
    hook.after_train_iter(runner, 9, None, found)
    said = "\n".join(told)
    assert "features of all images" in said
    assert "which image and text of a batch belong together = 0.896" in said
    assert "a longer training or weights that ship" in said


def test_each_kind_of_model_has_a_loss_of_guessing_or_a_reason():
    pytest.importorskip("mmseg")
    import hypvision.openmmlab  # noqa: F401 - before mmseg
    from hypvision.engine.extensions import PREDICTORS

    for task in ("contrastive", "few_shot", "language", "metric_learning", "radial"):
        importlib.import_module(f"hypvision.tasks.{task}")
    importlib.import_module("hypvision.openmmlab.predicting")
    known = {"ImageClassifier", "HierarchyClassifier", "CLIPContrast", "FewShotCLIP", "mmseg"}
    without = {
        "MetricLearner": "its losses have margins, and no value that all models share",
        "mmdet": "its losses depend on the boxes that are proposed; a validation without a box is "
        "the sign",
        "LanguageModel": "ln of the vocabulary is passed in the first steps by the shares of words",
        "RadialTuning": "it begins with a trained CLIP, whose order of texts it changes",
    }
    assert known | set(without) == set(PREDICTORS)
