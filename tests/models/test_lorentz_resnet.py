"""Lorentz ResNets: equal to the published form, converted checkpoints, switches, timm's contract
beyond its tests."""

import copy
import math
import re
from functools import cache

import pytest
import timm
import torch
import torch.nn.functional as F
from helpers.cases import each
from references.lorentz_cnn import ReferenceLorentzResNet
from timm.data import resolve_data_config
from torch import nn

from hypvision.cli import main
from hypvision.geometry import Lorentz, lorentz
from hypvision.io.errors import HypvisionError
from hypvision.models import LorentzResNet
from hypvision.models.lorentz_resnet_checkpoint import (
    hyperboliccv_from_official,
    hyperboliccv_to_official,
    hyperboliccv_variant,
    is_official_hyperboliccv,
)
from hypvision.nn import EfficientLorentzConv2d, LorentzBatchNorm2d, LorentzResidual, ToLorentz
from hypvision.optim import RiemannianSGD, param_groups
from hypvision.zoo.convert import convert_file

WIDTHS = (6, 8, 12, 16)
MICRO = dict(widths=WIDTHS, num_classes=5)
SHORT = dict(layers=(1, 2, 1, 1))  # a block with a shortcut and one without
# name: (our model, its arguments, arguments of the reference)
PUBLISHED = {
    "L-ResNet-18": ("hcnn_resnet18", SHORT, SHORT),
    "L-ResNet-50": ("hcnn_resnet50", SHORT, dict(depth=50, **SHORT)),
    "EL-ResNet-18": ("hecnn_resnet18", SHORT, dict(hybrid=True, **SHORT)),
    "L-ResNet-18, k": ("hcnn_resnet18", SHORT, dict(k=1.7, head_k=0.6, **SHORT)),
    "EL-ResNet-18, k": ("hecnn_resnet18", SHORT, dict(hybrid=True, head_k=0.6, **SHORT)),
}
# every switch of the constructor at least once
VARIANTS = {
    "hcnn18": ("hcnn_resnet18", {}),
    "hcnn18+": ("hcnn_resnet18", dict(plus=True)),
    "hcnn50+": ("hcnn_resnet50", dict(plus=True, layers=(1, 1, 1, 1))),
    "hecnn18": ("hecnn_resnet18", {}),
    "hecnn18-": ("hecnn_resnet18", dict(plus=False)),
    "hecnn50": ("hecnn_resnet50", dict(layers=(1, 1, 1, 1))),
    "hecnn50-exact": ("hecnn_resnet50", dict(layers=(1, 1, 1, 1), conv="exact", rescale=False)),
    "per stage": (
        "hcnn_resnet18",
        dict(plus=True, curvature_per_stage=True, curvature=0.7, head_curvature=1.3),
    ),
    "no boost": ("hecnn_resnet18", dict(boost="none", norm_match="none", slope=3.0)),
    "full boost": ("hecnn_resnet18", dict(boost="full", norm_match="sum")),
    "linear head": ("hcnn_resnet18", dict(head_type="linear")),
    "Euclidean": ("hecnn_resnet18", dict(hyperbolic_stages=(), head_type="linear")),
    "imagenet": ("hcnn_resnet18", dict(stem="imagenet")),
}


def shake(reference):
    """Weights and statistics without special values."""
    with torch.no_grad():
        for name, value in reference.state_dict().items():
            if name.endswith("beta"):
                space = 0.1 * torch.randn_like(value[1:])
                k = reference.enc_manifold.k
                value.copy_(torch.cat([(k + space.square().sum()).sqrt().view(1), space]))
            elif name.endswith("gamma") or (name.endswith("weight") and value.dim() == 1):
                value.uniform_(0.8, 1.4)
        for _ in range(
            5
        ):  # statistics that fit, or radii pass 10, where the official code cuts them
            reference(torch.randn(8, 3, 16, 16))
    return reference


@cache
def shaken(name):
    return shake(ReferenceLorentzResNet(num_classes=5, widths=WIDTHS, **PUBLISHED[name][2]))


def published(name):
    model = PUBLISHED[name][0]
    reference = copy.deepcopy(shaken(name))
    converted = hyperboliccv_from_official(reference.state_dict())
    found, arguments = hyperboliccv_variant(converted)
    assert found == model
    ours = timm.create_model(found, **arguments)
    ours.load_state_dict(converted)
    return ours, reference


@pytest.mark.quick(
    "True-L-ResNet-18",
    "False-L-ResNet-18",
    "False-EL-ResNet-18",
    "False-EL-ResNet-18, k",
    "True-EL-ResNet-18",
    "True-EL-ResNet-18, k",
)
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("training", [True, False])
def test_equals_the_published_form(name, training):
    """Logits, gradients of the image and running statistics, in float64."""
    ours, reference = published(name)
    ours, reference = ours.double().train(training), reference.double().train(training)
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    out, expected = ours(x), reference(x)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    weight = torch.randn_like(out)
    grads = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (out, expected)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4 * grads[1].abs().max().item())
    after = hyperboliccv_from_official(reference.state_dict())
    for key, value in ours.state_dict().items():
        if "running" in key:
            torch.testing.assert_close(value, after[key], rtol=1e-5, atol=1e-6)


@each("name", PUBLISHED)
def test_conversion_there_and_back(name, tmp_path):
    _, reference = published(name)
    weights = reference.state_dict()
    assert is_official_hyperboliccv(weights)
    torch.save(
        {"model": {f"module.{key}": value for key, value in weights.items()}, "epoch": 3},
        tmp_path / "in.pth",
    )
    done = convert_file("hyperboliccv", tmp_path / "in.pth", tmp_path / "ours.safetensors")
    model = eval(done.usage(), {"timm": timm})  # the line that the user is told
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model.eval()(x), reference.eval()(x), rtol=1e-3, atol=1e-4)
    done = convert_file(
        "hyperboliccv", tmp_path / "ours.safetensors", tmp_path / "back.pth", to_official=True
    )
    back = torch.load(done.path, weights_only=True)
    x = torch.randn(2, 3, 16, 16)
    converted = ReferenceLorentzResNet(num_classes=5, widths=WIDTHS, **PUBLISHED[name][2])
    converted.load_state_dict(back)
    torch.testing.assert_close(converted.eval()(x), reference(x), rtol=1e-4, atol=1e-5)


def test_official_names_and_shapes_are_those_of_the_sheet():
    """Of 231 entries 89 are copies of k; the classifier around the network repeats two more."""
    model = timm.create_model("hcnn_resnet18", num_classes=100, device="meta")
    official = hyperboliccv_to_official(
        {name: torch.zeros(v.shape) for name, v in model.state_dict().items()}
    )
    copies = {name for name, value in official.items() if name.endswith(".k") and value.shape == ()}
    assert len(official) == 231 + 2 and len(copies) == 89 + 2
    assert {"enc_manifold.k", "dec_manifold.k"} < copies
    kernel = "encoder.conv3_x.0.conv.0.linearized_kernel"
    shapes = {
        f"{kernel}.weight.weight": (129, 64 * 9 + 1),
        f"{kernel}.weight.bias": (129,),
        f"{kernel}.scale": (),
        f"{kernel}.manifold.k": (),
        "encoder.conv1.conv.1.beta": (65,),
        "encoder.conv1.conv.1.gamma": (1,),
        "encoder.conv1.conv.1.running_mean": (65,),
        "encoder.conv1.conv.1.running_var": (1,),
        "encoder.conv5_x.0.shortcut.1.gamma": (1,),
        "decoder.a": (100,),
        "decoder.z": (100, 512),
    }
    assert {name: tuple(official[name].shape) for name in shapes} == shapes
    reference = ReferenceLorentzResNet(num_classes=100).state_dict()
    assert {n: v.shape for n, v in official.items()} == {n: v.shape for n, v in reference.items()}


def test_bare_official_networks_and_timm_load_them(tmp_path):
    """Without the classifier's wrapper the names have other prefixes; timm takes the official names
    as they are."""
    _, reference = published("L-ResNet-18")
    weights = reference.state_dict()
    bare = {
        key.removeprefix("encoder.").replace("decoder.", "predictor."): value
        for key, value in weights.items()
        if "_manifold" not in key
    }
    one, two = hyperboliccv_from_official(bare), hyperboliccv_from_official(weights)
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
    torch.save(weights, tmp_path / "official.pth")
    overlay = dict(file=str(tmp_path / "official.pth"), num_classes=5)
    model = timm.create_model(
        "hcnn_resnet18", pretrained=True, pretrained_cfg_overlay=overlay, **MICRO, **SHORT
    )
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model.eval()(x), reference.eval()(x), rtol=1e-3, atol=1e-4)


def test_mistakes_in_checkpoints_are_explained():
    weights = published("L-ResNet-18")[1].state_dict()
    with pytest.raises(HypvisionError, match="entry 'encoder.conv6.weight'"):
        hyperboliccv_from_official({**weights, "encoder.conv6.weight": torch.ones(1)})
    with pytest.raises(HypvisionError, match="no Lorentz head"):
        hyperboliccv_from_official(
            {key: value for key, value in weights.items() if "decoder" not in key}
        )
    part = {key: value for key, value in weights.items() if "conv3_x" not in key}
    with pytest.raises(HypvisionError, match="only a part"):
        hyperboliccv_variant(hyperboliccv_from_official(part))
    with pytest.raises(HypvisionError, match="boost_weight"):
        hyperboliccv_to_official(
            timm.create_model("hcnn_resnet18", plus=True, **MICRO).state_dict()
        )


def test_curvatures_on_the_way_back():
    fixed = timm.create_model("hcnn_resnet18", curvature=0.5, **MICRO).state_dict()
    official = hyperboliccv_to_official(fixed, curvature=0.5)
    assert {float(value) for name, value in official.items() if name.endswith(".k")} == {2.0}
    learned = timm.create_model(
        "hcnn_resnet18", curvature=0.5, learn_curvature=True, **MICRO
    ).state_dict()
    assert all(
        torch.equal(official[n], v)
        for n, v in hyperboliccv_to_official(learned).items()
        if n.endswith(".k")
    )
    for weights, curvature, message in (
        (learned, 0.5, "hold a learned one"),
        (fixed, -1.0, "must be positive"),
        (
            {**fixed, "manifolds.0.log_c": torch.zeros(()), "manifolds.1.log_c": torch.ones(())},
            None,
            "several curvat",
        ),
    ):
        with pytest.raises(HypvisionError, match=message):
            hyperboliccv_to_official(weights, curvature)


@pytest.mark.parametrize("name", ["hcnn_resnet18", "hecnn_resnet18"])
def test_official_weights_need_a_model_of_their_curvatures(name):
    def create(**options):
        flat = dict(hyperbolic_stages=(), plus=False) if name == "hecnn_resnet18" else {}
        return timm.create_model(name, **flat, **options, **MICRO, **SHORT).eval()

    curvatures = dict(curvature=0.3, head_curvature=0.7)
    official = hyperboliccv_to_official(create(learn_curvature=True, **curvatures).state_dict())
    model, learned = create(**curvatures), create(learn_curvature=True)
    for network in (model, learned):  # a model that learns its curvatures takes those of the file
        network.load_state_dict(official)
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(x), learned(x), rtol=1e-3, atol=1e-4)
    ones = hyperboliccv_to_official(create().state_dict())
    for weights, other in ((ones, curvatures), (ones, dict(head_curvature=0.3)), (official, {})):
        with pytest.raises(
            HypvisionError, match=r"has curvature (1|0\.3|0\.7) .* Create it with curvature="
        ):
            create(**other).load_state_dict(weights)


def test_command_line(tmp_path, capsys):
    torch.save(published("L-ResNet-18")[1].state_dict(), tmp_path / "in.pth")
    words = f"zoo convert --from hyperboliccv {tmp_path / 'in.pth'} {tmp_path / 'out.pth'}".split()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert 'timm.create_model("hcnn_resnet18", num_classes=5' in said and "clip" not in said
    # Hybrids clip features, at a radius that no checkpoint has.
    torch.save(published("EL-ResNet-18")[1].state_dict(), tmp_path / "in.pth")
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "clip=1.0 (the default) for CIFAR, clip=4.0 for Tiny-ImageNet" in said


def test_parameter_counts_are_the_published_ones():
    """100 classes: L-ResNet-18 without its dead rows and scales, and those of the "+" models."""
    dead = {18: 11_256_015 - 11_224_972, 50: 23_784_787 - 23_731_918}
    for depth, expected in dead.items():
        reference = ReferenceLorentzResNet(depth).state_dict()
        rows = [v for k, v in reference.items() if k.endswith("linearized_kernel.weight.weight")]
        assert expected == sum(v.shape[1] + 1 for v in rows)
    for name, arguments, expected in (
        ("hcnn_resnet18", {}, 11_224_972),
        ("hcnn_resnet50", {}, 23_731_918),
        ("hcnn_resnet18", dict(plus=True), 11_215_394),
        ("hecnn_resnet18", {}, 11_218_625),
        ("hecnn_resnet50", {}, 23_701_526),
    ):
        model = timm.create_model(name, num_classes=100, device="meta", **arguments)
        assert sum(p.numel() for p in model.parameters()) == expected, name


def build(name, **options):
    model, arguments = VARIANTS[name]
    model = timm.create_model(model, **{**MICRO, **SHORT, **arguments, **options})
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1 and key.endswith(("gamma", "boost_weight")):
                parameter.add_(0.1)
    return model


@each("name", VARIANTS)
def test_variants_train(name):
    model, x = build(name), torch.randn(4, 3, 32, 32)
    out = model(x)
    assert out.shape == (4, 5)
    out.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key


def logits_and_gradients(model, x):
    out = model(x)
    F.cross_entropy(out, torch.arange(len(x)) % out.shape[1]).backward()
    return out.detach(), {key: p.grad for key, p in model.named_parameters()}


def move_curvatures(model, bound):
    """Learned curvatures to their lower or upper bounds."""
    for module in model.modules():
        if isinstance(module, Lorentz) and module.learnable:
            module.log_c.data.fill_(module.log_bounds[bound])


# the bound at which a learned curvature is; None: where it starts
@each("c, bound", [(1e-6, 0), (4e-4, None), (5e-3, 1), (1.0, None), (1e3, 1)])
@each("name", ["hecnn_resnet18", "hcnn_resnet18"])
def test_networks_work_at_every_curvature(name, c, bound):
    """With rescaling, and where a learned curvature may go: images differ, and everything has a
    gradient."""
    torch.manual_seed(0)
    model = timm.create_model(name, plus=True, layers=(1, 1, 1, 1), curvature=c, **MICRO)
    if bound is not None:
        move_curvatures(model, bound)
    out, gradients = logits_and_gradients(model, torch.randn(4, 3, 32, 32))
    assert out.isfinite().all()
    assert out.std(0).mean() > 1e-4
    for key, gradient in gradients.items():
        assert gradient.isfinite().all(), key


@each("c", [0.1, 1.0, 10.0])
def test_gradients_are_those_of_float64(c, monkeypatch):
    """With the same side of every kink: a ReLU whose argument is round-off has another slope in
    another precision.

    The gradient of a single angle or gain is the difference of the gradients of all pixels: it is
    compared with the size of the largest of them.
    """
    torch.manual_seed(0)
    model = timm.create_model("hecnn_resnet18", curvature=c, **MICRO)
    exact = copy.deepcopy(model).double()
    sides, x = [], torch.randn(8, 3, 32, 32)

    def relu(self, x):
        sides.append(x.detach() > 0)
        return x * sides[-1]

    monkeypatch.setattr(nn.ReLU, "forward", relu)
    logits, found = logits_and_gradients(model, x)
    recorded = iter(list(sides))
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: x * next(recorded))
    expected_logits, expected = logits_and_gradients(exact, x.double())
    assert (logits - expected_logits).norm() < 2e-6 * expected_logits.norm()
    largest = max(g.norm() for g in expected.values() if g.numel() == 1)
    for key, gradient in expected.items():
        error, size = (found[key] - gradient).norm(), gradient.norm()
        assert error < (1e-5 * largest if gradient.numel() == 1 else 2e-5 * size), (
            key,
            error / size,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hcnn18", "hecnn18", "hecnn50"])
def test_compiled_training_step_without_graph_breaks(name):
    model, x = build(name), torch.randn(2, 3, 32, 32)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    torch._dynamo.reset()
    grads = []
    for network in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        model.load_state_dict(state)
        model.zero_grad()
        network(x).square().sum().backward()
        grads.append({key: p.grad.clone() for key, p in model.named_parameters()})
    for key, eager in grads[0].items():
        torch.testing.assert_close(
            grads[1][key], eager, rtol=1e-2, atol=2e-3 * eager.abs().max().item() + 1e-6
        )


def test_features_are_tangent_vectors_at_the_origin():
    model = build("hcnn18").eval()
    x = torch.randn(2, 3, 32, 32)
    final, maps = model.forward_intermediates(x)
    points = Lorentz(1.0).from_space(final.movedim(1, -1))
    torch.testing.assert_close(
        maps[-1].movedim(1, -1), lorentz.logmap0(points, 1.0), rtol=1e-5, atol=1e-6
    )
    getter = timm.create_model("hcnn_resnet18", features_only=True, stem="imagenet", widths=WIDTHS)
    assert [m.shape for m in getter(torch.randn(1, 3, 64, 96))] == [
        (1, width, 64 // r, 96 // r) for width, r in zip(WIDTHS, getter.feature_info.reduction())
    ]
    assert getter.feature_info.reduction() == [4, 8, 16, 32]


# Part of a name of a weight of ours -> that in timm's ResNets.
NAMES = {
    "stem.conv": "conv1",
    "stem.norm": "bn1",
    "head.": "fc.",
    "downsample.conv": "downsample.0",
    "downsample.norm": "downsample.1",
    ".norm": ".bn",
}


def names_of_timm(name):
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return re.sub(r"stages\.(\d)\.blocks", lambda match: f"layer{int(match[1]) + 1}", name)


@torch.no_grad()
@each("size, stride", [(18, 32), (18, 16), (18, 8), (50, 16), (50, 8)])
def test_euclidean_networks_of_any_output_stride_are_timm_s(size, stride):
    options = dict(hyperbolic_stages=(), head_type="linear", stem="imagenet", num_classes=5)
    ours = timm.create_model(f"hecnn_resnet{size}", **options, output_stride=stride).eval()
    theirs = timm.create_model(f"resnet{size}", num_classes=5, output_stride=stride).eval()
    theirs.load_state_dict({names_of_timm(k): v for k, v in ours.state_dict().items()})
    images = torch.randn(1, 3, 64, 96)
    expected = theirs.forward_features(images)
    torch.testing.assert_close(ours.forward_features(images), expected, rtol=1e-4, atol=1e-4)
    infos = [row["reduction"] for row in ours.feature_info]
    assert infos == [row["reduction"] for row in theirs.feature_info][1:]


@torch.no_grad()
def test_hyperbolic_networks_of_any_output_stride():
    images = torch.randn(1, 3, 64, 96)
    for name in ("hcnn_resnet18", "hecnn_resnet18", "hecnn_resnet50"):
        coarse = timm.create_model(name, **MICRO, stem="imagenet").eval()
        fine = timm.create_model(name, **MICRO, stem="imagenet", output_stride=8).eval()
        fine.load_state_dict(coarse.state_dict())
        assert fine.forward_features(images).shape[2:] == (8, 12)
        # up to the stage that dilates both are the same
        expected = coarse.forward_intermediates(images, [0, 1], intermediates_only=True)
        for found, other in zip(fine.forward_intermediates(images, [0, 1])[1], expected):
            torch.testing.assert_close(found, other)
    small = timm.create_model("hecnn_resnet18", **MICRO, output_stride=4)
    assert [row["reduction"] for row in small.feature_info] == [1, 2, 4, 4]
    for wrong in (dict(output_stride=12), dict(output_stride=2, stem="imagenet")):
        with pytest.raises(HypvisionError, match="output_stride"):
            timm.create_model("hecnn_resnet18", **MICRO, **wrong)


# the first, a middle and the last stage; the last block of each kind, and curvatures that differ
@each(
    "name, index",
    [
        ("hcnn18+", 0),
        ("hcnn18+", 1),
        ("hcnn18+", 3),
        ("hecnn18", 1),
        ("hecnn50", 1),
        ("per stage", 1),
    ],
)
def test_pruned_networks_use_all_their_parameters(name, index):
    model, x = build(name).eval(), torch.randn(2, 3, 32, 32)
    (expected,) = model.forward_intermediates(x, [index], intermediates_only=True)
    kept = model.prune_intermediate_layers([index])
    (found,) = model.forward_intermediates(x, kept, intermediates_only=True)
    torch.testing.assert_close(found, expected)
    (found.square().sum() + model(x).square().sum()).backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


def test_heads():
    model, x = build("hcnn18+").eval(), torch.randn(2, 3, 32, 32)
    pooled = model.forward_head(model.forward_features(x), pre_logits=True)
    model.reset_classifier(7, head_type="linear")
    assert isinstance(model.head, nn.Linear)
    assert model(x).shape == (2, 7)
    assert model.head_manifold is None
    tangent = lorentz.logmap0(model.manifolds[0].from_space(pooled), model.manifolds[0].c)
    torch.testing.assert_close(model(x), model.head(tangent), rtol=1e-4, atol=1e-5)
    model.reset_classifier(3, head_type="lorentz")
    assert model(x).shape == (2, 3) and model.curvatures()["head_manifold"] == 1.0
    model.reset_classifier(0)
    torch.testing.assert_close(model(x), pooled)
    with pytest.raises(ValueError, match="head_type"):
        model.reset_classifier(3, head_type="poincare")


def test_shared_curvatures_are_saved_once():
    model = build("hcnn18+")
    names = [key for key in model.state_dict() if key.endswith("log_c")]
    assert names == ["manifolds.0.log_c", "head_manifold.log_c"]
    with torch.no_grad():
        model.manifolds[0].log_c.fill_(0.3)
    other = build("hcnn18+")
    wrapped = nn.ModuleDict({"backbone": other})
    wrapped.load_state_dict({f"backbone.{key}": value for key, value in model.state_dict().items()})
    assert other.stages[2].blocks[0].conv1.manifold.log_c is other.manifolds[0].log_c
    assert other.curvatures() == {"manifolds.0": pytest.approx(math.exp(0.3)), "head_manifold": 1.0}


def test_parameter_groups():
    model = build("hecnn18", layers=(2, 2, 2, 2))
    groups = {
        group["name"]: group for group in param_groups(model, 0.1, 5e-4, 0.2, curvature_lr=0.01)
    }
    assert len(groups["curvatures"]["params"]) == 2 and groups["curvatures"]["weight_decay"] == 0
    assert len(groups["points"]["params"]) == 9 and groups["points"]["lr"] == pytest.approx(0.02)
    assert all(p.dim() > 1 for p in groups["weights"]["params"])


def test_gradient_checkpointing_gives_equal_gradients():
    x, grads = torch.randn(2, 3, 32, 32), []
    for enable in (False, True):
        torch.manual_seed(0)
        model = build("hecnn18")
        model.set_grad_checkpointing(enable)
        model(x).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    for one, two in zip(*grads):
        torch.testing.assert_close(one, two)


def train(model, steps, dtype, move="tangent", lr=0.1):
    """A few classes of noisy blobs, learned by the papers' optimiser under autocast; losses."""
    optimizer = RiemannianSGD(
        param_groups(model, lr, 5e-4, 0.2, curvature_lr=lr),
        lr=lr,
        momentum=0.9,
        nesterov=True,
        move=move,
    )
    generator, losses = torch.Generator().manual_seed(0), []
    centres = torch.randn(5, 3, 8, 8, generator=generator)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    for _ in range(steps):
        label = torch.randint(5, (16,), generator=generator)
        x = centres[label] + 0.5 * torch.randn(16, 3, 8, 8, generator=generator)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(model(x).float(), label)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def check_points(model):
    """Every point lies on its hyperboloid, and every number is finite."""
    found = 0
    for module in model.modules():
        beta = getattr(module, "beta", None)
        if beta is not None:
            module.manifold.check_point(beta, "beta", 1e-5)
            found += 1
    assert found and all(value.isfinite().all() for value in model.state_dict().values())


TINY = dict(layers=(1, 1, 1, 1), widths=(8, 8, 12, 12), num_classes=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, marks=pytest.mark.slow), torch.float16]
)
def test_training_with_learned_curvature_is_stable(dtype):
    model = timm.create_model("hecnn_resnet18", plus=True, **TINY)
    losses = train(model, 30, dtype)
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    check_points(model)
    assert all(abs(c - 1) > 1e-4 for c in model.curvatures().values())


def test_the_data_config_follows_the_stem():
    small = resolve_data_config({}, model=timm.create_model("hcnn_resnet18", device="meta"))
    assert small["input_size"] == (3, 32, 32) and small["crop_pct"] == 1.0
    model = timm.create_model("hecnn_resnet18", stem="imagenet", device="meta")
    large = resolve_data_config({}, model=model)
    assert large["input_size"] == (3, 224, 224) and large["crop_pct"] == 0.875
    assert model.pretrained_cfg["pool_size"] == (7, 7)
    assert model.feature_info[-1]["reduction"] == 32  # 224 / 32
    overlay = dict(input_size=(3, 160, 160))
    model = timm.create_model(
        "hcnn_resnet18", stem="imagenet", pretrained_cfg_overlay=overlay, device="meta"
    )
    assert resolve_data_config({}, model=model)["input_size"] == (3, 160, 160)


def _radii(network, x):
    """The largest radius behind each rescaling of points, the largest norm behind that of
    features."""
    found = []

    def note(module, _, out):
        if isinstance(module, ToLorentz):
            found.append(out.norm(dim=1).max().item())
        else:
            found.append(
                module.manifold.dist0(module.manifold.from_space(out.movedim(1, -1))).max().item()
            )

    kinds = (EfficientLorentzConv2d, LorentzResidual, ToLorentz)
    hooks = [m.register_forward_hook(note) for m in network.modules() if isinstance(m, kinds)]
    out = network(x)
    for hook in hooks:
        hook.remove()
    return found, out


@each("name", ["hcnn18+", "hecnn50", "per stage"])
def test_a_limit_holds_radii(name):
    variant, arguments = VARIANTS[name]
    model = timm.create_model(variant, **{**MICRO, **arguments}, limit=1.5).eval()
    free = timm.create_model(variant, **{**MICRO, **arguments}).eval()
    free.load_state_dict(model.state_dict())
    x = 4 * torch.randn(2, 3, 16, 16)
    (bounded, out), (unbounded, other) = _radii(model, x), _radii(free, x)
    assert max(bounded) <= 1.5 + 1e-4 < max(unbounded) and len(bounded) > 4
    assert not torch.allclose(out, other, rtol=1e-2, atol=1e-2)


def test_the_limit_of_a_batch_norm():
    """By its formula: with one mean and beta at the origin, radii become the rescaled
    ``gamma r / (var + eps)``."""
    manifold = Lorentz(0.7)
    norm = LorentzBatchNorm2d(3, manifold, slope=2.0, limit=1.2).double().eval()
    x = 3 * torch.randn(2, 3, 4, 4, dtype=torch.float64)
    radius = manifold.dist0(manifold.from_space(x.movedim(1, -1)))
    out = manifold.dist0(manifold.from_space(norm(x).movedim(1, -1)))
    torch.testing.assert_close(
        out, 1.2 * torch.tanh(radius / (1 + 1e-5) * math.atanh(0.99) / (2 * 1.2))
    )
    learned = LorentzBatchNorm2d(3, Lorentz(0.7, learnable=True), slope=2.0, limit=1.2).double()
    learned.manifold.double()
    inputs = (x.requires_grad_(), learned.gamma, learned.manifold.log_c)
    assert torch.autograd.gradcheck(lambda *_: learned(x), inputs, atol=1e-5, rtol=1e-3)


def test_bounds_hold_learned_curvatures():
    model = timm.create_model("hecnn_resnet18", bounds=(0.5, 3.0), curvature=2.0, **MICRO)
    spaces = [*model.manifolds, model.head_manifold]
    for step, expected in ((10.0, 6.0), (-10.0, 1.0)):
        for space in spaces:
            space.log_c.data += step
            space.clamp_()
            assert space.c.item() == pytest.approx(expected, rel=1e-5)
    model = timm.create_model("hcnn_resnet18", plus=True, **MICRO)  # k = 1 / c in [0.05, 10]
    assert [math.exp(-v) for v in model.manifolds[0].log_bounds] == pytest.approx([10, 0.05])


@each(
    "arguments, message",
    [
        (dict(block="wide"), "block must be one of 'basic'"),
        (dict(stem="tiny"), "stem must be one of"),
        (dict(conv="fast"), "conv must be one of"),
        (dict(head_type="poincare"), "head_type must be one of"),
        (dict(layers=(1, 1)), "one entry for each of 4 stages"),
        (dict(hyperbolic_stages=(0,)), "numbers from 1 to 4"),
        (dict(clip=0.0), "clip must be a finite number above 0"),
        (dict(curvature=-1.0), "curvature must be a finite number above 0"),
        (dict(global_pool="max"), "global_pool must be one of 'avg', '', got"),
        (dict(block="core"), "hyperbolic_stem=False"),
        (dict(norm_match="rows"), "norm_match must be one of 'patch'"),
        (dict(boost="turbo"), "boost must be one of 'axis'"),
        (dict(slope=-1.0), "slope must be a finite number above 0"),
        (dict(plus=True, slope=math.inf), "slope must be a finite number above 0"),
        (dict(plus=True, clip=2.0), "clip=2.0 is for networks without rescaling.*rescale=False"),
        (dict(plus=True, limit=0.0), "limit must be a finite number above 0"),
        (dict(limit=3.0), "limit=3.0 is the limit of the rescaling.*rescale=True"),
        (
            dict(head_curvature=-0.5, head_type="linear"),
            "head_curvature must be a finite number above 0",
        ),
        (
            dict(curvature=-1.0, hyperbolic_stages=(), hyperbolic_stem=False, head_type="linear"),
            "curvature must be a finite number above 0",
        ),
        (
            dict(bounds=(2.0, 3.0), hyperbolic_stages=(), hyperbolic_stem=False),
            "bounds must enclose 1",
        ),
        (dict(num_classes=-1), "num_classes must be an integer of at least 0"),
        (dict(num_classes=2.0), "num_classes must be an integer of at least 0"),
        (dict(hyperbolic_stages=2), r"hyperbolic_stages must be a tuple, such as \(1, 3\), got 2"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        LorentzResNet(**arguments)
