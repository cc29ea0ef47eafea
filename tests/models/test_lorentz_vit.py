"""LViT against whole points in float64; positions of other grids, connections, refusals."""

import math

import numpy as np
import pytest
import timm
import torch
from helpers.cases import each
from references import lvit
from timm.models import group_parameters

import hypvision  # noqa: F401 - registers
from hypvision.io.errors import HypvisionError
from hypvision.models.lorentz_vit import from_official, resample_positions
from hypvision.zoo.backbones import load_weights

SIZES = dict(width=11, heads=2, head_dim=5, hidden=14, depth=3, patch=4, grid=3, classes=6)
ARGUMENTS = dict(
    img_size=12, patch_size=4, embed_dim=11, depth=3, num_heads=2, head_dim=5, hidden_dim=14,
    num_classes=6,
)  # fmt: skip


def make(**changes):
    torch.manual_seed(0)
    return timm.create_model("lvit_tiny", **{**ARGUMENTS, **changes}).eval()


@each("k", [1.0, 0.5, (3.0, 3.0, 3.0), (0.5, 1.0, 3.0), (2.0, 3.0, 0.7)])
@each("far", [1.0, 50.0])
def test_official_weights_give_the_logits_of_whole_points(k, far):
    """With one curvature, and with one for the stem, the blocks and the head each."""
    curvature = [1 / one for one in k] if isinstance(k, tuple) else 1 / k
    k = k if isinstance(k, tuple) else (k, k, k)
    weights = lvit.random_weights(**SIZES, k=k)
    images = far * torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1)).double()
    wanted = lvit.logits(images, weights, 3, 2, 4, 27.5, k)
    model = make(curvature=curvature, dtype=torch.float64)
    model.load_state_dict(weights)
    torch.testing.assert_close(model(images), wanted, rtol=1e-9, atol=1e-9)
    # and in float32, where space parts of about 30 enter every score; curvatures may be learned
    single = make(curvature=curvature, learn_curvature=True)
    single.load_state_dict({name: value.float() for name, value in weights.items()})
    torch.testing.assert_close(single(images.float()).double(), wanted, rtol=1e-3, atol=1e-3)


def test_the_published_size_differs_by_what_is_not_kept():
    with torch.device("meta"):
        model = timm.create_model("lvit_base_hypercore")
    # a time for each of 196 positions, and a constant for each of 12 softmaxes
    assert sum(p.numel() for p in model.parameters()) == 88_889_123 - 196 - 12


def test_another_curvature_or_an_unknown_weight_is_refused():
    weights = lvit.random_weights(**SIZES, k=(2.0, 2.0, 2.0))
    with pytest.raises(HypvisionError, match=r"curvature=0\.5"):
        from_official(weights, make())
    for curvature, place in (((1.0, 0.5, 0.5), "add_pos"), ((0.5, 0.5, 2.0), "classifier")):
        with pytest.raises(HypvisionError, match=f"'{place}.* the stem, the blocks and the head"):
            from_official(weights, make(curvature=curvature))
    with pytest.raises(HypvisionError, match="one number, or three"):
        make(curvature=(1.0, 2.0))
    with pytest.raises(HypvisionError, match="encoder.blocks.0.adapter"):
        from_official({**weights, "encoder.blocks.0.adapter": weights["pe"]}, make(curvature=0.5))
    with pytest.raises(HypvisionError, match="img_size"):
        make(img_size=13)
    with pytest.raises(HypvisionError, match="skip"):
        make(skip="post")


@torch.no_grad()
def test_positions_of_another_grid_stay_points_and_constant_ones_stay_equal():
    manifold = make(curvature=0.3).manifold
    same = torch.randn(11)[None, :, None, None].expand(1, 11, 3, 3)
    found = resample_positions(same, torch.Size((5, 4)), manifold)
    torch.testing.assert_close(found, same[..., :1, :1].expand(1, 11, 5, 4))
    # far positions do not blow up: their logarithms are mixed, not their space parts
    far = 1e4 * torch.nn.functional.normalize(torch.randn(1, 11, 3, 3), dim=1)
    radius = manifold.logmap0(manifold.from_space(far.movedim(1, -1))).norm(dim=-1).max()
    large = resample_positions(far, torch.Size((6, 6)), manifold)
    # bicubic weights reach 1.3 in sum of absolute values in each direction
    found = manifold.logmap0(manifold.from_space(large.movedim(1, -1))).norm(dim=-1).max()
    assert found < 1.7 * radius
    small = make(img_size=8)
    small.load_state_dict(make(img_size=12).state_dict())
    assert small.stem.pos_embed.shape[2:] == (2, 2)
    whole = make(img_size=12)
    images = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(small(images), whole(images))


@torch.no_grad()
def test_a_block_with_a_skip_before_the_norm_keeps_what_its_branches_leave():
    """With branches at weight 0 and no scaling a pre-norm block is the identity, the published one
    a norm."""
    for skip, scale in (("prenorm", 1.0), ("normed", 1.0)):
        block = make(skip=skip, residual_scale=scale).stages[0]
        block.add1.weight.zero_()
        block.add2.weight.zero_()
        x = torch.randn(2, 11, 3, 3)
        wanted = x if skip == "prenorm" else block.norm1(x.movedim(1, -1)).movedim(-1, 1)
        torch.testing.assert_close(block(x), wanted)


@torch.no_grad()
def test_a_class_token_is_one_more_token_of_every_block():
    """The pooled token is what the blocks, written out, make of the token beside the patches."""
    model = make(class_token=True, global_pool="token")
    images = torch.randn(2, 3, 12, 12)
    plain = make()
    plain.load_state_dict(model.state_dict(), strict=False)
    patches = plain.stem(images).flatten(2)
    tokens = torch.cat([model.stem.class_token.expand(2, -1, -1), patches], 2).unsqueeze(-1)
    for block in plain.stages:
        tokens = block(tokens)  # as a map of one column
    torch.testing.assert_close(
        model.forward_head(model.forward_features(images), pre_logits=True), tokens[:, :, 0, 0]
    )
    model.reset_classifier(6, "avg")
    pooled = model.forward_head(model.forward_features(images), pre_logits=True)
    torch.testing.assert_close(pooled, plain.global_pool(tokens[:, :, 1:]))
    (maps,) = model.forward_intermediates(images, indices=[2], intermediates_only=True)
    expected = plain.to_tangent(tokens[:, :, 1:].squeeze(-1)).unflatten(2, (3, 3))
    torch.testing.assert_close(maps, expected)
    assert "stem.class_token" in model.no_weight_decay()
    with pytest.raises(HypvisionError, match="global_pool"):
        make(global_pool="token")


@torch.no_grad()
@pytest.mark.parametrize("skip", ["prenorm", "normed"])
def test_a_dropped_branch_has_the_weight_0_in_its_connection(skip):
    """So the others are not scaled, and the origin is not averaged in."""
    block = make(drop_path_rate=0.5, skip=skip).stages[-1].train()
    x = torch.randn(64, 11, 3, 3)
    block.drop_path.drop_prob = 1.0
    none = block(x)
    block.drop_path.drop_prob = 0.0
    ways = []
    for first, second in ((0, 0), (0, 1), (1, 0), (1, 1)):
        block.add1.weight.fill_(first)
        block.add2.weight.fill_(second)
        ways.append(block(x))
    torch.testing.assert_close(none, ways[0])
    block.drop_path.drop_prob = 0.5
    torch.manual_seed(0)
    found = block(x)
    apart = torch.stack([(found - way).flatten(1).abs().amax(1) for way in ways])
    assert apart.amin(0).max() < 1e-4
    assert len(apart.argmin(0).unique()) == 4


def test_every_weight_gets_a_gradient_and_learned_curvature_follows():
    model = make(learn_curvature=True).train()
    model(torch.randn(2, 3, 12, 12)).square().sum().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert missing == []
    several = make(learn_curvature=True, curvature=(0.5, 1.0, 2.0)).train()
    several(torch.randn(2, 3, 12, 12)).square().sum().backward()
    curvatures = [name for name, p in several.named_parameters() if name.endswith("log_c")]
    assert len(curvatures) == 3
    assert all(several.get_parameter(name).grad.any() for name in curvatures)
    spared = model.no_weight_decay()
    assert {"stem.pos_embed", "manifold.log_c", "stages.0.attn.scale", "stem.add.weight"} <= spared


def test_a_learned_curvature_of_the_head_belongs_to_the_head():
    """In timm's layer-wise rates; one curvature for all layers belongs to the stem."""
    for curvature, head in ((0.5, False), ((0.5, 1.0, 2.0), True)):
        model = make(learn_curvature=True, curvature=curvature)
        places = group_parameters(model, model.group_matcher(), reverse=True)
        assert places["stem.conv.weight"] == 0 and places["head.weight"] == max(places.values())
        assert (places["manifold.log_c"] == places["head.weight"]) == head
        assert (places["manifold.log_c"] == 0) != head


@each("kind", [np.float32, np.float64, torch.tensor])
def test_a_curvature_is_any_number(kind):
    assert make(curvature=kind(0.5)).manifold.initial_c == 0.5


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "share"), [(torch.float16, 0.02), (torch.bfloat16, 0.1)])
def test_half_precision_stays_near(dtype, share):
    model = make()
    images = torch.randn(4, 3, 12, 12)
    wanted = model(images)
    with torch.autocast("cpu", dtype):
        found = model(images).float()
    assert (found - wanted).abs().max() < share * wanted.abs().max()


@torch.no_grad()
def test_weights_start_as_published():
    """Uniform ones within the bounds of HyperCore's module."""
    model = timm.create_model("lvit_tiny", depth=1)
    block = model.stages[0]
    patch, tokens = 2 / (3 * 16 * 16), 1 / 193  # squares of the bounds
    expected = {"stem.conv": patch, "head": 1 / 192}
    expected |= {f"stages.0.attn.{name}": tokens for name in ("query", "key", "value")}
    expected["stages.0.attn.out"] = 1 / (3 * 65)
    expected |= {"stages.0.fc1": 2 * 6 / (193 + 768), "stages.0.fc2": 2 * 6 / (769 + 192)}
    for name, square in expected.items():
        layer = model.get_submodule(name)
        drawn = [layer.weight, getattr(layer, "time_weight", layer.weight)]
        if "fc" in name:
            assert not layer.bias.any()
        else:
            drawn.append(layer.bias)
        for values in drawn:
            share = float(values.abs().max()) / square**0.5
            assert 0.9 < share <= 1 + 1e-6, name
            assert float(values.square().mean()) * 3 / square == pytest.approx(1, abs=0.25), name
    weights = [block.add1.weight, block.add2.weight, model.stem.add.weight]
    assert [float(weight) for weight in weights] == [1, 1, 1]
    assert float(block.attn.scale) == pytest.approx((3 * 65) ** 0.5)
    points = model.manifold.from_space(model.stem.pos_embed.movedim(1, -1))
    torch.testing.assert_close(model.manifold.dist0(points), torch.ones(1, 14, 14))


@torch.no_grad()
def test_a_checkpoint_with_other_scales_loads_whole(tmp_path):
    """Weights of a training have the scales of the residual connections, by these names."""
    model = timm.create_model("lvit_tiny", depth=1, img_size=32)
    weights = model.state_dict()
    weights["stages.0.add1.log_scale"] = torch.tensor(1.5)
    torch.save(weights, tmp_path / "lvit.pth")
    load_weights(model, tmp_path / "lvit.pth")
    assert model.stages[0].add1.scale == pytest.approx(math.exp(1.5))
