"""Frequencies, and batches whose distribution is that of the dense form."""

import math

import pytest
import torch

from hypvision.io.errors import HypvisionError
from hypvision.scaling.data import (
    check_frequencies,
    density_scan,
    frequencies,
    sample,
    sparse,
    stream,
)


def test_frequencies_are_those_of_the_paper():
    power = frequencies("power", 10240, 1.2)
    assert power[0].item() == pytest.approx(0.208208, rel=1e-5)
    assert power[-1].item() == pytest.approx(3.2073e-6, rel=1e-4)
    assert frequencies("exponential1", 10240)[0].item() == pytest.approx(2.496878e-3, rel=1e-6)
    assert frequencies("linear", 10240)[0].item() == pytest.approx(1.952934e-4, rel=1e-6)
    slow = frequencies("exponential", 10240)
    assert (slow[1] / slow[0]).item() == pytest.approx(math.exp(-1e-3))
    for name in ("power", "exponential1", "exponential", "linear"):
        p = frequencies(name, 50)
        assert p.sum().item() == pytest.approx(1) and bool((p[1:] < p[:-1]).all())


def test_density_scan():
    p = frequencies("power", 1000, 1.0)
    found = [density_scan(p, s / 8).sum().item() for s in range(9)]
    expected = [1.000, 1.811, 2.621, 3.432, 4.243, 5.053, 5.864, 6.675, 7.485]
    assert found == pytest.approx(expected, abs=6e-4)
    assert density_scan(p, 1.0)[0].item() == pytest.approx(1)
    for n in range(2, 60):
        check_frequencies(density_scan(frequencies("power", n), 1.0))


def test_mistakes_are_named():
    with pytest.raises(HypvisionError, match="sum to 2 instead of 1. Scale them to this sum"):
        density_scan(torch.tensor([1.0, 1.0]), 0.5)
    with pytest.raises(HypvisionError, match="from 0 to 1, got 2"):
        density_scan(torch.tensor([1.0]), 2)
    with pytest.raises(HypvisionError, match="Did you mean power?"):
        frequencies("powr", 10)
    with pytest.raises(HypvisionError, match="n must be an integer of at least 1"):
        frequencies("power", 0)
    for p in (torch.tensor([0.5, math.nan]), torch.tensor([-0.1, 1.1]), torch.tensor([1.5])):
        for refuse in (check_frequencies, lambda p: sample(p, 4, stream(0))):
            with pytest.raises(HypvisionError, match="numbers from 0 to 1"):
                refuse(p)
    for alpha in (math.nan, -math.inf, -200.0):
        with pytest.raises(HypvisionError, match="numbers from 0 to 1"):
            frequencies("power", 100, alpha)
    for p in (torch.zeros(0), torch.zeros(2, 2)):
        with pytest.raises(HypvisionError, match="a vector"):
            check_frequencies(p)


def sample_dense(p, size, generator):
    """As the release draws, from two uniform matrices."""
    active = torch.rand(size, len(p), generator=generator) < p.float()
    return active * torch.rand(size, len(p), generator=generator) * 2


@pytest.mark.parametrize(
    "draw", [sample, lambda *words: sparse(sample_dense(*words))], ids=["sparse", "dense"]
)
def test_frequencies_and_moments_of_what_is_drawn(draw):
    p = density_scan(
        frequencies("power", 40, 1.5), 0.9
    )  # from 0.93 down to 0.004: all ways of drawing
    size, rounds = 500, 40
    counts, values, pairs = torch.zeros(40), [], torch.zeros(())
    for k in range(rounds):
        batch = draw(p, size, stream("moments", k))
        assert batch.size == size and batch.features == 40
        counts += torch.bincount(batch.columns, minlength=40)
        values.append(batch.values)
        x = batch.dense() > 0
        pairs += (x[:, 0] & x[:, 1]).sum()
    total = size * rounds
    deviations = (counts - total * p) / (total * p * (1 - p)).sqrt().clamp_min(1)
    assert deviations.abs().max() < 5
    both = (p[0] * p[1]).item()
    assert abs(pairs.item() - total * both) < 5 * math.sqrt(total * both * (1 - both))
    v = torch.cat(values).double()
    assert v.min() >= 0 and v.max() < 2
    for power, expected, spread in ((1, 1, 1 / 3), (2, 4 / 3, 64 / 45)):
        assert abs(v.pow(power).mean().item() - expected) < 5 * math.sqrt(spread / len(v))


def test_which_samples_have_a_rare_feature_does_not_depend_on_the_others():
    p = torch.tensor([0.12, 0.1])
    both = empty = 0
    for k in range(400):
        batch = sample(p, 250, stream("rows", k))
        assert len(batch.rows) == len(torch.unique(batch.rows * 2 + batch.columns))
        both += len(batch.rows) - batch.occupied
        empty += batch.empty
    for count, share in ((both, 0.12 * 0.1), (empty, 0.88 * 0.9)):
        assert abs(count - 1e5 * share) < 5 * math.sqrt(1e5 * share * (1 - share))


def test_extreme_frequencies():
    batch = sample(torch.tensor([1.0, 0.0, 0.1]), 20, stream(0))
    counts = torch.bincount(batch.columns, minlength=3)
    assert counts[0] == 20 and counts[1] == 0
    assert len(sample(torch.zeros(3), 20, stream(0)).rows) == 0


def test_a_batch_and_its_matrix_are_the_same():
    batch = sample(frequencies("power", 20, 0.5), 33, stream(4))
    again = sparse(batch.dense())
    for a, b in zip(batch[:-1], again[:-1]):
        assert torch.equal(a, b)
    assert 0 < batch.empty == again.empty
    assert batch.size == 33
    assert not batch.dense()[batch.occupied :].any()
    columns = batch.columns[batch.by_column]
    assert bool((columns[1:] >= columns[:-1]).all())
    for i in range(20):
        part = columns[batch.column_offsets[i] : batch.column_offsets[i + 1]]
        assert bool((part == i).all())
    assert batch.to("cpu", torch.float64).values.dtype == torch.float64


def test_streams_depend_on_their_names_alone():
    draws = [
        torch.rand(3, generator=stream(*words))
        for words in (("a", 1), ("a", 1), ("a", 2), ("b", 1))
    ]
    assert torch.equal(draws[0], draws[1])
    assert len({tuple(d.tolist()) for d in draws}) == 3
