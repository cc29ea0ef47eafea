"""Experts: the linear maps of groups, and all experts at once."""

import pytest
import torch
import torch.nn.functional as F

from hypvision.helm import experts, preset
from hypvision.helm.experts import grouped_linear
from hypvision.helm.layers import Layout


@pytest.mark.parametrize("biased", [True, False])
def test_groups(biased):
    """Against each row by itself; the second group is empty."""
    generator = torch.Generator().manual_seed(0)
    sizes = [3, 0, 4]
    own = torch.tensor([0] * 3 + [2] * 4)
    x, *maps = (
        torch.randn(s, dtype=torch.float64, generator=generator)
        for s in ((7, 5), *[(6, 5)] * 3, *[(6,)] * 3)
    )
    x, *maps = (t.requires_grad_() for t in (x, *maps))
    weights, biases = maps[:3], maps[3:] if biased else []
    out = grouped_linear(x, torch.tensor(sizes), weights, biases)
    expected = torch.stack(
        [F.linear(x[i], weights[e], biases[e] if biased else None) for i, e in enumerate(own)]
    )
    torch.testing.assert_close(out, expected)
    inputs, wanted = [x, *weights, *biases], []
    for result in (out, expected):
        wanted.append(torch.autograd.grad(result.sin().sum(), inputs, materialize_grads=True))
    for ours, plain in zip(*wanted):
        torch.testing.assert_close(ours, plain)
    torch.library.opcheck(grouped_linear, (x, torch.tensor(sizes), weights, biases))


@pytest.mark.parametrize("changes", [{}, dict(geometry="euclidean", pad=1)])
def test_all_experts_for_all_tokens_compute_the_same(changes, monkeypatch):
    """As a GPU does for few tokens, beside the sorted tokens of a CPU."""
    torch.manual_seed(0)
    config = preset("helm_mice_tiny", **changes)
    mixture = experts.MixtureOfCurvatures(config).double()
    space = torch.randn(2, 9, config.dim - config.lorentz, dtype=torch.float64)
    x = torch.zeros(2, 9, Layout(config.dim, config).width, dtype=torch.float64)
    x[..., : space.shape[-1]] = space
    if config.lorentz:
        x[..., space.shape[-1]] = torch.sqrt(space.square().sum(-1) + 1)
    x.requires_grad_()
    weights = dict(mixture.named_parameters())
    found = []
    for small in (False, True):
        monkeypatch.setattr(experts, "_is_small", lambda *_, small=small: small)
        out, routing = mixture(x)
        total = out.sin().sum() + routing.balance
        grads = torch.autograd.grad(
            total, [x, *weights.values()], materialize_grads=True, allow_unused=True
        )
        found.append([out, *grads])
    for sorted_, whole in zip(*found):
        torch.testing.assert_close(whole, sorted_)


def test_few_tokens_of_a_gpu_make_nobody_wait():
    config = preset("helm_mice_120m", vocab_size=64, n_layers=1)
    with torch.device("meta"):
        own = list(experts.MixtureOfCurvatures(config).experts)
    width = Layout(config.dim, config).width
    assert experts._is_small(torch.empty(1024, width, device="meta"), own, 2)
    assert not experts._is_small(torch.empty(2**16, width, device="meta"), own, 2)
    assert not experts._is_small(torch.empty(1, width), own, 2)
