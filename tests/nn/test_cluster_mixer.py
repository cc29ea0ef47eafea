"""The mixer's options and borders; its numbers are pinned in tests/models/test_hcformer.py."""

import geoopt
import pytest
import torch
import torch.nn.functional as F

from hypvision.nn import ClusterMixer

SMALL = dict(dim=12, heads=2, head_dim=6, fold=3, prop=2, win=2, nominal_size=9)


def randomised(**kwargs):
    mixer = ClusterMixer(**{**SMALL, **kwargs})
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(0, 0.5)
    return mixer


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("curvature", 0.0), ("curvature", -1.0), ("fold", 0), ("prop", -2), ("win", 1.5), ("heads", 0),
        ("pad", "some"), ("lift", "klein"), ("nominal_size", 0),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(argument, value):
    with pytest.raises(ValueError, match=argument):
        ClusterMixer(**{**SMALL, argument: value})


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (9, 9), (10, 17), (5, 31)])
@pytest.mark.parametrize("pad", ["always", "minimal"])
@pytest.mark.parametrize("window_level", [True, False])
def test_any_size_keeps_its_shape_and_has_finite_gradients(size, pad, window_level):
    mixer = randomised(pad=pad, window_level=window_level)
    x = torch.randn(2, *size, 12, requires_grad=True)
    out = mixer(x)
    assert out.shape == x.shape
    out.square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in mixer.parameters())


def test_padding_as_published_and_minimal():
    assert ClusterMixer(**SMALL)._padding(9) == (1, 2)  # a whole fold when divisible
    assert ClusterMixer(**SMALL)._padding(10) == (1, 1)
    assert ClusterMixer(**SMALL, pad="minimal")._padding(9) == (0, 0)
    assert ClusterMixer(**SMALL, pad="minimal")._padding(10) == (1, 1)


def test_assignments_are_distributions_and_number_the_windows():
    mixer = randomised()
    found = mixer.assignments(torch.randn(2, 8, 10, 12))
    assert found.patch.shape == (2, 2, 4, 8, 10)
    assert found.window.shape == (2, 2, 4, 3, 3)
    torch.testing.assert_close(found.patch.sum(2), torch.ones(2, 2, 8, 10))
    torch.testing.assert_close(found.window.sum(2), torch.ones(2, 2, 3, 3))
    # 8 pixels padded to 9 and 10 padded to 12, one before: windows of 3 rows and 4 columns
    assert found.window_index[:, 0].tolist() == [0, 0, 0, 3, 3, 3, 6, 6]
    assert found.window_index[0].tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


def test_layer_scale_multiplies_the_output():
    mixer, x, scale = randomised(), torch.randn(1, 7, 7, 12), torch.rand(12)
    torch.testing.assert_close(mixer(x, scale), mixer(x) * scale, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
def test_lifts_against_geoopt(c):
    """'space' is the exponential map at the origin; 'ambient' is what geoopt does when handed a d-vector."""
    u = torch.randn(50, 6, dtype=torch.float64) * 0.6
    clipped = u * (1 / u.norm(dim=-1, keepdim=True)).clamp(max=1)
    manifold = geoopt.Lorentz(k=1 / c).double()
    curvature = torch.tensor([c], dtype=torch.float64)
    tangent = torch.cat([torch.zeros(50, 1, dtype=torch.float64), clipped], -1)
    expected = manifold.expmap0(tangent)
    torch.testing.assert_close(ClusterMixer(**SMALL, lift="space")._lift(u, curvature), expected, rtol=1e-7, atol=1e-7)
    expected = manifold.expmap0(clipped)
    torch.testing.assert_close(ClusterMixer(**SMALL)._lift(u, curvature), expected, rtol=1e-7, atol=1e-7)


def test_lift_space_gives_another_clustering():
    ambient = randomised()
    space = ClusterMixer(**SMALL, lift="space")
    space.load_state_dict(ambient.state_dict())
    x = torch.randn(1, 9, 9, 12)
    assert (ambient(x) - space(x)).abs().max() > 1e-4


def test_norm_over_both_levels_is_a_group_norm_of_their_concatenation():
    mixer = randomised(norm=True, pad="minimal")
    x = torch.randn(2, 9, 9, 12)
    seen = []
    mixer.norm.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    out = mixer(x)
    (levels, normed) = seen[0]
    assert levels.shape == (2, 24, 9, 9)
    window = levels[:, 12:].reshape(2, 12, 3, 3, 3, 3)  # constant inside each window
    assert (window - window[:, :, :, :1, :, :1]).abs().max() == 0
    expected = F.linear(F.group_norm(levels, 1, mixer.norm.weight, mixer.norm.bias).permute(0, 2, 3, 1),
                        mixer.proj.weight, mixer.proj.bias)  # fmt: skip
    torch.testing.assert_close(out, expected)
    assert normed.shape == levels.shape


def test_bfloat16_autocast_is_close_and_finite():
    mixer, x = randomised(), torch.randn(2, 9, 12, 12)
    expected = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        out = mixer(x)
    out.float().sum().backward()
    assert (out.float() - expected).norm() / expected.norm() < 0.05
    assert all(torch.isfinite(p.grad).all() for p in mixer.parameters())


def test_half_precision_distances_are_computed_in_float32():
    mixer = randomised()
    u = torch.randn(1, 2, 4, 6)
    exact = mixer._distance(u, u + 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        assert (mixer._distance(u, u + 0.1) - exact).abs().max() == 0
