"""The classifier, its metric and its parameter groups, without a runner."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from helpers.cases import each
from PIL import Image
from torch import nn
from torch.nn import functional as F

pytest.importorskip("mmengine")
from helpers.engine import make_images, write_config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import HOOKS

from hypvision.checkpoints.match import check_compatible, engine_names, load_trained
from hypvision.checkpoints.read import read
from hypvision.engine.config import Run, load_config
from hypvision.engine.extensions import TEST_OPTIONS
from hypvision.engine.optim_wrappers import BFloat16OptimWrapper
from hypvision.engine.run import train
from hypvision.geometry import lorentz
from hypvision.io.errors import HypvisionError
from hypvision.losses import BusemannPrototypeLoss
from hypvision.tasks import GroupAccuracy, HierarchyClassifier, ImageClassifier, TopKAccuracy
from hypvision.tasks.classification import PredictionPainterHook, distillation_loss
from hypvision.tasks.metric_learning import MetricLearner

VIT = dict(model_name="test_vit", num_classes=5, img_size=32)


def batch(size: int = 4) -> dict:
    generator = torch.Generator().manual_seed(0)
    return dict(
        inputs=torch.randn(size, 3, 32, 32, generator=generator),
        label=torch.randint(5, (size,), generator=generator),
        index=torch.arange(size),
    )


def test_three_modes():
    model = ImageClassifier(VIT).eval()
    logits = model(**batch())
    assert logits.shape == (4, 5) and next(iter(model.state_dict())).startswith("backbone.")
    loss = model(**batch(), mode="loss")["loss"]
    torch.testing.assert_close(loss, nn.functional.cross_entropy(logits, batch()["label"]))
    predictions = model(**batch(), mode="predict")
    assert [p["index"] for p in predictions] == [0, 1, 2, 3]
    torch.testing.assert_close(torch.stack([p["scores"] for p in predictions]), logits.softmax(-1))
    with pytest.raises(ValueError, match="mode"):
        model(**batch(), mode="guess")


def test_label_smoothing_equals_smoothed_targets():
    model = ImageClassifier(VIT, label_smoothing=0.1).eval()
    target = nn.functional.one_hot(batch()["label"], 5) * 0.9 + 0.1 / 5
    expected = -(target * model(**batch()).log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(model(**batch(), mode="loss")["loss"], expected)


@pytest.mark.parametrize("size", [4, 5], ids=["even", "odd"])
def test_mixup_repeats_with_the_seed_and_is_off_in_eval(size):
    model = ImageClassifier(VIT, mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0))

    def loss(seed):
        np.random.seed(seed)
        return model(**batch(size), mode="loss")["loss"]

    assert torch.equal(loss(0), loss(0)) and not torch.equal(loss(0), loss(1))
    model.eval()
    assert torch.equal(loss(0), loss(1))


def test_ideal_prototypes_take_the_place_of_the_head():
    torch.manual_seed(0)
    backbone = dict(model_name="resnet10t", num_classes=7)
    model = ImageClassifier(backbone, prototypes=dict(dim=5), head_init="timm")
    model.init_weights()
    head = model.backbone.get_classifier()
    inputs, label = batch(8)["inputs"], torch.arange(8) % 7
    fixed = head.ideal.prototypes.clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(12):
        loss = model(inputs, label, mode="loss")["loss"]
        features = model.backbone.forward_head(
            model.backbone.forward_features(inputs), pre_logits=True
        )
        wanted = BusemannPrototypeLoss(0.1)(head.linear(features), label, fixed)
        torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1
    assert torch.equal(head.ideal.prototypes, fixed)
    model.eval()
    scores = torch.stack([one["scores"] for one in model(inputs, label, mode="predict")])
    torch.testing.assert_close(scores.sum(1), torch.ones(8))
    torch.testing.assert_close(scores, model(inputs).softmax(-1))


def test_prototypes_begin_at_the_origin_and_learn(tmp_path):
    """A head of zeros on trained features: all images at the origin, with a gradient."""
    trained = timm.create_model("resnet10t", num_classes=9)
    torch.save(trained.state_dict(), tmp_path / "trained.pth")
    backbone = dict(model_name="resnet10t", num_classes=7)
    model = ImageClassifier(
        backbone, checkpoint=str(tmp_path / "trained.pth"), prototypes=dict(dim=5)
    )
    model.init_weights()
    head = model.backbone.get_classifier()
    assert not any(value.any() for value in head.linear.parameters())
    inputs, label = batch(8)["inputs"], torch.arange(8) % 7
    model(inputs, label, mode="loss")["loss"].backward()
    # b ~ -2 u.p near the origin, so each image pulls the bias towards its prototype
    expected = -2 * head.ideal.prototypes[label].mean(0)
    torch.testing.assert_close(head.linear.bias.grad, expected, rtol=1e-5, atol=1e-6)
    assert head.linear.weight.grad.abs().max() > 1e-3


@pytest.mark.parametrize("option", [dict(prototypes=dict(dim=5)), dict(busemann={})])
def test_another_head_begins_on_the_weights_of_a_plain_network(option, tmp_path):
    trained = timm.create_model("resnet10t", num_classes=9)
    torch.save(trained.state_dict(), tmp_path / "trained.pth")
    backbone = dict(model_name="resnet10t", num_classes=7)
    model = ImageClassifier(
        backbone, checkpoint=str(tmp_path / "trained.pth"), head_init="timm", **option
    )
    model.init_weights()
    own = model.backbone.state_dict()
    for name, value in trained.state_dict().items():
        if not name.startswith("fc."):
            assert torch.equal(own[name], value), name
    assert model.head_is_new


def test_ideal_points_take_the_place_of_the_head():
    """Cross-entropy of Busemann functions of clipped features, with all of its settings."""
    torch.manual_seed(0)
    backbone = dict(model_name="resnet10t", num_classes=7)
    head = dict(busemann=dict(c=0.5, clip=1.5), head_init="timm")
    model = ImageClassifier(backbone, label_smoothing=0.1, **head)
    model.init_weights()
    inputs, label = batch(8)["inputs"], torch.arange(8) % 7
    features = model.backbone.forward_head(
        model.backbone.forward_features(inputs), pre_logits=True
    ).double()
    mlr = model.backbone.get_classifier()[1]
    u = features * (1.5 / features.norm(dim=1, keepdim=True)).clamp(max=1)
    points = lorentz.expmap0(u, 0.5)
    towards = torch.stack(
        [lorentz.busemann(points, v / v.norm(), 0.5) for v in mlr.weight_v.double()], -1
    )
    wanted = mlr.bias - mlr.weight_g.exp() * towards
    loss = model(inputs, label, mode="loss")["loss"]
    expected = F.cross_entropy(wanted, label, label_smoothing=0.1)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(8):
        optimizer.zero_grad()
        last = model(inputs, label, mode="loss")["loss"]
        last.backward()
        optimizer.step()
    assert last < loss - 0.2
    with pytest.raises(HypvisionError, match="set model.head_init='timm'"):
        ImageClassifier(backbone, busemann={})
    with pytest.raises(HypvisionError, match="model.busemann: .*clip"):
        ImageClassifier(backbone, busemann=dict(clip=-1.0), head_init="timm")


@each(
    "options, message",
    [
        (dict(label_smoothing=0.1, head_init="timm"), "leave out label_smoothing"),
        (dict(head_init="probe"), "set model.head_init='zero'"),
        (dict(prototypes=dict(dim=1), head_init="timm"), "model.prototypes: .*dim"),
        (dict(prototypes=dict(size=5), head_init="timm"), "model.prototypes: .*size"),
    ],
)
def test_what_a_head_of_prototypes_does_not_take(options, message):
    backbone = dict(model_name="resnet10t", num_classes=7)
    with pytest.raises(HypvisionError, match=message):
        ImageClassifier(backbone, **{"prototypes": {}, **options})


def test_flip_at_test_time_averages_the_mirror_image():
    model = ImageClassifier(VIT, test_flip=True).eval()
    torch.testing.assert_close(
        model.scores(model.test_logits(batch()["inputs"]))[0],
        model(**batch(), mode="predict")[0]["scores"],
    )
    given, mirrored = batch(), batch()
    mirrored["inputs"] = mirrored["inputs"].flip(-1)
    for a, b in zip(model(**given, mode="predict"), model(**mirrored, mode="predict")):
        torch.testing.assert_close(a["scores"], b["scores"])


NETWORKS = {
    "test_vit": dict(img_size=32),
    "deit_tiny_distilled_patch16_224": dict(img_size=32),
    "resnet10t": {},
    "mixer_s32_224": dict(img_size=32),
    "hcformer_nano": dict(
        img_size=32, layers=(1, 1, 1, 1), dims=(8, 16, 24, 32), heads=(2, 2, 2, 2), head_dim=4
    ),
    "hecnn_resnet18": dict(layers=(1, 1, 1, 1), widths=(8, 16, 24, 32)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_begins_with_the_published_weights(name, tmp_path):
    """mmengine initialises the weights of a model once more, by the method init_weights that many
    networks have."""
    network = dict(NETWORKS[name], model_name=name)
    expected = timm.create_model(**network, num_classes=5).state_dict()
    torch.save(expected, tmp_path / "published.pth")
    overlay = dict(file=str(tmp_path / "published.pth"), num_classes=5)
    given = dict(network, pretrained=True, pretrained_cfg_overlay=overlay)
    for model in (
        ImageClassifier(dict(given, num_classes=5)),
        MetricLearner(given, dict(dim=8), 5),
    ):
        model.init_weights()
        loaded = model.backbone.state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in loaded.items())


def test_unknown_models_are_user_errors():
    with pytest.raises(HypvisionError, match="no model 'resnet81'.*resnet18"):
        ImageClassifier(dict(model_name="resnet81", num_classes=5))
    with pytest.raises(HypvisionError, match="does not accept.*colour"):
        ImageClassifier(dict(**VIT, colour="red"))
    with pytest.raises(HypvisionError, match="needs classes"):
        ImageClassifier(dict(VIT, num_classes=0))


def kinds_of_learners(frozen=(), **options):
    """A model of each task that fine-tunes a timm network, with the name of the network inside."""
    net, mapper = (
        dict(model_name="resnet10t", num_classes=5),
        dict(model_name="himapper", backbone="resnet10t"),
    )
    yield ImageClassifier(net, frozen=frozen, **options), "backbone"
    yield MetricLearner(net, dict(dim=8), 5, frozen=frozen, **options), "backbone"
    inside = [f"trunk.{pattern}" for pattern in frozen]
    yield HierarchyClassifier({**net, **mapper}, frozen=inside, **options), "backbone.trunk"


@pytest.mark.parametrize("freeze_bn", [False, True])
def test_frozen_parts_keep_their_values_and_statistics(freeze_bn):
    for model, inside in kinds_of_learners(
        frozen=["conv1.*", "bn1.*", "layer1.*"], freeze_bn=freeze_bn
    ):
        model.train()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sum(
            value
            for name, value in model(**batch(), mode="loss").items()
            if name.startswith("loss")
        ).backward()
        optimizer.step()
        changed = {
            name.removeprefix(f"{inside}.")
            for name, v in model.state_dict().items()
            if (v != before[name]).any()
        }
        assert not any(name.startswith(("conv1", "bn1", "layer1.")) for name in changed)
        assert (
            "layer2.0.bn2.weight" in changed
            and ("layer2.0.bn1.running_mean" in changed) != freeze_bn
        )
        assert model.eval().training is False and not any(
            module.training for module in model.modules()
        )


def test_what_is_to_be_frozen_must_be_there():
    with pytest.raises(
        HypvisionError, match="'layer9.*' matches no parameter of the backbone. It has conv1.0, "
    ):
        ImageClassifier(dict(model_name="resnet10t", num_classes=5), frozen=["layer9.*"])


def test_channels_last_changes_the_layout_alone():
    for plain, last in zip(kinds_of_learners(), kinds_of_learners(channels_last=True)):
        last[0].load_state_dict(plain[0].state_dict())
        weight = last[0].get_submodule(f"{last[1]}.layer2.0.conv1").weight
        assert (
            weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
        )
        images = batch()["inputs"]
        torch.testing.assert_close(
            last[0].eval()(images), plain[0].eval()(images), rtol=1e-4, atol=1e-4
        )


def test_trainings_start_from_weights_of_other_classes(tmp_path):
    import timm

    trunk = timm.create_model("resnet10t", num_classes=3)
    torch.save(trunk.state_dict(), tmp_path / "plain.pth")
    for model, inside in kinds_of_learners(checkpoint=str(tmp_path / "plain.pth")):
        model.init_weights()
        found = model.get_submodule(inside).state_dict()
        assert all(
            torch.equal(v, found[n])
            for n, v in trunk.state_dict().items()
            if not n.startswith("fc.")
        ), inside
    del (weights := trunk.state_dict())["layer1.0.conv1.weight"]
    torch.save(weights, tmp_path / "lacking.pth")
    for model, _ in kinds_of_learners(checkpoint=str(tmp_path / "lacking.pth")):
        with pytest.raises(
            HypvisionError, match="1 weights are missing .* such as .*layer1.0.conv1.weight"
        ):
            model.init_weights()


def test_a_backbone_alone_starts_a_himapper_and_is_no_trained_one(tmp_path):
    """Also where the mapper has more weights than the backbone."""
    file = tmp_path / "trunk.pth"
    trunk = timm.create_model("resnet10t", num_classes=3)
    torch.save(trunk.state_dict(), file)
    model = ImageClassifier(dict(model_name="himapper", backbone="resnet10t", num_classes=5))
    with pytest.raises(HypvisionError, match=r"missing in the file: backbone\.mapper\.tree"):
        load_trained(model, read(file), file)
    state = engine_names(model, read(file), start=True)["state_dict"]
    check_compatible(model, state, file, exact=False)
    assert state.keys() == model.state_dict().keys()
    torch.save(timm.create_model("test_vit", num_classes=5).state_dict(), file)
    with pytest.raises(HypvisionError, match=r" 0 of .* unknown to the model: cls_token, "):
        load_trained(model, read(file), file)


def test_weights_of_a_mapper_that_do_not_fit_are_told(tmp_path, caplog):
    mapper = dict(model_name="himapper", backbone="resnet10t", num_classes=5)
    torch.save(
        HierarchyClassifier({**mapper, "leaves": 16}).backbone.state_dict(), tmp_path / "mapper.pth"
    )
    HierarchyClassifier(
        {**mapper, "leaves": 8}, checkpoint=str(tmp_path / "mapper.pth")
    ).init_weights()
    assert "or have another shape there, such as mapper.tree" in caplog.text
    caplog.clear()
    official = HierarchyClassifier({**mapper, "preset": "official"}).backbone.state_dict()
    torch.save(official, tmp_path / "mapper.pth")
    HierarchyClassifier(mapper, checkpoint=str(tmp_path / "mapper.pth")).init_weights()
    assert (
        "1 weights of this model are missing" in caplog.text and "mapper.lift.scale" in caplog.text
    )


def test_accuracy_of_groups_and_the_distance_of_mistakes(tmp_path):
    above = dict(
        apple=("fruit", "pome"),
        pear=("fruit", "pome"),
        plum=("fruit", "stone"),
        leek=("vegetable", "root"),
    )
    (tmp_path / "above.json").write_text(json.dumps(above))
    for ancestors in (above, str(tmp_path / "above.json")):
        metric = GroupAccuracy(ancestors, levels=("kind", "family"))
        metric.dataset_meta = dict(classes=("apple", "leek", "pear", "plum"))
        pairs = [
            (0, 0),
            (0, 2),
            (2, 3),
            (3, 1),
            (1, 1),
        ]  # right, a sibling, a cousin, another kind, right
        scores = nn.functional.one_hot(torch.tensor([best for _, best in pairs]), 4).float()
        metric.process({}, [dict(scores=s, label=label) for s, (label, _) in zip(scores, pairs)])
        found = metric.compute_metrics(metric.results)
        assert found == dict(
            kind=80.0, family=60.0, mistake_distance=pytest.approx((2 + 4 + 6) / 3)
        )
        assert metric.compute_metrics([(0, 0)]) == dict(
            kind=100.0, family=100.0, mistake_distance=0.0
        )
    metric.dataset_meta = dict(classes=("apple", "fig"))
    with pytest.raises(
        HypvisionError, match="'fig' has the groups .* but the levels are kind, family"
    ):
        metric.compute_metrics([(0, 1)])
    with pytest.raises(HypvisionError, match="There is no file '.*none.json"):
        GroupAccuracy(str(tmp_path / "none.json"), levels=("kind",))


def test_topk_accuracy_and_report(tmp_path):
    metric = TopKAccuracy(topk=(1, 2, 9), out_file=str(tmp_path / "deep" / "report.json"))
    metric.dataset_meta = dict(classes=("a", "b", "c"))
    scores = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8]])
    samples = [
        dict(scores=s, label=y, index=i) for i, (s, y) in enumerate(zip(scores, [0, 1, 2, 2]))
    ]
    metric.process(None, samples[:3])
    metric.process(None, samples[3:])
    assert metric.evaluate(4) == dict(top1=50.0, top2=75.0)
    report = json.loads((tmp_path / "deep" / "report.json").read_text())
    assert report["top1_per_class"] == dict(a=100.0, b=0.0, c=50.0)
    assert report["predictions"][1]["classes"] == [0, 1, 2] and report["metrics"]["top2"] == 75.0


def wrapper(model, layer_decay=None, kind="OptimWrapper"):
    paramwise = None if layer_decay is None else dict(layer_decay=layer_decay)
    optimizer = dict(type="AdamW", lr=1.0, weight_decay=0.05)
    return build_optim_wrapper(
        model,
        dict(
            type=kind, constructor="TimmParamGroups", paramwise_cfg=paramwise, optimizer=optimizer
        ),
    )


def groups_by_name(model, **kwargs):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = wrapper(model, **kwargs).optimizer.param_groups
    table = {
        names[id(p)]: (group["lr"], group["weight_decay"])
        for group in groups
        for p in group["params"]
    }
    assert (
        len(table) == sum(len(group["params"]) for group in groups) == len(names)
    )  # each parameter once
    return table


def test_weight_decay_spares_biases_norms_and_what_the_model_names():
    table = groups_by_name(ImageClassifier(VIT))
    assert table["backbone.head.weight"] == (1.0, 0.05)
    assert table["backbone.head.bias"] == table["backbone.norm.weight"] == (1.0, 0.0)
    assert table["backbone.pos_embed"] == (1.0, 0.0)  # through no_weight_decay()


def test_layer_decay_falls_towards_the_stem_and_spares_other_heads():
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = ImageClassifier(VIT)
            self.bbox_head = nn.Linear(8, 4)

    table = groups_by_name(Detector(), layer_decay=0.5)
    assert table["bbox_head.weight"] == (1.0, 0.05) and table["bbox_head.bias"] == (1.0, 0.0)
    first = table["backbone.backbone.blocks.0.mlp.fc1.weight"][0]
    second = table["backbone.backbone.blocks.1.mlp.fc1.weight"][0]
    assert first == second / 2 < 1.0
    assert table["backbone.backbone.patch_embed.proj.weight"][0] == first / 2
    with pytest.raises(HypvisionError, match="timm model"):
        wrapper(nn.Linear(2, 2), layer_decay=0.5)


def test_bfloat16_wrapper_trains_on_the_cpu():
    model = ImageClassifier(VIT)
    optim_wrapper = wrapper(model, kind="BFloat16OptimWrapper")
    assert isinstance(optim_wrapper, BFloat16OptimWrapper)
    with optim_wrapper.optim_context(model):
        logits = model(**batch())
    assert logits.dtype == torch.bfloat16
    before = model.backbone.head.weight.clone()
    loss = model.train_step(batch(), optim_wrapper)["loss"]
    assert loss.dtype == torch.float32 and not torch.equal(before, model.backbone.head.weight)


def test_painted_pictures_come_from_all_classes(tmp_path):
    """The data lies in the order of the classes: the first images of it would be those of one
    class."""

    class Data:
        metainfo = dict(classes=["ant", "bee", "cat", "dog"])

        def __len__(self):
            return 40

        def read(self, index):
            return Image.new("RGB", (8, 8))

    runner = SimpleNamespace(test_dataloader=SimpleNamespace(dataset=Data()))
    outputs = [dict(scores=torch.eye(4)[i // 10], label=i // 10, index=i) for i in range(40)]
    for limit, expected in ((8, 2), (40, 10), (200, 10)):
        hook = PredictionPainterHook(str(tmp_path / str(limit)), limit=limit)
        hook.before_test(runner)
        for start in range(0, 40, 7):
            hook.after_test_iter(runner, start, None, outputs[start : start + 7])
        names = [path.stem.split("_") for path in (tmp_path / str(limit)).glob("*.png")]
        assert len(names) == min(limit, 40) and {name[0] for name in names} == {"right"}
        assert Counter(name[2] for name in names) == dict.fromkeys(
            Data.metainfo["classes"], expected
        )


def test_pictures_of_several_labels_are_judged_by_the_threshold_of_the_metric(tmp_path):
    config = Run(dict(test_evaluator=[dict(type="MultiLabelAP", threshold=0.3)], custom_hooks=[]))
    TEST_OPTIONS["ImageClassifier"].show(config, tmp_path)
    (about,) = config.custom_hooks
    hook = HOOKS.build(about)
    data = SimpleNamespace(
        metainfo=dict(classes=["cat", "dog"]), read=lambda index: Image.new("RGB", (8, 8))
    )
    hook.chosen = {0, 1}
    outputs = [dict(scores=torch.tensor([0.4, 0.1]), label=[1.0, 0.0], index=0)]
    outputs += [dict(scores=torch.tensor([0.9, 0.35]), label=[1.0, 0.0], index=1)]
    hook.after_test_iter(
        SimpleNamespace(test_dataloader=SimpleNamespace(dataset=data)), 0, None, outputs
    )
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "right_000000_cat.png",
        "wrong_000001_cat.png",
    }


def test_one_picture_alone_is_not_mixed():
    """The last batch of an epoch may have one image, which has no partner to be mixed with."""
    model = ImageClassifier(
        dict(model_name="test_vit", num_classes=3, img_size=32), 0.1, dict(mixup_alpha=1.0)
    ).train()
    x, label = torch.randn(1, 3, 32, 32), torch.tensor([1])
    expected = nn.functional.cross_entropy(model.backbone(x), label, label_smoothing=0.1)
    torch.testing.assert_close(model(x, label, mode="loss")["loss"], expected)


def test_any_classifier_learns_from_a_teacher_that_sees_the_images_in_its_own_size():
    teacher = dict(model_name="test_vit", num_classes=5, img_size=48)
    about = dict(teacher=teacher, loss="soft", alpha=0.75, temperature=2.0, size=48)
    model = ImageClassifier(
        dict(model_name="test_resnet", num_classes=5), distillation=about
    ).eval()
    images, label = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    losses = model(images, label, mode="loss")
    large = torch.nn.functional.interpolate(
        images, (48, 48), mode="bicubic", align_corners=False, antialias=True
    )
    expected = distillation_loss(model(images), model._teacher[0](large), "soft", 2.0)
    torch.testing.assert_close(losses["loss_distillation"], 0.75 * expected)
    torch.testing.assert_close(losses["loss_cls"], 0.25 * model.class_loss(model(images), label))
    assert all(name.startswith("backbone.") for name in model.state_dict())
    with pytest.raises(HypvisionError, match="leave out distillation with multi_label"):
        ImageClassifier(
            dict(model_name="test_resnet", num_classes=5), distillation=about, multi_label=True
        )


def test_a_file_of_the_backbone_starts_a_hi_mapper_without_complaints(tmp_path):
    """The Runner loads what was checked: the backbone, and the model's own values beside it."""
    trunk = timm.create_model("test_vit", img_size=32)
    torch.save(trunk.state_dict(), tmp_path / "trunk.pth")
    config = load_config(write_config(tmp_path / "config.py", make_images(tmp_path / "data")))
    config.model.type = "HierarchyClassifier"
    config.model.backbone = dict(
        model_name="himapper", backbone="test_vit", img_size=32, num_classes=3, leaves=8, width=16
    )
    config.load_from = str(tmp_path / "trunk.pth")
    config.optim_wrapper.optimizer.lr = 1e-12
    runner = train(config, tmp_path / "work")
    log = "".join(path.read_text() for path in tmp_path.glob("work/*/*.log"))
    assert "do not match exactly" not in log and "missing keys" not in log
    torch.testing.assert_close(runner.model.backbone.trunk.pos_embed, trunk.pos_embed)
