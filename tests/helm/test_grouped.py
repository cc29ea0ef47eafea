"""The linear maps of groups, as an operation that compilers take as one."""

import pytest
import torch
import torch.nn.functional as F

from hypvision.helm.experts import grouped_linear


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
