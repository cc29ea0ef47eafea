"""The map against the literal chain, a dense block-diagonal matrix, and finite differences."""

import math

import pytest
import torch

from hypvision.clip.adapters.block_map import (
    CLIP_RADIUS,
    BlockMap,
    block_product,
    map_matrices,
    map_packed,
    map_rows,
    map_rows_literal,
)
from hypvision.errors import HypvisionError


def blocks(k, n, noise=0.3):
    return torch.eye(n, dtype=torch.double) + noise * torch.randn(k, n, n, dtype=torch.double)


def rows(*shape, scale=1.0):
    return torch.randn(*shape, dtype=torch.double) * scale


def test_block_product_is_that_of_the_dense_matrix():
    for k, n in ((4, 8), (1, 32), (32, 1)):
        s, x = blocks(k, n), rows(3, 5, 32)
        dense = torch.block_diag(*s)
        assert torch.allclose(block_product(x, s), x @ dense.T, atol=1e-13)
    shared = blocks(1, 8)[0]
    assert torch.allclose(block_product(x, shared), x @ torch.block_diag(*[shared] * 4).T, atol=1e-13)


@pytest.mark.parametrize("mobius", [True, False])
@pytest.mark.parametrize("c", [0.01, 1.0])
@pytest.mark.parametrize("scale", [1e-3, 0.3, 3.0, 30.0])
def test_closed_form_is_the_literal_chain(mobius, c, scale):
    x, s = rows(7, 32, scale=scale), blocks(4, 8).requires_grad_()
    weight = torch.randn(7, 32, dtype=torch.double)
    results = []
    for function in (map_rows, map_rows_literal):
        y = function(x, s, c, mobius)
        (grad,) = torch.autograd.grad((y * weight).sum(), s)
        results.append((y.detach(), grad))
    (a, da), (b, db) = results
    assert (a - b).abs().max() <= 1e-11 * b.abs().max()
    clipped = (b.norm(dim=-1) > 0.9999 * CLIP_RADIUS / math.sqrt(c)).any()
    if not clipped or mobius:  # at the clip of the plain product the official artanh differentiates differently
        assert (da - db).abs().max() <= 2e-9 * max(1.0, float(db.abs().max()))


def test_away_from_the_clip_it_is_linear_and_beyond_it_is_not():
    x, s = rows(6, 32, scale=0.2), blocks(4, 8)
    assert torch.allclose(map_rows(x, s, 0.01), block_product(x, s), rtol=1e-12, atol=0)
    far = rows(6, 32, scale=50.0)
    mapped = map_rows(far, s, 0.01)
    assert torch.allclose(mapped.norm(dim=-1), torch.full((6,), CLIP_RADIUS / 0.1, dtype=torch.double))
    assert torch.allclose(torch.cosine_similarity(mapped, block_product(far, s)), torch.ones(6, dtype=torch.double))


def test_every_finite_row_has_a_finite_gradient():
    x = torch.stack([torch.zeros(32), torch.full((32,), 1e-30), torch.full((32,), 1e18), torch.ones(32)])
    for mobius in (True, False):
        s = blocks(4, 8).float().requires_grad_()
        x.requires_grad_()
        y = map_rows(x, s, 0.01, mobius)
        assert y.isfinite().all() and (y[0] == 0).all()
        for grad in torch.autograd.grad(y.sum(), (s, x)):
            assert grad.isfinite().all()
    s = blocks(4, 8).float().requires_grad_()
    (grad,) = torch.autograd.grad(map_rows_literal(x.detach()[:1], s, 0.01).sum(), s)
    assert grad.isnan().any()  # as in the official code: what the closed form is there to avoid


@pytest.mark.parametrize("clip", [None, 0.8, 100.0])
def test_batched_matrices(clip):
    """The batched product is the map of each matrix, and its own backward pass is right."""
    g, d, n = 3, 8, 4
    w, s = rows(g, d, d), torch.stack([blocks(d // n, n) for _ in range(g)]).requires_grad_()
    cut = w.unflatten(-1, (-1, n)).transpose(1, 2).contiguous()
    limit = None
    if clip is not None:
        limit = (clip / CLIP_RADIUS * math.atanh(1 - 1e-5) / w.norm(dim=-1)).clamp(max=1)
    out = map_matrices(s, cut, limit, clip)
    for i in range(g):
        if clip is None:
            expected = block_product(w[i], s[i])
        else:
            expected = map_rows(w[i], s[i], (CLIP_RADIUS / clip) ** 2)
        assert torch.allclose(out[i], expected, atol=1e-13)
    if clip == 0.8:
        length = out.norm(dim=-1)
        assert (length > 0.8 - 1e-9).any() and (length < 0.79).any() or (length > 0.8 - 1e-9).all()
    assert torch.autograd.gradcheck(lambda s: map_matrices(s, cut, limit, clip), s)


@pytest.mark.parametrize("clip", [None, 0.8, 100.0])
@pytest.mark.parametrize("chunks", [(0, 1, 2), (2, 0)])
def test_packed_matrices(clip, chunks):
    """The same without rearranged weights: thirds of packed projections, of which the others stay as they are."""
    layers, d, n = 2, 6, 3
    packed = [rows(3 * d, d) for _ in range(layers)]
    s = torch.stack([blocks(d // n, n) for _ in range(layers * len(chunks))]).unflatten(0, (layers, -1))
    s.requires_grad_()
    limit = None
    if clip is not None:
        c = (CLIP_RADIUS / clip) ** 2
        kept = torch.stack([torch.stack([weight.chunk(3)[i] for i in chunks]) for weight in packed])
        limit = (math.atanh(1 - 1e-5) / (c**0.5 * kept.norm(dim=-1))).clamp(max=1)
    found = map_packed(s, packed, limit, clip, chunks)
    for i, (weight, out) in enumerate(zip(packed, found)):
        for number, (w, o) in enumerate(zip(weight.chunk(3), out.chunk(3))):
            if number not in chunks:
                assert torch.equal(w, o)
                continue
            block = s[i, chunks.index(number)]
            expected = block_product(w, block) if clip is None else map_rows(w, block, c)
            assert torch.allclose(o, expected, atol=1e-13)
    if clip == 0.8:
        length = torch.cat([out.chunk(3)[chunks[0]] for out in found]).norm(dim=-1)
        assert (length > 0.8 - 1e-9).any()
    assert torch.autograd.gradcheck(lambda s: map_packed(s, packed, limit, clip, chunks), s)
    (grad,) = torch.autograd.grad(map_packed(s, packed, limit, clip, chunks)[0].sum(), s)
    assert (grad[0] != 0).any() and (grad[1] == 0).all()


def test_radius_is_scaled_by_a_multiple_of_the_identity_and_bounded():
    """Theorem 1: the radius grows with each |s_k| of a diagonal S, and ends at the projection."""
    x = rows(5, 16, scale=0.5)
    for factor in (0.5, 1.0, 2.0):
        assert torch.allclose(map_rows(x, factor * torch.eye(16, dtype=torch.double), 0.01), factor * x)
    s = torch.rand(16, 1, 1, dtype=torch.double) * 3
    before = map_rows(x, s, 1.0).norm(dim=-1)
    for k in range(16):
        larger = s.clone()
        larger[k] *= 1.5
        assert (map_rows(x, larger, 1.0).norm(dim=-1) >= before - 1e-12).all()
    assert map_rows(1e3 * x, s, 1.0).norm(dim=-1).max() <= CLIP_RADIUS + 1e-9


def test_module():
    module = BlockMap(32, 8)
    x = torch.randn(4, 32)
    assert module.weights.shape == (4, 8, 8) and torch.equal(module(x), x)
    assert BlockMap(32, 8, shared=True).weights.shape == (8, 8)
    assert BlockMap(32, 1).weights.shape == (32, 1, 1)
    assert BlockMap(32, 8)(x.half()).dtype == torch.float16
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(x), x)  # the map itself stays in float32
    with pytest.raises(HypvisionError, match="128 does not divide the width 32. Use one of 8, 16, 32"):
        BlockMap(32)
    with pytest.raises(HypvisionError, match="c > 0"):
        BlockMap(32, 8, c=0.0)
