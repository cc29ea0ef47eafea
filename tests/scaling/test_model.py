"""The closed form against the reference step: losses, weights and biases over whole short
trainings."""

import pytest
import torch
from helpers.cases import each
from references import toy_reference as reference

from hypvision.io.errors import HypvisionError
from hypvision.scaling.data import density_scan, frequencies, sample, sparse, stream
from hypvision.scaling.model import initial, joined, loss, loss_and_gradient, parts
from hypvision.scaling.optimizer import AdamW, learning_rate_factor

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def ours(models, batches, decays, rates, dtype, scale=1.0, chunk=None):
    """Train all models together on the batches."""
    parameters = joined(models)
    optimizer = AdamW(parameters, torch.tensor(decays, dtype=dtype))
    losses = []
    for step, x in enumerate(batches):
        found, gradient = loss_and_gradient(parameters, sparse(x), chunk)
        weight_rates, bias_rates = torch.tensor(
            [rates(step, w.shape[1]) for w, _ in models], dtype=dtype
        ).T
        optimizer.step(gradient * scale, weight_rates, bias_rates)
        losses.append(found)
    return [parts(parameters, i, w.shape[1]) for i, (w, _) in enumerate(models)], torch.stack(
        losses
    ).T


def assert_same(models, batches, decays, rates, dtype, scale=1.0, chunk=None):
    trained, losses = ours(models, batches, decays, rates, dtype, scale, chunk)
    for i, ((weight, bias), decay) in enumerate(zip(models, decays)):
        m = weight.shape[1]
        w, b, expected = reference.train(
            weight, bias, batches, decay, lambda step, m=m: rates(step, m), scale
        )
        tolerance = dict(rtol=0, atol=TOLERANCE[dtype])
        torch.testing.assert_close(
            losses[i], torch.tensor(expected, dtype=torch.float64), **tolerance
        )
        torch.testing.assert_close(trained[i][0], w, **tolerance)
        torch.testing.assert_close(trained[i][1], b, **tolerance)


def batches(p, size, steps, dtype, seed=3):
    generator = stream(seed)
    return [reference.draw(p, size, generator).to(dtype) for _ in range(steps)]


@pytest.mark.quick("1.5-0.5-dtype0", "0.0-0.0-dtype1")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("alpha", "density"), [(0.0, 0.0), (1.0, 0.0), (1.5, 0.5)])
def test_small_runs_are_those_of_the_reference(alpha, density, dtype):
    decays = [-1.0, -0.556, -0.333, 0.111, 1.0]
    models = [initial(100, 10, stream("a", decay), dtype) for decay in decays]
    p = density_scan(frequencies("power", 100, alpha), density).float()
    # a warm-up within the training, and one that is longer and therefore left out
    warmup = 2000 if alpha == 1.0 else 20

    def rates(step, m):
        return (reference.small_rate(step, 60, warmup=warmup),) * 2

    assert_same(models, batches(p, 128, 60, dtype), decays, rates, dtype)


@pytest.mark.parametrize("name", ["power", "linear"])
def test_large_runs_are_those_of_the_literal_step_whatever_the_padding(name):
    decays = [-1.0, 0.1, -1.0, 0.1]
    models = [initial(160, m, stream(name, i), torch.float64) for i, m in enumerate((8, 8, 16, 16))]
    p = frequencies(name, 160, 1.2).float()
    dense = batches(p, 128, 60, torch.float64)

    def rates(step, m):
        return reference.large_rates(step, 60, m)

    # 50 does not divide the batch
    assert_same(models, dense, decays, rates, torch.float64, scale=100.0, chunk=50)


def dense_loss(x, weight, bias):
    """As in the formula, for autograd to differentiate."""
    return (torch.relu(x @ weight @ weight.T + bias) - x).square().mean()


@each("chunk", [None, 1, 7, 64, 100])
@each("density", [0.0, 1.0])
def test_loss_and_gradient_are_those_of_autograd(chunk, density):
    p = density_scan(frequencies("power", 30, 1.0), density)
    batch = sample(p, 64, stream(1)).to("cpu", torch.float64)
    models = [initial(30, m, stream(m), torch.float64) for m in (3, 5)]
    found, gradient = loss_and_gradient(joined(models), batch, chunk)
    assert torch.equal(found, loss(joined(models), batch, chunk))
    for i, (weight, bias) in enumerate(models):
        value = dense_loss(batch.dense(), weight.requires_grad_(), bias.requires_grad_())
        expected = torch.autograd.grad(value, (weight, bias))
        assert found[i].item() == pytest.approx(value.item(), rel=1e-13)
        for a, b in zip(parts(gradient, i, weight.shape[1]), expected):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-14)
    assert gradient[0, 3:5].abs().max() == 0  # padding


def test_an_empty_batch_and_samples_without_features():
    weight, bias = initial(6, 2, stream(0), torch.float64)
    for x in (torch.zeros(5, 6, dtype=torch.float64), torch.eye(6, dtype=torch.float64)[[0, 0, 5]]):
        x[-1] = 0
        value = dense_loss(x, weight.requires_grad_(), bias)
        found, gradient = loss_and_gradient(joined([(weight.detach(), bias)]), sparse(x), 2)
        assert found.item() == pytest.approx(value.item(), rel=1e-13)
        expected = torch.autograd.grad(value, weight)[0]
        torch.testing.assert_close(parts(gradient, 0, 2)[0], expected, rtol=0, atol=1e-14)


def test_growth_leaves_zero_rows_and_draws_others_to_norm_one():
    weight = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.06, 0.08]], dtype=torch.float64)
    parameters = joined([(weight, torch.zeros(3, dtype=torch.float64))])
    optimizer = AdamW(parameters, torch.tensor([-1.0]))
    rate = torch.tensor([0.1], dtype=torch.float64)
    for _ in range(300):
        optimizer.step(torch.zeros_like(parameters), rate, rate)
    found, bias = parts(parameters, 0, 2)
    expected = torch.tensor([[0.0, 0.0], [0.6, 0.8], [0.6, 0.8]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)  # eps shifts the norm by 1e-8
    assert bias.abs().max() == 0


def test_schedule():
    small = {0: 5e-6, 1999: 1e-2, 10999: 5.25e-3, 19999: 5e-4}
    for step, rate in small.items():
        assert 0.01 * learning_rate_factor(step, 20000, 2000) == pytest.approx(rate)
    for steps, warmup in ((100, 10), (100, 100), (100, 200), (20, 1), (7, 0)):
        for step in range(steps):
            expected = reference.small_rate(step, steps, 1.0, warmup)
            assert learning_rate_factor(step, steps, warmup) == pytest.approx(expected)


def test_widths_are_checked():
    for m in (0, 31):
        with pytest.raises(HypvisionError, match=f"from 1 to 30, got {m}"):
            initial(30, m, stream(0))
    weight, bias = initial(4000, 16, stream(0))
    assert weight.std().item() == pytest.approx(0.25, rel=0.02)
    assert bias.std().item() == pytest.approx(1, rel=0.05)
