"""Attention with a cache beside attention without."""

import torch
from helpers.cases import each
from helpers.helm import tokens

from hypvision.helm import Helm, LatentCache, preset
from hypvision.helm.attention import Context

KINDS = {
    "D": ("helm_d_tiny", {}),
    "MiCE": ("helm_mice_tiny", {}),
    "MiCE, adapted": ("helm_mice_tiny", {}),
    "LLaMA-like": ("helm_d_tiny", dict(geometry="euclidean")),
    "DeepSeek-like": ("helm_mice_tiny", dict(geometry="euclidean")),
}
LENGTH, LAST = 120, 20


class Adapted(torch.nn.Module):
    """A map that is none of ours, as adapters are; keys and values are then built again."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    weight, bias = property(lambda self: self.inner.weight), property(lambda self: self.inner.bias)

    def forward(self, x):
        return self.inner(x)


def last_heads(attention, points, cached):
    """The weighted means of the last tokens, ``(B, LAST, H, value)``."""
    found, cache = [], LatentCache() if cached else None
    hook = attention.finish
    attention.finish = lambda heads: (
        found.append(heads[..., : attention.value].clone()),
        hook(heads),
    )[1]
    middle = LENGTH - LAST // 2
    cuts = [0, LENGTH - LAST, *range(middle, LENGTH + 1)] if cached else [0, LENGTH]
    for begin, end in zip(cuts, cuts[1:]):
        mask = None
        if begin:
            place = torch.arange(end)
            mask = (place <= place[begin:end, None])[None, None]
        attention(points[:, begin:end], Context(begin, mask, None, cache))
    del attention.finish
    return torch.cat(found, 1)[:, -LAST:]


@each("kind", KINDS)
@torch.no_grad()
def test_a_cache_in_half_precision_loses_no_more_than_none(kind):
    """Inputs are rounded, sums and times are not: both are off from float32 by what bfloat16
    rounds."""
    name, options = KINDS[kind]
    model = Helm(preset(name, **options)).eval()
    attention = model.layers[0].attn
    points = model.first_norm(model.points(tokens(2, LENGTH)))
    (attention.qkv if name == "helm_d_tiny" else attention.up).weight.mul_(
        3
    )  # keys and values that are far out
    if "adapted" in kind:
        attention.up = Adapted(attention.up)
    exact = last_heads(attention, points, False)
    torch.testing.assert_close(last_heads(attention, points, True), exact, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        full, cached = (
            last_heads(attention, points, given).float() - exact for given in (False, True)
        )
    assert 0 < cached.norm() < 1.05 * full.norm()
