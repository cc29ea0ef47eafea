"""The mixer's options and borders; its numbers are pinned in tests/models/test_hcformer.py."""

import geoopt
import mpmath
import pytest
import torch
import torch.nn.functional as F
from helpers.cases import each
from references.hcformer import ClusterMixer as ReferenceMixer

from hypvision.nn import ClusterMixer, cluster_mixer

SMALL = dict(dim=12, heads=2, head_dim=6, fold=3, prop=2, win=2, nominal_size=9)


def randomised(**kwargs):
    mixer = ClusterMixer(**{**SMALL, **kwargs})
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(0, 0.5)
    return mixer


@each("argument, value", [
        ("curvature", 0.0), ("curvature", -1.0), ("fold", 0), ("prop", -2), ("win", 1.5),
        ("heads", 0), ("pad", "some"), ("lift", "klein"), ("nominal_size", 0), ("alpha", 0.0),
        ("window_alpha", float("inf")), ("locality", -1.0), ("locality", float("nan")),
        ("patch_geometry", "flat"), ("window_geometry", "klein"),
    ])  # fmt: skip
def test_bad_arguments_are_named(argument, value):
    with pytest.raises(ValueError, match=argument):
        ClusterMixer(**{**SMALL, argument: value})


@each("size", [(1, 1), (2, 3), (9, 9), (10, 17), (5, 31)])
@each("pad", ["always", "minimal"])
@each("window_level", [True, False])
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
    points = torch.randn(2, 4, 6)
    centers, scale = points + 0.1, torch.ones(1)
    exact = mixer._nearness(points, centers, scale)
    with torch.autocast("cpu", torch.bfloat16):
        assert (mixer._nearness(points, centers, scale) - exact).abs().max() == 0
    rounded = points.bfloat16(), centers.bfloat16()
    expected = mixer._nearness(rounded[0].float(), rounded[1].float(), scale)
    torch.testing.assert_close(
        mixer._nearness(*rounded, scale).float(), expected, rtol=2**-8, atol=0
    )


def exact_distance(u, v, c, lift):
    """Distance of two features, clipped and lifted as the paper's code does, in 50 digits."""

    def lifted(feature):
        w = [mpmath.mpf(value) for value in feature.tolist()]
        longest = max(mpmath.norm(w), 1)
        w = [value / longest for value in w]
        square = sum(value**2 for value in w)
        if lift == "ambient":
            square -= 2 * w[0] ** 2
            w = w[1:]
        root = mpmath.sqrt(c * max(square, mpmath.mpf("1e-8")))
        space = [value * mpmath.sinh(root) / root for value in w]
        return mpmath.sqrt(1 / c + sum(value**2 for value in space)), space

    with mpmath.workdps(50):
        c = mpmath.mpf(c)
        (time, space), (time_, space_) = lifted(u), lifted(v)
        inner = time * time_ - mpmath.fdot(space, space_)
        return float(mpmath.acosh(max(c * inner, 1)) / mpmath.sqrt(c))


@each("lift", ["ambient", "space"])
@each("curvature", [0.1, 1.0, 10.0])
@each("size", [1e-5, 0.3, 3.0])  # below the clamp, in the ball, clipped to it
@each("gap", [0.0, 1e-6, 1e-3, 1.0])
def test_distances_are_exact_to_float32_round_off(lift, curvature, size, gap):
    mixer, generator = (
        ClusterMixer(**SMALL, lift=lift, curvature=curvature),
        torch.Generator().manual_seed(1),
    )
    tokens, moves = torch.randn(2, 3, 6, generator=generator)
    tokens = tokens * (size / tokens.norm(dim=1, keepdim=True))
    centers = tokens + gap * size * moves
    found = mixer._nearness(tokens[None], centers[None], torch.full((1,), 2.0))[0] / -2
    expected = [
        [exact_distance(center, token, curvature, lift) for token in tokens] for center in centers
    ]
    torch.testing.assert_close(
        found.double(), torch.tensor(expected).double(), rtol=2e-7, atol=2e-7
    )


@pytest.mark.parametrize("curvature", [0.1, 10.0])
def test_gradients_of_distances_are_those_of_geoopt_in_float64(curvature):
    mixer, manifold = (
        ClusterMixer(**SMALL, curvature=curvature),
        geoopt.Lorentz(k=1 / curvature).double(),
    )
    features = torch.cat([torch.randn(2, 4, 6), 0.1 * torch.randn(2, 3, 6)], 1).requires_grad_()
    weights = torch.randn(2, 3, 4)
    (mixer._nearness(features[:, :4], features[:, 4:], torch.ones(1)) * weights).sum().backward()
    wide = features.detach().double().requires_grad_()
    lifted = manifold.expmap0(wide / wide.norm(dim=-1, keepdim=True).clamp(min=1))
    distances = manifold.dist(lifted[:, 4:, None], lifted[:, None, :4])
    (-distances * weights).sum().backward()
    torch.testing.assert_close(features.grad.double(), wide.grad, rtol=1e-5, atol=1e-5)


@each("ambient", [False, True])
@each("c", [0.1, 1.0, 10.0])
def test_lifts_by_hand_are_those_of_plain_operations(c, ambient):
    """Below the least norm, in the ball, clipped to it, and where the first feature is longest."""
    u = torch.randn(4, 3, 4, dtype=torch.float64)
    u = u * (torch.tensor([1e-5, 0.3, 3, 0.3]) / u.norm(dim=-1).max(1).values)[:, None, None]
    u[3, :, 0] = 0.7
    assert not ambient or (u[3, :, 1:].norm(dim=-1) < 0.7).all()
    u.requires_grad_()

    def lifted(u):
        return cluster_mixer._Lifted.apply(u, c, ambient)

    expected = cluster_mixer._lifted(u, c, ambient)
    torch.testing.assert_close(lifted(u), expected)
    cotangent = torch.randn_like(expected)
    [wanted] = torch.autograd.grad(expected, u, cotangent)
    for again in (False, True):  # what is derived again is computed in another way
        [found] = torch.autograd.grad(lifted(u), u, cotangent, create_graph=again)
        torch.testing.assert_close(found, wanted)
    assert torch.autograd.gradcheck(lifted, u[1:])
    assert torch.autograd.gradgradcheck(lifted, u[1:])


def test_the_gradient_of_a_crop_has_a_border_of_zeros():
    x = torch.randn(2, 5, 6, 3, dtype=torch.float64, requires_grad=True)

    def cropped(x):
        return cluster_mixer._Cropped.apply(x, 1, 0, 3, 4)

    assert torch.equal(cropped(x), x[:, 1:4, :4])
    assert torch.autograd.gradcheck(cropped, x) and torch.autograd.gradgradcheck(cropped, x)


def reference(mixer, x, lift, norm):
    """The mixer as the paper words it, in double; fold divides the sides of ``x``
    ``(B, H, W, C)``."""
    e, d, n, c = mixer.heads, mixer.head_dim, mixer.fold, mixer.curvature
    batch, height, width, _ = x.shape
    h, w = height // n, width // n
    maps = [
        layer(x).reshape(batch, height, width, e, d).permute(0, 3, 4, 1, 2)
        for layer in (mixer.feature, mixer.value)
    ]
    feature, value = (m.reshape(batch * e, d, height, width) for m in maps)

    def cluster(logits, points, centers):  # (.., M, N), (.., N, d), (.., M, d)
        a = logits.softmax(-2)
        updated = (a @ points + centers) / (a.sum(-1, keepdim=True) + 1)
        return a.transpose(-1, -2) @ updated

    def pooled(window, side):
        return F.adaptive_avg_pool2d(window, side).flatten(2).transpose(1, 2)

    position = F.interpolate(
        mixer.bias, (height, width), mode="bilinear", align_corners=True
    ).repeat(batch, 1, 1, 1)
    patch, means, mean_values = torch.zeros_like(value), [], []
    for i in range(n):
        for j in range(n):
            cut = (..., slice(i * h, (i + 1) * h), slice(j * w, (j + 1) * w))
            f, v = feature[cut], value[cut]
            means.append(f.mean((2, 3)))
            f = f - means[-1][..., None, None] if mixer.center else f
            mean_values.append(v.mean((2, 3)))
            cosine = F.normalize(pooled(f, mixer.prop), dim=-1) @ F.normalize(f.flatten(2), dim=1)
            logits = position[cut].flatten(2) + mixer.alpha * cosine
            mixed = cluster(logits, v.flatten(2).transpose(1, 2), pooled(v, mixer.prop))
            patch[cut] = mixed.transpose(1, 2).reshape(-1, d, h, w)
    means, mean_values = torch.stack(means, 1), torch.stack(mean_values, 1)
    window_centers = pooled(feature, mixer.win)
    if mixer.center:
        origin = means.mean(1, keepdim=True)
        means, window_centers = means - origin, window_centers - origin

    manifold = geoopt.Lorentz(k=1 / c).double()

    def lifted(u):
        u = u / u.norm(dim=-1, keepdim=True).clamp(min=1)
        return manifold.expmap0(F.pad(u, (1, 0)) if lift == "space" else u)

    centers, points = lifted(window_centers), lifted(means)
    distance = manifold.dist(centers.unsqueeze(2), points.unsqueeze(1))
    logits = mixer.window_bias.flatten(2).repeat(batch, 1, 1) - mixer.window_alpha * distance
    mixed = (
        cluster(logits, mean_values, pooled(value, mixer.win))
        .transpose(1, 2)
        .reshape(batch * e, d, n, n)
    )
    window = F.interpolate(mixed, (height, width), mode="nearest")
    out = torch.cat([level.reshape(batch, e * d, height, width) for level in (patch, window)], 1)
    if norm:
        out = F.group_norm(out, 1, mixer.norm.weight, mixer.norm.bias)
    return mixer.proj(out.permute(0, 2, 3, 1))


@each("lift", ["ambient", "space"])
@each("norm", [False, True])
@each("curvature, center", [(0.1, False), (10.0, True)])
def test_equals_the_formulas_for_every_option(lift, norm, curvature, center):
    mixer = randomised(
        pad="minimal", lift=lift, norm=norm, curvature=curvature, center=center
    ).double()
    x = torch.randn(2, 9, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(mixer(x), reference(mixer, x, lift, norm), rtol=1e-6, atol=1e-6)


@each("pad", ["always", "minimal"])
@each("size", [(9, 9), (7, 13)])
def test_padding_reflects_and_is_cut_off_again(pad, size):
    mixer = randomised(pad=pad)
    x = torch.randn(1, *size, 12)
    (top, bottom), (left, right) = (mixer._padding(side) for side in size)
    padded = F.pad(x.permute(0, 3, 1, 2), (left, right, top, bottom), mode="reflect").permute(
        0, 2, 3, 1
    )
    mixer.pad_always = False  # the sides are multiples of fold now
    expected = mixer(padded)[:, top : top + size[0], left : left + size[1]]
    mixer.pad_always = pad == "always"
    torch.testing.assert_close(mixer(x), expected)


def test_assignments_are_those_of_forward():
    """Aggregating and dispatching with the assignments handed out gives the output."""
    mixer = randomised(pad="minimal", window_level=False).double()
    x = torch.randn(1, 9, 9, 12, dtype=torch.float64)
    patch = mixer.assignments(x).patch[0]
    value = mixer.value(x)[0].reshape(9, 9, 2, 6)
    out = torch.zeros(9, 9, 2, 6, dtype=torch.float64)
    for i in range(0, 9, 3):
        for j in range(0, 9, 3):
            a = patch[:, :, i : i + 3, j : j + 3].flatten(2)
            v = value[i : i + 3, j : j + 3].permute(2, 0, 1, 3)
            centers = F.adaptive_avg_pool2d(v.permute(0, 3, 1, 2), 2).flatten(2).transpose(1, 2)
            updated = (a @ v.flatten(1, 2) + centers) / (a.sum(-1, keepdim=True) + 1)
            out[i : i + 3, j : j + 3] = (
                (a.transpose(1, 2) @ updated).reshape(2, 3, 3, 6).permute(1, 2, 0, 3)
            )
    torch.testing.assert_close(mixer(x)[0], mixer.proj(out.flatten(2)))


@each("kind", ["zeros", "constant", "large"])
@each("lift", ["ambient", "space"])
@each("center", [False, True])
def test_degenerate_inputs_have_finite_gradients(kind, lift, center):
    """All points of the hyperboloid coincide, or all lie on the border of the clip."""
    mixer = ClusterMixer(**SMALL, lift=lift, center=center)
    x = {
        "zeros": torch.zeros(1, 9, 9, 12),
        "constant": torch.ones(1, 9, 9, 12),
        "large": 1e6 * torch.randn(1, 9, 9, 12),
    }
    x = x[kind].requires_grad_()
    out = mixer(x)
    out.sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in mixer.parameters())


def test_temperatures_are_initial_values():
    mixer = ClusterMixer(**SMALL, alpha=8.0, window_alpha=4.0)
    assert mixer.alpha.item() == 8 and mixer.window_alpha.item() == 4
    plain = ClusterMixer(**SMALL)
    assert plain.alpha.item() == 1 and plain.window_alpha.item() == 1 and not plain.center


def test_centred_features_are_independent_of_a_common_part():
    """A shift of all features changes neither level's assignments, and one that varies within a
    window does."""
    mixer = randomised(pad="minimal", center=True).double()
    x = torch.randn(1, 9, 9, 12, dtype=torch.float64)
    before = mixer.assignments(x)
    with torch.no_grad():
        mixer.feature.bias += 100
    after = mixer.assignments(x)
    torch.testing.assert_close(after.patch, before.patch)
    torch.testing.assert_close(after.window, before.window)
    moved = mixer.assignments(
        x + torch.linspace(0, 1, 9, dtype=torch.float64)[:, None] * torch.arange(12)
    )
    assert (moved.patch - before.patch).abs().max() > 0.01


def test_round_off_in_a_window_of_one_colour_does_not_choose_its_centres():
    mixer = randomised(pad="minimal", center=True, alpha=8.0)
    with torch.no_grad():
        mixer.bias.zero_()
    x = torch.ones(1, 9, 9, 12) + 1e-7 * torch.randn(1, 9, 9, 12)
    assert (mixer.assignments(x).patch - 0.25).abs().max() < 1e-3


@each("size, fold, prop", [((12, 18), 3, 2), ((8, 6), 1, 3), ((10, 10), 5, 1)])
def test_locality_takes_squared_distances_from_the_similarity(size, fold, prop):
    """Pixel by pixel: the logits differ by the distance to the middle of each centre's cell, in
    cells of its window."""
    options = dict(fold=fold, prop=prop, pad="minimal")
    local, x = (
        randomised(**options, locality=1.0).double(),
        torch.randn(1, *size, 12, dtype=torch.float64),
    )
    plain = ClusterMixer(**{**SMALL, **options}).double()
    plain.load_state_dict(
        {name: value for name, value in local.state_dict().items() if name != "locality"}
    )
    found, base = local.assignments(x).patch[0], plain.assignments(x).patch[0]
    rows, columns = size[0] // fold, size[1] // fold
    for head in range(2):
        for y, z in [(0, 0), (1, 3), (size[0] - 1, size[1] - 2), (size[0] // 2, size[1] // 2)]:
            inside = (y % rows + 0.5) / rows * prop, (z % columns + 0.5) / columns * prop
            logits = base[head, :, y, z].log()
            for centre in range(prop * prop):
                middle = centre // prop + 0.5, centre % prop + 0.5
                squared = (inside[0] - middle[0]) ** 2 + (inside[1] - middle[1]) ** 2
                logits[centre] -= local.locality[head] * squared
            torch.testing.assert_close(found[head, :, y, z], logits.softmax(0))


def test_much_locality_is_a_grid():
    mixer = ClusterMixer(**{**SMALL, "fold": 1, "prop": 3}, pad="minimal", locality=1e4)
    labels = mixer.assignments(torch.randn(1, 9, 12, 12)).patch.argmax(2)
    assert (
        labels
        == torch.arange(3).repeat_interleave(3)[:, None] * 3 + torch.arange(3).repeat_interleave(4)
    ).all()
    assert (
        ClusterMixer(**SMALL).locality is None
        and "locality" not in ClusterMixer(**SMALL).state_dict()
    )


@each("patch", ["euclidean", "hyperbolic"])
@each("window", ["euclidean", "hyperbolic", None])
@each("shift", [False, True])
@each("position_bias", [False, True])
def test_ablations_of_the_paper_equal_the_reference(patch, window, shift, position_bias):
    """Either geometry at either level, no window level, shifted windows, no position bias."""
    sizes = dict(dim=12, heads=2, head_dim=6, fold=3, prop=2, win=2)
    geometry = window or "hyperbolic"
    reference = ReferenceMixer(
        **sizes,
        nominal=9,
        is_global=window is not None,
        curvature=0.5,
        patch=patch,
        window=geometry,
        shift=shift,
    ).double()
    mixer = ClusterMixer(
        **sizes, nominal_size=9, window_level=window is not None, curvature=0.5,
        patch_geometry=patch, window_geometry=geometry, shift=shift, position_bias=position_bias,
    ).double()  # fmt: skip
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.normal_(0, 0.5)
            if "bias" in name and "position" in name and not position_bias:
                parameter.zero_()
    names = dict(
        f="feature", v="value", proj="proj", sim_alpha="alpha", sim_alpha2="window_alpha",
        relative_position_bias="bias", relative_position_bias2="window_bias",
    )  # fmt: skip
    own = mixer.state_dict()
    for name, value in reference.state_dict().items():
        first, dot, rest = name.partition(".")
        if (key := names[first] + dot + rest) in own:
            own[key].copy_(value.reshape(own[key].shape))
    assert ("bias" in own) == position_bias
    x = torch.randn(2, 10, 14, 12, dtype=torch.float64)
    out = mixer(x)
    torch.testing.assert_close(
        out, reference(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), rtol=1e-6, atol=1e-6
    )
    out.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())


@each("fold", [1, 3])
@each("position_bias", [False, True])
def test_one_centre_is_the_mean_of_the_map(fold, position_bias):
    """The reference compares and weighs that centre, too; what it learns for that has gradient
    0."""
    sizes = dict(dim=12, heads=2, head_dim=6, fold=fold, prop=2, win=1)
    reference = ReferenceMixer(**sizes, nominal=9, is_global=True, curvature=0.5).double()
    mixer = ClusterMixer(
        **sizes, nominal_size=9, curvature=0.5, position_bias=position_bias
    ).double()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.normal_(0, 0.5)
            if "position" in name and not position_bias:
                parameter.zero_()
        mixer.feature.weight.copy_(reference.f.weight.flatten(1))
        mixer.value.weight.copy_(reference.v.weight.flatten(1))
        mixer.proj.weight.copy_(reference.proj.weight.flatten(1))
        mixer.feature.bias.copy_(reference.f.bias)
        mixer.value.bias.copy_(reference.v.bias)
        mixer.proj.bias.copy_(reference.proj.bias)
        mixer.alpha.copy_(reference.sim_alpha)
        if position_bias:
            mixer.bias.copy_(reference.relative_position_bias.reshape(mixer.bias.shape))
    x = torch.randn(2, 10, 14, 12, dtype=torch.float64)
    out = mixer(x)
    torch.testing.assert_close(
        out, reference(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), rtol=1e-6, atol=1e-6
    )
    assert (mixer.assignments(x).window == torch.ones(2, 2, 1, fold, fold)).all()
    out.sum().backward()
    assert mixer.window_alpha.grad.abs().max() == 0
    assert not position_bias or mixer.window_bias.grad.abs().max() == 0


@pytest.mark.parametrize("shift", [False, True])
def test_assignments_of_shifted_windows_are_those_of_forward(shift):
    """Aggregation and dispatch by the drawn assignments give the mixed values."""
    mixer = randomised(shift=shift, window_level=False).double()
    x = torch.randn(1, 11, 13, 12, dtype=torch.float64)
    found = mixer.assignments(x)
    assert found.window_index.unique().tolist() == list(range(9))
    padded, top, left = mixer._features(x)
    (mixed, _), _ = mixer._levels(padded)
    whole = mixer._moved(mixed.reshape(*padded.shape[:3], -1), back=True)
    mixed = whole[0, top : top + 11, left : left + 13].reshape(11, 13, 2, 6)
    for window in range(9):  # pixels of a window with equal assignments would have equal values
        inside = found.window_index == window
        weights, values = found.patch[0, 0][:, inside], mixed[..., 0, :][inside]
        centres = torch.linalg.lstsq(weights.T, values).solution
        torch.testing.assert_close(weights.T @ centres, values, rtol=1e-6, atol=1e-6)
