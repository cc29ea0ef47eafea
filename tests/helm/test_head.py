"""The loss of a large vocabulary in blocks, against plain operations in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from hypvision.helm.head import _CrossEntropy, token_losses
from hypvision.helm.layers import RowLinear

V, WIDTH, ROWS = 8192, 8, 2048


def made(count=ROWS):
    generator = torch.Generator().manual_seed(0)
    head = RowLinear(WIDTH, V, range(WIDTH), range(V), bias=False, init="torch")
    head.weight.data.copy_(0.1 * torch.randn(V, WIDTH, generator=generator))
    hidden = torch.randn(1, count, WIDTH, generator=generator, requires_grad=True)
    return head, hidden, torch.randint(0, 64, (1, count), generator=generator)


@pytest.mark.quick("None-1e-05")
@pytest.mark.parametrize(
    "dtype, error",
    [
        (None, 1e-5),
        pytest.param(torch.float16, 5e-3, marks=pytest.mark.slow),
        (torch.bfloat16, 3e-2),
    ],
)
def test_gradients_are_those_of_float64(dtype, error):
    """Only 64 of 8192 tokens are ever the next one: probabilities of the others, divided by the
    2048 rows, are 6e-8."""
    head, hidden, target = made()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = token_losses(head, hidden, target)
    loss.backward()
    exact = [t.detach().double().requires_grad_() for t in (hidden, head.weight)]
    expected = F.cross_entropy((exact[0] @ exact[1].T)[0], target[0])
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-3)
    absent = exact[1].grad[64:]
    found = head.weight.grad[64:].double()
    assert (found - absent).norm() < error * absent.norm()
    assert (hidden.grad - exact[0].grad).norm() < error * exact[0].grad.norm()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_there_is_one_product(mode):
    head, hidden, target = made(600)
    with mode(), FlopCounterMode(display=False) as counter:
        loss = token_losses(head, hidden, target)
    assert counter.get_total_flops() == 2 * 600 * WIDTH * V
    assert not loss.requires_grad


def test_rows_without_a_label_count_nothing():
    """As a GPU computes them, which does not select rows; beside the selection of a CPU."""
    head, hidden, target = made(300)
    target[0, ::3] = -100
    hidden.data[0, 0] = float("nan")
    found = []
    for device_selects in (True, False):
        losses = (
            token_losses(head, hidden, target)
            if device_selects
            else _CrossEntropy.apply(hidden[0], head.weight, target[0], torch.float32, 256, True)
        )
        found.append([losses, *torch.autograd.grad(losses, [hidden, head.weight])])
    for ours, expected in zip(*found):
        torch.testing.assert_close(ours, expected)
    none = torch.full_like(target[0], -100)
    assert _CrossEntropy.apply(hidden[0], head.weight, none, torch.float32, 256, True) == 0
