"""What timm promises of every network, for every family that is registered here, in small."""

import json

import pytest
import timm
import torch
from helpers.cases import each
from timm.models import (
    GraphExtractNet,
    create_feature_extractor,
    get_graph_node_names,
    save_for_hf,
)
from timm.models._manipulate import reinit_non_persistent_buffers
from timm.utils import reparameterize_model

import hypvision  # noqa: F401 - registers
from hypvision.io.errors import HypvisionError
from hypvision.nn import ClusterMixer

TREE = dict(width=16, heads=2, leaves=8, levels=2)
BOTTLENECKS = dict(widths=(4, 4, 4, 4), layers=(1, 1, 1, 1))
FAMILIES = {
    "hcformer_nano": dict(
        img_size=32,
        patch_size=2,
        layers=(1, 1, 1, 1),
        dims=(8, 10, 12, 14),
        heads=(1, 1, 1, 1),
        head_dim=8,
        layer_scale=1.0,  # at 1e-5 no tolerance would see what the mixers do
    ),
    "hcnn_resnet18": dict(widths=(4, 5, 6, 7)),
    "hcnn_resnet50": BOTTLENECKS,
    "hecnn_resnet18": dict(widths=(4, 5, 6, 7)),
    "hecnn_resnet50": BOTTLENECKS,
    "lvit_tiny": dict(img_size=32, patch_size=8, embed_dim=12, depth=4, num_heads=2),
    "lvit_tiny token": dict(
        img_size=32, patch_size=8, embed_dim=12, depth=4, num_heads=2, class_token=True
    ),
    "lvit_tiny curvatures": dict(
        img_size=32, patch_size=8, embed_dim=12, depth=4, num_heads=2, curvature=(0.5, 1.0, 2.0)
    ),
    "hexformer_tiny": dict(
        img_size=32, patch_size=8, embed_dim=12, depth=4, num_heads=2, hidden_dim=16
    ),
    "hexformer_tiny centroid": dict(
        img_size=32,
        patch_size=8,
        embed_dim=12,
        depth=4,
        num_heads=2,
        hidden_dim=16,
        aggregation="centroid",
    ),
    "himapper resnet": dict(backbone="resnet10t", channels=(8, 8, 16, 16), **TREE),
    "himapper deit": dict(
        backbone="deit_tiny_patch16_224", img_size=32, patch_size=8, depth=4, **TREE
    ),
    "himapper swin": dict(
        backbone="swin_tiny_patch4_window7_224",
        img_size=32,
        window_size=1,
        depths=(1, 1, 1, 1),
        embed_dim=24,
        **TREE,
    ),
    "himapper efficientnet": dict(backbone="mobilenetv3_small_050", **TREE),
}
families = each("family", FAMILIES)


def make(family, **changes):
    torch.manual_seed(0)
    return timm.create_model(
        family.partition(" ")[0], **{"num_classes": 5, **FAMILIES[family], **changes}
    ).eval()


@torch.no_grad()
@each("channels", [1, 4])
@families
def test_any_number_of_channels(family, channels):
    model = make(family, in_chans=channels)
    assert model.in_chans == channels
    x = torch.randn(2, channels, 32, 32)
    logits = model(x)
    assert logits.shape == (2, 5) and logits.isfinite().all()
    x[:, -1] += torch.randn(2, 32, 32)
    assert not torch.equal(model(x), logits)  # the last channel counts


@torch.no_grad()
@each("order", [(3, 1), (1, -1), (1, 1)])
@families
def test_levels_are_reported_in_the_order_in_which_they_come(family, order):
    model = make(family, features_only=True, out_indices=order)
    maps = model(torch.randn(2, 3, 32, 32))
    assert [level.shape[1] for level in maps] == model.feature_info.channels()
    assert [32 // level.shape[2] for level in maps] == model.feature_info.reduction()
    assert len(maps) == len(set(order))


DEEPER = {
    "hcformer_nano": dict(layers=(1, 2, 1, 1), feature_norms=True),
    "hcnn_resnet18": dict(layers=(2, 3, 2, 2)),
    "hecnn_resnet50": dict(layers=(1, 2, 1, 1)),
    "hexformer_tiny": dict(depth=6),
    "lvit_tiny": dict(depth=6),
    "himapper deit": dict(depth=6),
}


@each("classes", [0, 5])
@each("family", DEEPER)
def test_features_load_the_whole_network_and_no_deeper_one(family, classes):
    maps = make(family, features_only=True, out_indices=(0, 1), num_classes=classes)
    extra = dict(feature_norms=True) if "hcformer" in family else {}
    whole = make(family, **extra)
    maps.load_state_dict(whole.state_dict())
    x = torch.randn(1, 3, 32, 32)
    wanted = whole.forward_intermediates(x, indices=[0, 1], intermediates_only=True)
    assert all(torch.equal(a, b) for a, b in zip(maps(x), wanted, strict=True))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        maps.load_state_dict(make(family, **DEEPER[family]).state_dict())


@families
def test_checkpointed_features_have_the_same_gradients(family):
    gradients = []
    for checkpointing in (False, True):
        model = make(family, features_only=True)
        model.set_grad_checkpointing(checkpointing)
        x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        sum(level.square().mean() for level in model(x)).backward()
        gradients.append(
            {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        )
    torch.testing.assert_close(gradients[0], gradients[1])


@torch.no_grad()
@families
def test_a_pooling_works_or_is_refused_when_it_is_chosen(family):
    x, reset = torch.randn(2, 3, 32, 32), make(family)

    def build(pool):
        return make(family, global_pool=pool)

    def change(pool):
        reset.reset_classifier(5, pool)
        return reset

    # of the pools beside the mean the one that gives twice the features
    for pool in ("avg", "catavgmax", "token", "nope", ""):
        for choose in (build, change):
            try:
                model = choose(pool)
            except HypvisionError:
                assert pool != "avg"
                model = reset  # which a refusal leaves as it was
            else:
                assert pool not in ("nope", "")
            assert model(x).shape == (2, 5)
    reset.reset_classifier(0, "")
    assert reset(x).ndim > 2 or "deit" in family
    with pytest.raises(HypvisionError, match="num_classes=0"):
        reset.reset_classifier(3, "")


@pytest.mark.quick("hcnn_resnet18")
@pytest.mark.parametrize("name", ["hcformer_nano", "hcnn_resnet18"])
def test_the_map_is_as_large_as_every_tag_says(name):
    for tag in timm.list_pretrained(f"{name}*") or [name]:
        with torch.device("meta"):
            model = timm.create_model(tag)
            size = model.forward_features(
                torch.empty(1, *model.pretrained_cfg["input_size"])
            ).shape[-2:]
        assert tuple(size) == model.pretrained_cfg["pool_size"]


# a Hi-Mapper's backbone is timm's own to adapt
@torch.no_grad()
@each("family", [family for family in FAMILIES if "himapper" not in family])
def test_weights_of_three_channels_start_other_networks_as_timm_adapts_them(family, tmp_path):
    colours, x = make(family), torch.randn(2, 1, 32, 32)
    torch.save(colours.state_dict(), tmp_path / "w.pth")
    source = dict(
        pretrained=True, pretrained_cfg_overlay=dict(file=str(tmp_path / "w.pth"), num_classes=5)
    )
    grey = make(family, in_chans=1, **source)
    # the time of an image's points is no linear function of the channels: the weights are a start
    if family.startswith(("hcnn", "lvit", "hexformer")):
        first = "stem.conv.weight"
        torch.testing.assert_close(
            grey.state_dict()[first], colours.state_dict()[first].sum(1, keepdim=True)
        )
    else:
        torch.testing.assert_close(grey(x), colours(x.expand(-1, 3, -1, -1)), rtol=1e-3, atol=1e-4)
    assert make(family, in_chans=4, **source)(torch.randn(2, 4, 32, 32)).isfinite().all()


@torch.no_grad()
@families
def test_intermediate_maps_come_with_the_final_features(family):
    model = make(family)
    x = torch.randn(2, 3, 32, 32)
    final, maps = model.forward_intermediates(x)
    torch.testing.assert_close(final, model.forward_features(x))
    assert len(maps) == len(model.feature_info)


# timm asks every module of a network for a method of this name, without arguments
@torch.no_grad()
@families
def test_a_network_that_timm_reparameterises_computes_the_same(family):
    model = make(family)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(reparameterize_model(model)(x), model(x))


NOISE = {
    "himapper fixed": ("himapper deit", dict(eval_noise="fixed")),
    "himapper sampled": ("himapper deit", dict(eval_noise="fixed", mixture="components")),
}


@torch.no_grad()
@each("case", [*FAMILIES, *NOISE])
def test_a_network_without_values_gets_all_of_them_from_a_checkpoint(case):
    family, options = NOISE.get(case, (case, {}))
    model = make(family, **options)
    x = torch.randn(2, 3, 32, 32)
    with torch.device("meta"):
        empty = make(family, **options)
    again = empty.to_empty(device="cpu")
    for buffer in again.buffers():
        buffer.fill_(0)  # what the memory holds is chance
    again.load_state_dict(model.state_dict())
    reinit_non_persistent_buffers(again)
    torch.testing.assert_close(again(x), model(x))


@torch.no_grad()
@families
def test_transformers_reads_what_timm_saves(family, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = make(family)
    x = torch.randn(2, 3, 32, 32)
    save_for_hf(model, tmp_path, safe_serialization=True)
    written = json.loads((tmp_path / "config.json").read_text())["model_args"]
    arguments = {name: value for name, value in written.items() if name != "num_classes"}
    auto = transformers.AutoModelForImageClassification
    again = auto.from_pretrained(tmp_path, model_args=arguments).eval()
    torch.testing.assert_close(again(pixel_values=x).logits, model(x))
    features = transformers.AutoModel.from_pretrained(tmp_path, model_args=arguments).eval()
    torch.testing.assert_close(
        features(pixel_values=x).last_hidden_state, model.forward_features(x)
    )


WRONG = {
    "num_classes": -1,
    "in_chans": 0,
    "drop_rate": 1.5,
    "drop_path_rate": -0.1,
}


@each("argument", WRONG)
@families
def test_numbers_that_no_network_has_are_refused_when_it_is_built(family, argument):
    if "himapper" in family and "drop" in argument:
        pytest.skip("timm's own networks take them")
    with pytest.raises(HypvisionError, match=f"{argument} must be"):
        make(family, **{argument: WRONG[argument]})


@families
def test_no_classes_below_zero_and_no_features_without_levels(family):
    with pytest.raises(HypvisionError, match="num_classes must be"):
        make(family).reset_classifier(-1)
    with pytest.raises(HypvisionError, match="indices must name a level"):
        make(family, features_only=True, out_indices=())


@torch.no_grad()
@families
def test_features_come_by_one_extractor(family):
    x = torch.randn(2, 3, 32, 32)
    maps = make(family, features_only=True, feature_cls="getter")(x)
    for one, other in zip(maps, make(family, features_only=True)(x), strict=True):
        assert torch.equal(one, other)
    for kind in ("hook", "list", "dict", "fx"):
        with pytest.raises(HypvisionError, match="feature_cls"):
            make(family, features_only=True, feature_cls=kind)


@torch.no_grad()
@families
def test_timm_extracts_any_module_by_its_name(family):
    model = make(family)
    x = torch.randn(2, 3, 32, 32)
    name = model.feature_info[-1]["module"]
    seen = []
    hook = model.get_submodule(name).register_forward_hook(lambda *given: seen.append(given[2]))
    model(x)
    hook.remove()
    extractor = create_feature_extractor(model, {name: "last"})
    torch.testing.assert_close(extractor(x)["last"], seen[0])


@torch.no_grad()
@families
def test_a_head_that_stays_gives_the_same_logits(family):
    model = make(family)
    x = torch.randn(2, 3, 32, 32)
    logits = model(x)
    model.prune_intermediate_layers(1, prune_norm=False, prune_head=False)
    torch.testing.assert_close(model(x), logits)


@torch.no_grad()
@each("family", [family for family, options in FAMILIES.items() if "img_size" in options])
def test_weights_of_smaller_images_start_a_network_for_larger_ones(family, tmp_path):
    small = make(family)
    path = str(tmp_path / "w.pth")
    torch.save(small.state_dict(), path)
    x = torch.randn(2, 3, 64, 64)
    by_path = make(family, img_size=64, checkpoint_path=path)
    overlay = dict(file=path, num_classes=5)
    by_overlay = make(family, img_size=64, pretrained=True, pretrained_cfg_overlay=overlay)
    logits = by_path(x)
    assert logits.isfinite().all()
    torch.testing.assert_close(by_overlay(x), logits)
    if family == "himapper deit":  # as timm starts the backbone alone
        torch.save(small.trunk.state_dict(), path)
        options = dict(img_size=64, patch_size=8, depth=4, num_classes=5)
        alone = timm.create_model(
            "deit_tiny_patch16_224", pretrained=True, pretrained_cfg_overlay=overlay, **options
        )
        torch.testing.assert_close(by_path.trunk.pos_embed, alone.pos_embed)


@torch.no_grad()
def test_positions_of_an_unknown_grid_are_refused(tmp_path):
    torch.save(make("hexformer_tiny", img_size=(32, 64)).state_dict(), tmp_path / "w.pth")
    same = make("hexformer_tiny", img_size=(32, 64), checkpoint_path=str(tmp_path / "w.pth"))
    assert same(torch.randn(1, 3, 32, 64)).isfinite().all()
    with pytest.raises(HypvisionError, match="32 patches, which are no square grid"):
        make("hexformer_tiny", img_size=64, checkpoint_path=str(tmp_path / "w.pth"))


LEARNED = {
    **{family: {} for family in FAMILIES},
    "lvit_tiny": dict(learn_curvature=True),
    "hcnn_resnet18": dict(learn_curvature=True, curvature_per_stage=True),
}


@each("dtype", [torch.float64, torch.bfloat16])
@each("family", LEARNED)
def test_a_network_of_a_dtype_is_one_that_is_cast_to_it(family, dtype):
    made = make(family, dtype=dtype, **LEARNED[family])
    cast = make(family, **LEARNED[family]).to(dtype)
    for model in (made, cast):
        model.reset_classifier(3)
    found, expected = ({k: v.dtype for k, v in m.state_dict().items()} for m in (made, cast))
    assert found == expected


@torch.no_grad()
@families
def test_a_network_is_saved_with_the_size_that_it_was_set_to(family, tmp_path):
    model = make(family)
    if not hasattr(model, "set_input_size"):
        pytest.skip("it takes images of any size")
    model.set_input_size(img_size=64)
    save_for_hf(model, tmp_path, safe_serialization=True)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(again(x), model(x))


@each(
    "family",
    ["hcformer_nano", "hcnn_resnet18", "hecnn_resnet50", "lvit_tiny token", "hexformer_tiny"]
    + ["himapper resnet"],
)
def test_a_graph_of_torch_fx_computes_what_the_network_does(family):
    """timm cuts any node of a network out of such a graph; the tracer knows no sizes and no
    devices."""
    model, x = make(family), torch.randn(2, 3, 32, 32)
    last = get_graph_node_names(model)[1][-1]
    graph = GraphExtractNet(model, [last])
    for training in (True, False):
        found = []
        for network in (model, graph):
            network.train(training).zero_grad()
            torch.manual_seed(1)  # a Hi-Mapper draws while it is trained
            logits = network(x)
            logits.square().sum().backward()
            found.append((logits, [p.grad for p in model.parameters()]))
        torch.testing.assert_close(found[1], found[0])


def test_a_layer_of_clusters_is_one_node_in_any_network():
    network = torch.nn.Sequential(torch.nn.LayerNorm(32), ClusterMixer(32))
    extractor = create_feature_extractor(network, {"1": "mixed"})
    x = torch.randn(1, 16, 16, 32)
    torch.testing.assert_close(extractor(x)["mixed"], network(x))
