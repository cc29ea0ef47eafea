"""TimmBackbone: levels, sizes, freezing, checkpoints; and as part of models of mmdet and mmseg."""

import pytest
import timm
import torch
from helpers.cases import each
from timm.models import register_model
from torch import nn

pytest.importorskip("mmcv")
from mmengine.model import BaseModule, Sequential
from mmengine.registry import MODELS

import hypvision  # noqa: F401 - registers our models in timm
from hypvision.io.errors import HypvisionError
from hypvision.openmmlab import TimmBackbone


@register_model
def swin_of_a_test(pretrained=False, **options):
    """A Swin of two tenths of a million parameters; timm's smallest has 28 million."""
    small = dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2))
    return timm.create_model("swin_tiny_patch4_window7_224", pretrained, **{**small, **options})


@register_model
def resnet_of_a_test(pretrained=False, **options):
    return timm.create_model(
        "resnet18", pretrained, **{"layers": (1, 1, 1, 1), "channels": (16, 24, 32, 48), **options}
    )


@register_model
def convnext_of_a_test(pretrained=False, **options):
    small = dict(dims=(16, 24, 32, 48), depths=(1, 1, 1, 1))
    return timm.create_model("convnext_atto", pretrained, **{**small, **options})


@register_model
def hcformer_of_a_test(pretrained=False, **options):
    small = dict(layers=(1, 1, 1, 1), dims=(8, 16, 24, 32), heads=(2, 2, 2, 2), head_dim=4)
    return timm.create_model("hcformer_nano", pretrained, **{**small, **options})


# Model, levels of strides 4 to 32, and the stem and stages as timm names them in the classifier.
RESNET = ("resnet_of_a_test", (1, 2, 3, 4), ["conv1 bn1", "layer1", "layer2", "layer3", "layer4"])
SWIN = (
    "swin_of_a_test",
    (0, 1, 2, 3),
    ["patch_embed", "layers.0", "layers.1", "layers.2", "layers.3"],
)
CONVNEXT = (
    "convnext_of_a_test",
    (0, 1, 2, 3),
    ["stem", "stages.0", "stages.1", "stages.2", "stages.3"],
)
HCFORMER = (
    "hcformer_of_a_test",
    (0, 1, 2, 3),
    ["stem", "stages.0", "stages.1", "stages.2", "stages.3"],
)
MODELS_AND_PARTS = [RESNET, SWIN, CONVNEXT, HCFORMER]


def all_models(function):
    names = [name for name, _, _ in MODELS_AND_PARTS]
    return pytest.mark.parametrize("name,levels,parts", MODELS_AND_PARTS, ids=names)(function)


def classifier_weights(name, seed=1, **options):
    torch.manual_seed(seed)
    return timm.create_model(name, num_classes=5, **options).state_dict()


def flat(name):
    return name.replace(".", "_")


def assert_loaded(backbone, weights):
    """Every weight of the backbone that the classifier has too has the classifier's value."""
    given = {flat(name): value for name, value in weights.items()}
    own = {flat(name): value for name, value in backbone._base.state_dict().items()}
    both = [name for name in own if name in given]
    assert len(both) > 0.9 * len(own)
    for name in both:
        torch.testing.assert_close(own[name], given[name], rtol=0, atol=0, msg=name)


@all_models
@pytest.mark.parametrize("size", [(224, 224), (67, 101)], ids=str)
def test_maps_for_any_input_size(name, levels, parts, size):
    backbone = TimmBackbone(name, levels).eval()
    with torch.no_grad():
        maps = backbone(torch.randn(1, 3, *size))
    assert isinstance(maps, tuple) and backbone.strides == [4, 8, 16, 32]
    assert (
        [level.shape[1] for level in maps]
        == backbone.out_channels
        == backbone.timm_model.feature_info.channels()
    )
    for level, stride in zip(maps, backbone.strides):
        for side, given in zip(level.shape[2:], size):
            assert given // stride <= side <= -(-given // stride)
        assert level.is_contiguous() and level.isfinite().all()


@all_models
def test_equal_to_timm(name, levels, parts):
    torch.manual_seed(0)
    x = torch.randn(1, 3, 224, 224)
    weights = classifier_weights(name)
    reference = timm.create_model(name, num_classes=5)
    reference.load_state_dict(weights)
    backbone = TimmBackbone(name, levels[-1:]).eval()
    given = {flat(key): value for key, value in weights.items()}
    own = {
        key: given[flat(key)] for key in backbone._base.state_dict() if "feature_norm" not in key
    }
    backbone._base.load_state_dict(own, strict=False)
    expected = reference.eval().forward_intermediates(x, indices=1, intermediates_only=True)[0]
    if name == HCFORMER[0]:  # its maps are normalised where it is a backbone
        expected = nn.functional.group_norm(expected, 1)
    torch.testing.assert_close(backbone(x)[0], expected, atol=1e-5, rtol=1e-5)


def test_padding():
    x = torch.randn(1, 3, 65, 97)
    assert TimmBackbone("swin_of_a_test").pad_multiple == 4
    backbone = TimmBackbone("resnet18", (4,), pad_multiple=32).eval()
    padded = nn.functional.pad(x, (0, 31, 0, 31))
    torch.testing.assert_close(backbone(x)[0], backbone(padded)[0])
    assert backbone(x)[0].shape == (1, 512, 3, 4)


@all_models
@pytest.mark.parametrize("frozen", [-1, 0, 2])
def test_frozen_stages(name, levels, parts, frozen):
    backbone = TimmBackbone(name, levels, frozen_stages=frozen)
    assert backbone.num_stages == 4
    prefixes = tuple(flat(prefix) + "_" for part in parts[: frozen + 1] for prefix in part.split())
    expected = {
        key for key, _ in backbone._base.named_parameters() if flat(key).startswith(prefixes)
    }
    assert bool(expected) == (frozen >= 0)
    assert {key for key, p in backbone._base.named_parameters() if not p.requires_grad} == expected
    for _ in range(2):  # at once, and after being put to training again
        for key, module in backbone._base.named_modules():
            if (flat(key) + "_").startswith(prefixes) and prefixes:
                assert not module.training, key
        backbone.train()
    assert backbone.training
    running = {
        key: buffer.clone() for key, buffer in backbone._base.named_buffers() if "running" in key
    }
    sum(level.square().mean() for level in backbone(torch.randn(2, 3, 64, 64))).backward()
    trained = {key for key, p in backbone._base.named_parameters() if p.grad is not None}
    assert trained == {key for key, _ in backbone._base.named_parameters()} - expected
    for key, buffer in backbone._base.named_buffers():
        if key in running:
            assert torch.equal(buffer, running[key]) == bool(
                prefixes and flat(key).startswith(prefixes)
            ), key


TINY_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 2}
TINY_SWIN = {
    "img_size": 64,
    "window_size": 2,
    "embed_dim": 16,
    "depths": (1, 1, 1, 1),
    "num_heads": (1, 1, 2, 2),
}
# Arguments, levels, and the names of the parameters of the stem and of each stage.
FREEZING = {
    "vit_tiny_patch16_224": (
        TINY_VIT, (0, 2), ["patch_embed cls_token pos_embed", "blocks.0", "blocks.1", "blocks.2"]
    ),
    "vit_small_patch14_reg4_dinov2": (
        TINY_VIT, (2,), ["patch_embed cls_token reg_token pos_embed", "blocks.0", "blocks.1",
        "blocks.2"]
    ),
    "swin_tiny_patch4_window7_224": (
        TINY_SWIN, (0, 1, 2, 3), ["patch_embed", "layers.0", "layers.1", "layers.2", "layers.3"]
    ),
    "resnet10t": (dict(channels=(8, 8, 16, 16)), (1, 2, 3, 4), ["conv1 bn1", "layer1", "layer2",
    "layer3", "layer4"]),
    "efficientnet_b0": (
        {}, (1, 2, 3, 4),
        ["conv_stem bn1", "blocks.0", "blocks.1", "blocks.2", "blocks.3 blocks.4",
        "blocks.5 blocks.6"],
    ),
}  # fmt: skip


@pytest.mark.quick(
    "resnet10t-plain",
    "resnet10t-himapper",
    "vit_tiny_patch16_224-plain",
    "vit_tiny_patch16_224-himapper",
    "swin_tiny_patch4_window7_224-plain",
    "vit_small_patch14_reg4_dinov2-plain",
)
@pytest.mark.parametrize("himapper", [False, True], ids=["plain", "himapper"])
@pytest.mark.parametrize("name", FREEZING)
def test_each_number_of_frozen_stages(name, himapper):
    """Of Hi-Mappers too, whose stages lie a module deeper and whose mapper belongs to no stage."""
    arguments, levels, parts = FREEZING[name]
    arguments = (
        dict(arguments, model_name="himapper", backbone=name)
        if himapper
        else dict(arguments, model_name=name)
    )
    for frozen in range(len(parts)):
        backbone = TimmBackbone(out_indices=levels, frozen_stages=frozen, **arguments)
        assert backbone.num_stages == len(parts) - 1
        here, later = (
            tuple(
                ("trunk_" if himapper else "") + flat(name) + "_"
                for part in some
                for name in part.split()
            )
            for some in (parts[: frozen + 1], parts[frozen + 1 :])
        )
        parameters = {
            flat(key) + "_": p.requires_grad for key, p in backbone._base.named_parameters()
        }
        assert {key for key, trained in parameters.items() if not trained} == {
            key for key in parameters if key.startswith(here)
        }
        assert all(any(key.startswith(part) for key in parameters) for part in here + later)
        backbone.train()
        modules = {
            flat(key) + "_": module.training for key, module in backbone._base.named_modules()
        }
        assert not any(training for key, training in modules.items() if key.startswith(here))
        assert all(
            training for key, training in modules.items() if key.startswith((*later, "mapper_"))
        )


def test_more_stages_than_there_are():
    with pytest.raises(HypvisionError, match="has 3 stages: frozen_stages=4 is too large"):
        TimmBackbone("resnet18", (0, 1, 2, 3), frozen_stages=4)
    with pytest.raises(HypvisionError, match="stages of 'hrnet_w18_small' are not known"):
        TimmBackbone("hrnet_w18_small", (0, 1), frozen_stages=1)


def test_a_transformer_without_levels_freezes_its_embeddings():
    backbone = TimmBackbone("vit_tiny_patch16_224", (1, 3), frozen_stages=1)
    frozen = {
        key.partition(".")[0] for key, p in backbone._base.named_parameters() if not p.requires_grad
    }
    assert frozen == {"cls_token", "pos_embed", "patch_embed", "blocks"}
    assert all(p.requires_grad for p in backbone._base.blocks[1].parameters())
    assert [tuple(level.shape[2:]) for level in backbone(torch.randn(1, 3, 50, 70))] == [(4, 5)] * 2


def test_frozen_norms_stay_frozen_when_they_are_replaced():
    backbone = nn.SyncBatchNorm.convert_sync_batchnorm(
        TimmBackbone("resnet18", frozen_stages=1)
    ).train()
    net = backbone.timm_model
    assert (
        isinstance(net.bn1, nn.SyncBatchNorm)
        and not net.bn1.training
        and not net.layer1[0].bn1.training
    )
    assert net.layer2[0].bn1.training


def test_norm_eval():
    for norm_eval in (True, False):
        backbone = TimmBackbone("resnet18", norm_eval=norm_eval).train()
        found = [
            module.training for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)
        ]
        assert found and set(found) == {not norm_eval}
        assert backbone.timm_model.conv1.training


@all_models
def test_checkpointing_changes_no_gradient(name, levels, parts):
    x = torch.randn(2, 3, 64, 64)
    grads = []
    for with_cp in (False, True):
        torch.manual_seed(0)
        backbone = TimmBackbone(name, levels, with_cp=with_cp, frozen_stages=1, norm_eval=True)
        sum(level.square().mean() for level in backbone(x)).backward()
        grads.append({key: p.grad for key, p in backbone.named_parameters()})
    for key, grad in grads[0].items():
        assert (grad is None) == (grads[1][key] is None), key
        if grad is not None:
            torch.testing.assert_close(grads[1][key], grad, msg=key)


def test_checkpointing_is_on():
    backbone = TimmBackbone("hcformer_nano", with_cp=True)
    assert all(stage.grad_checkpointing for stage in backbone._base.stages)
    assert TimmBackbone("resnet18", with_cp=True).timm_model.grad_checkpointing


def test_a_model_without_checkpointing(monkeypatch):
    def refuse(self, enable=True):
        assert not enable, "gradient checkpointing not supported"

    monkeypatch.setattr("hypvision.models.HCFormer.set_grad_checkpointing", refuse)
    with pytest.raises(HypvisionError, match="'hcformer_nano' has no gradient checkpointing"):
        TimmBackbone("hcformer_nano", with_cp=True)


@all_models
def test_checkpoints_of_classifiers(tmp_path, name, levels, parts):
    weights = classifier_weights(name)
    torch.save({"state_dict": weights, "meta": {}}, tmp_path / "c.pth")
    backbone = TimmBackbone(
        name, levels, init_cfg={"type": "Pretrained", "checkpoint": str(tmp_path / "c.pth")}
    )
    backbone.init_weights()
    assert_loaded(backbone, weights)
    assert_loaded(TimmBackbone(name, levels[:2], checkpoint_path=str(tmp_path / "c.pth")), weights)


@pytest.mark.parametrize(
    "before,wrapper",
    [("", None), ("", "model"), ("backbone.", "state_dict"), ("module.model.", None)],
)
def test_forms_of_checkpoints(tmp_path, before, wrapper):
    weights = classifier_weights(HCFORMER[0])
    named = {before + key: value for key, value in weights.items()}
    torch.save({wrapper: named, "meta": {}} if wrapper else named, tmp_path / "c.pth")
    assert_loaded(TimmBackbone(HCFORMER[0], checkpoint_path=str(tmp_path / "c.pth")), weights)


def test_checkpoints_of_a_whole_model_and_with_a_prefix(tmp_path):
    for name in (RESNET[0], HCFORMER[0]):
        source = TimmBackbone(name)
        whole = nn.ModuleDict(
            {"teacher": TimmBackbone(name), "backbone": source, "head": nn.Linear(2, 2)}
        )
        torch.save({"state_dict": whole.state_dict()}, tmp_path / "c.pth")
        for prefix in ("backbone.", "backbone", "backbone.timm_model."):
            target = TimmBackbone(name)
            target.load_pretrained(str(tmp_path / "c.pth"), prefix)
            torch.testing.assert_close(target.state_dict(), source.state_dict(), rtol=0, atol=0)
    with pytest.raises(
        HypvisionError, match=r"name with the prefix 'neck\.'; there are teacher\.timm_model"
    ):
        target.load_pretrained(str(tmp_path / "c.pth"), "neck.")


def test_safetensors_and_position_biases_of_another_size(tmp_path):
    from safetensors.torch import save_file

    save_file(classifier_weights("hcformer_nano", img_size=64), tmp_path / "c.safetensors")
    TimmBackbone("hcformer_nano", checkpoint_path=str(tmp_path / "c.safetensors"))


@pytest.mark.parametrize(
    "source,target",
    [
        ("resnet18", "resnet34"),
        ("resnet34", "resnet18"),
        ("resnet18", "convnext_atto"),
        ("hcformer_tiny", "hcformer_nano"),
    ],
)
def test_checkpoints_of_another_architecture(tmp_path, source, target):
    torch.save(classifier_weights(source), tmp_path / "c.pth")
    with pytest.raises(
        HypvisionError,
        match=rf"c\.pth' does not fit the backbone '{target}': .*(missing|unknown|shape)",
    ):
        TimmBackbone(target, checkpoint_path=str(tmp_path / "c.pth"))


@each(
    "arguments, message",
    [
        ({"model_name": "hcformer_nanno"}, "no model 'hcformer_nanno'. Did you mean hcformer_nano"),
        (
            {"model_name": "resnet18", "out_indices": (3, 7)},
            r"cannot return the levels out_indices=\(3, 7\)",
        ),
        ({"model_name": "resnet18", "no_such": 2}, "unexpected keyword argument 'no_such'"),
        (
            {"model_name": "hcformer_nano", "pretrained": True},
            "no weights for .hcformer_nano.. The zoo has hcformer_nano.cifar10",
        ),
        ({"model_name": "resnet18", "checkpoint_path": "none.pth"}, "no checkpoint 'none.pth'"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises(HypvisionError, match=message):
        TimmBackbone(**arguments)


def test_initialisation_as_part_of_a_model(tmp_path):
    weights = classifier_weights("resnet18")
    torch.save(weights, tmp_path / "c.pth")
    init = {"type": "Pretrained", "checkpoint": str(tmp_path / "c.pth")}
    model = Sequential(TimmBackbone("resnet18", (4,), init_cfg=init), nn.Conv2d(512, 2, 1))
    assert isinstance(model, BaseModule)
    model.init_weights()
    assert_loaded(model[0], weights)
    with torch.no_grad():
        model[0].timm_model.conv1.weight.zero_()
    model[0].init_weights()  # mmengine warns, and changes nothing
    assert (model[0].timm_model.conv1.weight == 0).all()


def test_weights_from_timm_survive_init_weights():
    backbone = TimmBackbone("hrnet_w18_small", (0, 1))  # a model with an init_weights of its own
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    backbone.init_weights()
    torch.testing.assert_close(backbone.state_dict(), before, rtol=0, atol=0)


def test_other_initialisers_still_work():
    backbone = TimmBackbone(
        "resnet18", init_cfg={"type": "Constant", "layer": "Conv2d", "val": 0.5}
    )
    backbone.init_weights()
    assert (backbone.timm_model.conv1.weight == 0.5).all()


def test_registered_in_the_root_of_all_registries():
    assert MODELS.get("TimmBackbone") is TimmBackbone
    for library in ("mmdet", "mmseg"):
        registry = pytest.importorskip(f"{library}.registry").MODELS
        assert registry.get("TimmBackbone") is TimmBackbone


@register_model
def lvit_of_a_test(pretrained=False, **options):
    small = dict(img_size=64, patch_size=8, embed_dim=12, depth=3, num_heads=2)
    return timm.create_model("lvit_tiny", pretrained, **{**small, **options})


@pytest.mark.parametrize("size", [(64, 64), (48, 80)], ids=str)
def test_a_transformer_of_points_gives_euclidean_maps_that_train(size):
    """LViT: tangent vectors at the origin, whose lengths are the radii of the points."""
    torch.manual_seed(0)
    backbone = TimmBackbone("lvit_of_a_test", out_indices=(0, 2))
    images = torch.randn(2, 3, *size)
    maps = backbone(images)
    assert [x.shape[1:] for x in maps] == [(12, size[0] // 8, size[1] // 8)] * 2
    model = backbone.timm_model.model
    space = model.stages[2](model.stages[1](model.stages[0](model.stem(images))))
    radii = model.manifold.dist0(model.manifold.from_space(space.movedim(1, -1)))
    torch.testing.assert_close(maps[1].norm(dim=1), radii)
    sum(x.square().sum() for x in maps).backward()
    parts = [p for name, p in backbone.named_parameters() if "head" not in name]
    assert all(p.grad is not None for p in parts)


@each("name", ["resnet10t", "hcformer_nano", "test_vit"])
def test_levels_are_reported_in_the_order_in_which_they_come(name):
    backbone = TimmBackbone(name, out_indices=(3, 1)).eval()
    with torch.no_grad():
        maps = backbone(torch.randn(1, 3, 160, 160))
    assert [level.shape[1] for level in maps] == backbone.out_channels
    assert [160 // level.shape[2] for level in maps] == backbone.strides == sorted(backbone.strides)
