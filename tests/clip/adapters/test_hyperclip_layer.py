"""The map against the reference, a dense block-diagonal matrix, and finite differences."""

import math

import mpmath
import pytest
import torch
from helpers.cases import each
from references.hyperclip import map_rows_reference

from hypvision.clip.adapters.hyperclip import BlockMaps, HyperCLIPConfig, layer
from hypvision.clip.adapters.hyperclip.layer import (
    CLIP_RADIUS,
    block_product,
    map_rows,
    map_several,
)
from hypvision.io.errors import HypvisionError


def blocks(k, n, noise=0.3):
    return torch.eye(n, dtype=torch.double) + noise * torch.randn(k, n, n, dtype=torch.double)


def rows(*shape, scale=1.0):
    return torch.randn(*shape, dtype=torch.double) * scale


def map_packed(packed, s, *options):
    return map_several([packed], [s], *options)[0]


def test_block_product_is_that_of_the_dense_matrix():
    for k, n in ((4, 8), (1, 32), (32, 1)):
        s, x = blocks(k, n), rows(3, 5, 32)
        dense = torch.block_diag(*s)
        assert torch.allclose(block_product(x, s), x @ dense.T, atol=1e-13)
    shared = blocks(1, 8)[0]
    assert torch.allclose(
        block_product(x, shared), x @ torch.block_diag(*[shared] * 4).T, atol=1e-13
    )


@each("mobius", [True, False])
@each("c, scale", [(0.01, 1e-3), (0.01, 30.0), (1.0, 0.3), (1.0, 3.0)])
def test_closed_form_is_the_reference(mobius, c, scale):
    x, s = rows(7, 32, scale=scale), blocks(4, 8).requires_grad_()
    weight = torch.randn(7, 32, dtype=torch.double)
    results = []
    for function in (map_rows, map_rows_reference):
        y = function(x, s, c, mobius)
        (grad,) = torch.autograd.grad((y * weight).sum(), s)
        results.append((y.detach(), grad))
    (a, da), (b, db) = results
    assert (a - b).abs().max() <= 1e-11 * b.abs().max()
    clipped = (b.norm(dim=-1) > 0.9999 * CLIP_RADIUS / math.sqrt(c)).any()
    if (
        not clipped or mobius
    ):  # at the clip of the plain product the official artanh differentiates differently
        assert (da - db).abs().max() <= 2e-9 * max(1.0, float(db.abs().max()))


def test_radii_of_the_clips_are_the_published_ones():
    """A_0 = 6.1030 and A_1 = 3.80020, over the root of c, with numbers that no constant of the code
    gives."""
    assert abs(CLIP_RADIUS - 3.80020) < 1e-5
    far = torch.eye(8, dtype=torch.double) * 100
    for function in (map_rows, map_rows_reference):
        for c in (1.0, 0.25):
            long = function(far, torch.eye(8, dtype=torch.double)[None], c).norm(dim=-1)
            assert torch.allclose(long, torch.full_like(long, 3.80020 / c**0.5), atol=2e-5)
            short = function(far, 0.01 * torch.eye(8, dtype=torch.double)[None], c).norm(dim=-1)
            assert torch.allclose(short, torch.full_like(short, 0.061030 / c**0.5), atol=1e-6)


def test_artanh_over_its_argument_to_the_last_digits():
    """On both sides of the change from the series to the function."""
    z = torch.tensor([0.0, 1e-3, 9.999e-3, 1.0001e-2, 0.5], dtype=torch.double)
    with mpmath.workdps(40):
        expected = [
            1.0,
            *(float(mpmath.atanh(mpmath.mpf(v)) / mpmath.mpf(v)) for v in z.tolist()[1:]),
        ]
    torch.testing.assert_close(
        layer._atanhc(z), torch.tensor(expected, dtype=torch.double), rtol=5e-16, atol=0
    )


def test_away_from_the_clip_it_is_linear_and_beyond_it_is_not():
    x, s = rows(6, 32, scale=0.2), blocks(4, 8)
    assert torch.allclose(map_rows(x, s, 0.01), block_product(x, s), rtol=1e-12, atol=0)
    far = rows(6, 32, scale=50.0)
    mapped = map_rows(far, s, 0.01)
    assert torch.allclose(
        mapped.norm(dim=-1), torch.full((6,), CLIP_RADIUS / 0.1, dtype=torch.double)
    )
    assert torch.allclose(
        torch.cosine_similarity(mapped, block_product(far, s)), torch.ones(6, dtype=torch.double)
    )


def test_every_finite_row_has_a_finite_gradient():
    x = torch.stack(
        [torch.zeros(32), torch.full((32,), 1e-30), torch.full((32,), 1e18), torch.ones(32)]
    )
    for mobius in (True, False):
        s = blocks(4, 8).float().requires_grad_()
        x.requires_grad_()
        y = map_rows(x, s, 0.01, mobius)
        assert y.isfinite().all() and (y[0] == 0).all()
        for grad in torch.autograd.grad(y.sum(), (s, x)):
            assert grad.isfinite().all()
    s = blocks(4, 8).float().requires_grad_()
    zero = map_rows_reference(x.detach()[:1], s, 0.01)
    assert (zero == 0).all()
    (grad,) = torch.autograd.grad(zero.sum(), s)
    assert grad.isnan().any()  # as in the official code: what the closed form is there to avoid


@pytest.fixture(params=["one by one", "batched"])
def way(request, monkeypatch):
    """How a packed projection is mapped: as on a CPU, as on a GPU."""
    monkeypatch.setattr(layer, "SMALL", 1 if request.param == "one by one" else 10**9)


@pytest.mark.parametrize("c", [None, 0.01, 2.5])
@pytest.mark.parametrize("thirds", [(0, 1, 2), (2, 0)])
def test_packed_projection(c, thirds, way):
    """It is the map of each third, the others stay as they are, and its own backward pass is
    right."""
    torch.manual_seed(0)
    d, n = 6, 3
    packed = rows(3 * d, d)
    s = torch.stack([blocks(d // n, n) for _ in thirds]).requires_grad_()
    out = map_packed(packed, s, c, thirds)
    for number, (w, o) in enumerate(zip(packed.chunk(3), out.chunk(3))):
        if number not in thirds:
            assert torch.equal(w, o)
            continue
        block = s[thirds.index(number)]
        assert torch.allclose(
            o, block_product(w, block) if c is None else map_rows(w, block, c), atol=1e-13
        )
    if c == 2.5:  # some rows are clipped, others not
        radius, length = (
            CLIP_RADIUS / c**0.5,
            torch.cat([out.chunk(3)[i] for i in thirds]).norm(dim=-1),
        )
        assert (length > radius - 1e-9).any() and (length < radius - 1e-3).any()
    assert torch.autograd.gradcheck(lambda s: map_packed(packed, s, c, thirds), s)


def test_packed_projection_where_the_input_is_clipped(way):
    """Long rows that short blocks bring back: the limit of the input acts, that of the output does
    not."""
    torch.manual_seed(0)
    packed = rows(9, 3)
    packed = 50 * packed / packed.norm(dim=-1, keepdim=True)
    s = (0.02 * blocks(3, 3)[:, None]).requires_grad_()
    out = map_packed(packed, s, 1.0)
    assert out.norm(dim=-1).max() < CLIP_RADIUS / 2
    for w, o, block in zip(packed.chunk(3), out.chunk(3), s):
        linear = block_product(w, block)
        assert torch.allclose(
            o, linear * math.atanh(1 - 1e-5) / 50, atol=1e-13
        ) and not torch.allclose(o, linear)
        assert torch.allclose(o, map_rows_reference(w, block, 1.0), atol=1e-11)
    assert torch.autograd.gradcheck(lambda s: map_packed(packed, s, 1.0), s)


def test_radius_is_scaled_by_a_multiple_of_the_identity_and_bounded():
    """Theorem 1: the radius grows with each |s_k| of a diagonal S, and ends at the projection."""
    x = rows(5, 16, scale=0.5)
    for factor in (0.5, 1.0, 2.0):
        assert torch.allclose(
            map_rows(x, factor * torch.eye(16, dtype=torch.double), 0.01), factor * x
        )
    s = torch.rand(16, 1, 1, dtype=torch.double) * 3
    before = map_rows(x, s, 1.0).norm(dim=-1)
    for k in range(16):
        larger = s.clone()
        larger[k] *= 1.5
        assert (map_rows(x, larger, 1.0).norm(dim=-1) >= before - 1e-12).all()
    assert map_rows(1e3 * x, s, 1.0).norm(dim=-1).max() <= CLIP_RADIUS + 1e-9


def test_module():
    def maps(dim=32, **options):
        return BlockMaps(dim, HyperCLIPConfig(**{"block": 8, **options}), 0.01)

    module, packed = maps(), torch.randn(96, 32)
    assert module.q.shape == (4, 8, 8) and torch.equal(module(packed), packed)
    assert maps(shared=True).q.shape == (8, 8) and maps(block=1).v.shape == (32, 1, 1)
    assert [name for name, _ in maps(projections="vq").named_parameters()] == ["v", "q"]
    assert maps()(packed.half()).dtype == torch.float16
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(packed), packed)  # the map itself stays in float32
    with pytest.raises(
        HypvisionError, match="128 does not divide the width 32. Use one of 8, 16, 32"
    ):
        maps(block=128)
    with pytest.raises(HypvisionError, match="A block of 0 does not divide"):
        maps(block=0)


@pytest.mark.parametrize("mobius", [True, False])
def test_module_computes_what_its_options_say(mobius):
    """Where rows are clipped, so that the product of the paper and the plain one differ."""
    config = HyperCLIPConfig(block=8, mobius=mobius)
    module, packed = BlockMaps(32, config, 1.0).double(), rows(96, 32, scale=0.5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        found = module(packed)
        for other in (True, False):
            expected = torch.cat(
                [map_rows(w, s, 1.0, other) for w, s in zip(packed.chunk(3), module.parameters())]
            )
            assert torch.allclose(found, expected, rtol=1e-9) == (other == mobius)


def test_what_is_kept_and_what_is_not():
    module, packed = (
        BlockMaps(32, HyperCLIPConfig(block=8), 0.01),
        torch.nn.Parameter(torch.randn(96, 32), False),
    )
    with torch.no_grad():
        first = module(packed)
        assert module(packed) is first
        packed.mul_(2)
        assert torch.equal(module(packed), packed)
        other = torch.nn.Parameter(packed.clone(), False)
        assert torch.equal(module(other), packed)
        module.q.mul_(2)
        assert torch.equal(module(packed)[:32], 2 * packed[:32])
        module.q.data.mul_(0.5)  # unseen, as weights averaged over time are put in place, ...
        assert torch.equal(module(packed)[:32], 2 * packed[:32])
        module.eval()  # ... until training ends
        assert torch.equal(module(packed), packed)
        kept = module(packed)
        assert module.eval()(packed) is kept and module.train().training
    assert module(packed) is not module(
        packed
    )  # outside of a forward pass each call has a graph of its own
