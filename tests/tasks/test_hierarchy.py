"""Hi-Mapper under the engine: parts of the loss, rates of the groups, distillation, where a
training starts, a short run."""

import pytest
import timm
import torch
from helpers.cases import each
from torch import nn

pytest.importorskip("mmengine")

from helpers.engine import make_images, scalars, write_config
from mmengine.optim import build_optim_wrapper

from hypvision.checkpoints.index import builtin_index
from hypvision.engine.config import load_config
from hypvision.engine.run import test as measure
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError
from hypvision.tasks import HierarchyClassifier
from hypvision.tasks.classification import distillation_loss
from hypvision.zoo import read_weights, resolve

VIT = dict(
    backbone="vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=2
)
MAPPER = dict(model_name="himapper", num_classes=5, **VIT)


def batch(size=4):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(size, 3, 32, 32, generator=generator)
    return dict(inputs=images, label=torch.randint(5, (size,), generator=generator))


def test_the_parts_of_the_loss():
    model = HierarchyClassifier(MAPPER, label_smoothing=0.1).eval()
    losses = model(**batch(), mode="loss")
    assert set(losses) == {"loss_cls", "loss_contrastive", "loss_kl", "curvature"}
    out = model.backbone.forward_with_hierarchy(batch()["inputs"])
    expected = nn.functional.cross_entropy(out["logits"], batch()["label"], label_smoothing=0.1)
    torch.testing.assert_close(losses["loss_cls"], expected)
    torch.testing.assert_close(losses["loss_kl"], out["losses"]["kl"])
    total, log = model.parse_losses(losses)
    torch.testing.assert_close(total, sum(losses[n] for n in losses if n.startswith("loss")))
    assert log["curvature"] == 1.0
    assert len(model(**batch(), mode="predict")) == 4
    mixed = HierarchyClassifier(MAPPER, mixup=dict(mixup_alpha=0.8)).train()(
        **batch(5), mode="loss"
    )
    assert mixed["loss_cls"].requires_grad


def test_new_modules_learn_at_ten_times_the_rate():
    model = HierarchyClassifier(MAPPER)
    for layer_decay in (None, 0.5):
        options = dict(
            lr_mult={"backbone.mapper": 10.0}, **({"layer_decay": 0.5} if layer_decay else {})
        )
        wrapper = build_optim_wrapper(
            model,
            dict(
                constructor="TimmParamGroups",
                paramwise_cfg=options,
                optimizer=dict(type="SGD", lr=0.1, weight_decay=0.3),
            ),
        )
        rates = {
            id(p): (g["lr"], g["weight_decay"])
            for g in wrapper.optimizer.param_groups
            for p in g["params"]
        }
        assert len(rates) == len(list(model.parameters()))
        for name, parameter in model.named_parameters():
            lr, decay = rates[id(parameter)]
            if ".mapper." in name:
                assert lr == pytest.approx(1.0), name
                assert (decay == 0) == (parameter.ndim <= 1 or ".tree." in name), name
            else:
                assert lr <= 0.1 + 1e-9, name
    options = dict(lr_mult={"backbone.maper": 10.0})
    with pytest.raises(
        HypvisionError, match="names 'backbone.maper', but the model has no parameter"
    ):
        build_optim_wrapper(
            model,
            dict(
                constructor="TimmParamGroups",
                paramwise_cfg=options,
                optimizer=dict(type="SGD", lr=0.1),
            ),
        )


def test_distillation():
    student, teacher = torch.randn(6, 5), torch.randn(6, 5)
    hard = nn.functional.cross_entropy(student, teacher.argmax(1))
    torch.testing.assert_close(distillation_loss(student, teacher), hard)
    p, q = (teacher / 3).softmax(1), (student / 3).softmax(1)
    torch.testing.assert_close(
        distillation_loss(student, teacher, "soft", 3.0),
        9 * (p * (p / q).log()).sum(1).mean(),
        rtol=1e-4,
        atol=1e-6,
    )
    assert distillation_loss(student, student, "soft").item() == pytest.approx(0, abs=1e-6)

    options = dict(
        teacher=dict(model_name="test_vit", num_classes=5, img_size=32), loss="soft", alpha=0.25
    )
    model = HierarchyClassifier(MAPPER, distillation=options).eval()
    losses = model(**batch(), mode="loss")
    logits, wanted = model(**batch()), model._teacher[0](batch()["inputs"])
    torch.testing.assert_close(
        losses["loss_distillation"], 0.25 * distillation_loss(logits, wanted, "soft")
    )
    torch.testing.assert_close(
        losses["loss_cls"], 0.75 * nn.functional.cross_entropy(logits, batch()["label"])
    )
    assert not any("teacher" in name for name in model.state_dict())
    sum(v for n, v in losses.items() if n.startswith("loss")).backward()
    assert all(p.grad is None for p in model._teacher[0].parameters())


def test_the_second_head_of_a_distilled_network_learns_from_the_teacher():
    backbone = {**MAPPER, "backbone": "deit_tiny_distilled_patch16_224"}
    teacher = dict(model_name="test_vit", num_classes=5, img_size=32)
    model = HierarchyClassifier(backbone, distillation=dict(teacher=teacher))
    losses = model.train()(**batch(), mode="loss")
    losses["loss_distillation"].backward(retain_graph=True)
    assert (
        model.backbone.trunk.head.weight.grad is None
        or model.backbone.trunk.head.weight.grad.abs().sum() == 0
    )
    assert model.backbone.trunk.head_dist.weight.grad.abs().sum() > 0


@each(
    "arguments, message",
    [
        (dict(backbone=dict(model_name="resnet10t", num_classes=5)), "trains Hi-Mappers"),
        (
            dict(backbone=MAPPER, distillation=dict(teacher=dict(model_name="resnet10t"))),
            "predicts 1000 classes",
        ),
        (
            dict(
                backbone=MAPPER,
                distillation=dict(teacher=dict(model_name="resnet10t"), loss="warm"),
            ),
            "loss must be one of 'hard', 'soft'",
        ),
        (dict(backbone=MAPPER, freeze="all"), "freeze must be one of"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises(HypvisionError, match=message):
        HierarchyClassifier(**arguments)


def test_where_a_training_starts(tmp_path):
    trunk = timm.create_model(
        VIT["backbone"], num_classes=5, **{k: v for k, v in VIT.items() if k != "backbone"}
    )
    torch.save(
        {"state_dict": {f"backbone.{n}": v for n, v in trunk.state_dict().items()}},
        tmp_path / "plain.pth",
    )
    model = HierarchyClassifier(MAPPER, checkpoint=str(tmp_path / "plain.pth"))
    model.init_weights()
    assert all(
        torch.equal(v, model.backbone.trunk.state_dict()[n]) for n, v in trunk.state_dict().items()
    )
    torch.save(model.state_dict(), tmp_path / "whole.pth")
    other = HierarchyClassifier(
        {**MAPPER, "num_classes": 3}, checkpoint=str(tmp_path / "whole.pth")
    )
    other.init_weights()
    assert torch.equal(other.backbone.mapper.tree.mean, model.backbone.mapper.tree.mean)
    assert other.backbone.trunk.head.weight.shape == (3, 48)
    wrong = HierarchyClassifier({**MAPPER, "embed_dim": 32}, checkpoint=str(tmp_path / "plain.pth"))
    with pytest.raises(HypvisionError, match="does not fit the backbone: .* another shape"):
        wrong.init_weights()


def test_a_training_starts_from_the_zoo(tmp_path, monkeypatch):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path))
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    slim = builtin_index().get("hcformer_nano.cifar10").arguments
    arguments = dict(model_name="himapper", backbone="hcformer_nano", num_classes=3, **slim)
    model = HierarchyClassifier(arguments, checkpoint="zoo:hcformer_nano.cifar10")
    model.init_weights()
    expected = read_weights(resolve("hcformer_nano.cifar10"))
    own = model.backbone.trunk.state_dict()
    assert all(
        torch.equal(own[name], value)
        for name, value in expected.items()
        if not name.startswith("head.")
    )
    unverified = HierarchyClassifier(arguments, checkpoint="https://example.org/net.pth")
    with pytest.raises(HypvisionError, match="sha256=HEX"):
        unverified.init_weights()


def test_a_training_logs_the_parts_and_keeps_averages(tmp_path):
    data = make_images(tmp_path / "data")
    config = load_config(write_config(tmp_path / "config.py", data, epochs=2))
    config.model = dict(
        type="HierarchyClassifier",
        backbone={**MAPPER, "num_classes": 3},
        freeze="patch_embed",
        distillation=dict(teacher=dict(model_name="test_vit", num_classes=3, img_size=32)),
    )
    config.optim_wrapper.paramwise_cfg = dict(lr_mult={"backbone.mapper": 10.0})
    config.custom_hooks = [dict(type="EMAHook", ema_type="ExponentialMovingAverage", momentum=0.1)]
    runner = train(config, tmp_path / "run")
    for name in (
        "loss",
        "loss_cls",
        "loss_contrastive",
        "loss_kl",
        "loss_distillation",
        "curvature",
    ):
        values = scalars(tmp_path / "run", name)
        assert len(values) == 6 and all(v == v for v in values), name
    parts = [
        scalars(tmp_path / "run", n)
        for n in ("loss_cls", "loss_contrastive", "loss_kl", "loss_distillation")
    ]
    assert scalars(tmp_path / "run", "loss")[0] == pytest.approx(sum(p[0] for p in parts), rel=1e-3)
    curvature = scalars(tmp_path / "run", "curvature")
    assert curvature[0] == pytest.approx(1.0, abs=1e-3) and curvature[-1] != curvature[0]
    saved = torch.load(tmp_path / "run" / "epoch_2.pth", weights_only=False)
    averaged, last = saved["state_dict"], dict(runner.model.named_parameters())
    assert not torch.equal(
        averaged["backbone.trunk.head.weight"], last["backbone.trunk.head.weight"]
    )
    metrics = measure(config, tmp_path / "run" / "epoch_2.pth", tmp_path / "test")
    assert 0 <= metrics["top1"] <= 100
