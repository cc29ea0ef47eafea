"""A sweep gives every point the same, however it is grouped, padded, cut and resumed; and both
regimes of the paper."""

import json
from dataclasses import replace

import pytest
import torch

from hypvision.io.errors import HypvisionError
from hypvision.scaling import sweep
from hypvision.scaling.fits import power_law
from hypvision.scaling.optimizer import AdamW
from hypvision.scaling.sweep import (
    Point,
    Settings,
    banks_of,
    finished,
    grid,
    groups,
    open_results,
    read_rows,
    train,
    weights_of,
)

SETTINGS = Settings(n=40, batch=32, steps=60, warmup=6, test_batches=3)
POINTS = [Point("power", 1.0, 0.0, decay, m) for decay in (-1.0, 0.25) for m in (3, 5, 8)]


def run(folder, points=POINTS, settings=SETTINGS, **options):
    open_results(folder, settings)
    train(str(folder), points, settings, **options)
    return read_rows(folder, points)


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_by_one")
    return folder, run(folder, dtype=torch.float64)


def assert_same(folder, rows, expected):
    other, known = expected
    for point, row, right in zip(POINTS, rows, known):
        for name, value in right.items():
            assert row[name] == (
                value if isinstance(value, str) else pytest.approx(value, rel=1e-6)
            ), name
        for a, b in zip(weights_of(folder, point, SETTINGS), weights_of(other, point, SETTINGS)):
            torch.testing.assert_close(
                a, b, rtol=0, atol=1e-9 if a.dtype == torch.float64 else 1e-7
            )


@pytest.mark.parametrize(
    "banks", [[POINTS], [POINTS[:2], POINTS[2:5], POINTS[5:]]], ids=["one tensor", "three"]
)
def test_grouping_and_padding_change_nothing(tmp_path, one_by_one, banks):
    assert_same(tmp_path, run(tmp_path, banks=banks, dtype=torch.float64), one_by_one)


def test_points_can_be_trained_in_any_order_and_company(tmp_path, one_by_one):
    for point in reversed(POINTS):
        rows = run(tmp_path, [point], dtype=torch.float64)
    assert len(rows) == 1
    assert_same(tmp_path, read_rows(tmp_path, POINTS), one_by_one)


def test_a_training_that_was_cut_goes_on(tmp_path, one_by_one, monkeypatch):
    """Cut twice: once all points stand at a step, then some of them at a later one."""
    monkeypatch.setattr(sweep, "CHECK_STEPS", 10)
    monkeypatch.setattr(sweep, "SAVE_SECONDS", -1)
    whole = AdamW.step

    def cut(self, *gradient_and_rates):
        if self.steps == stop:
            raise KeyboardInterrupt
        whole(self, *gradient_and_rates)

    monkeypatch.setattr(AdamW, "step", cut)
    stop = 25
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, dtype=torch.float64)
    stop = 47
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, POINTS[:2], dtype=torch.float64)
    assert not finished(tmp_path, POINTS[:1])
    seen = []
    monkeypatch.setattr(
        AdamW, "step", lambda self, *rest: (seen.append(self.steps), whole(self, *rest))
    )
    rows = run(tmp_path, dtype=torch.float64)
    assert (
        min(seen) == 20 and seen.count(20) == 3 and seen.count(40) == 5
    )  # by the tensor, not by the point
    assert_same(tmp_path, rows, one_by_one)
    seen.clear()
    run(tmp_path)
    assert not seen and finished(tmp_path, POINTS)  # what is finished is not trained again


def test_what_is_recorded(one_by_one):
    folder, rows = one_by_one
    losses = weights_of(folder, POINTS[0], SETTINGS)[2]
    assert len(losses) == 60 and losses[-1] < losses[0]
    assert rows[0]["train_loss"] == pytest.approx(
        losses.mean().item() * 40, rel=1e-5
    )  # 60 steps: fewer than 100
    assert abs(rows[0]["loss"] - losses[-20:].mean().item() * 40) < 5 * rows[0]["loss_std"]
    assert rows[0]["m"] == 3 and rows[0]["decay"] == -1 and rows[0]["shortened"] == ""
    json.dumps(rows, allow_nan=False)
    row = next(row for row in rows if row["strong_rows"] > row["m"])
    assert row["welch_excess"] == pytest.approx(row["overlap_max"] - row["welch"])
    assert row["welch_excess"] > 0
    assert 1 <= row["frame_potential"] < row["m"] and row["overlap_deviation"] > 0
    assert row["etf_possible"] == (row["strong_rows"] <= row["m"] * (row["m"] + 1) / 2)


def test_one_step_and_one_test_batch_have_no_deviation(tmp_path):
    row = run(tmp_path, POINTS[:1], replace(SETTINGS, steps=1, warmup=0, test_batches=1))[0]
    assert row["train_loss_std"] is None and row["loss_std"] is None
    json.dumps(row, allow_nan=False)


def test_points_share_batches_unless_they_are_to_be_independent(tmp_path, one_by_one):
    alone = replace(SETTINGS, independent=True)
    rows = run(tmp_path, settings=alone, dtype=torch.float64)
    by_itself = run(tmp_path / "one", POINTS[3:4], settings=alone, dtype=torch.float64)
    assert by_itself[0]["loss"] == pytest.approx(rows[3]["loss"], rel=1e-6)
    first = [weights_of(tmp_path, point, alone)[2][0] for point in POINTS]
    shared = [weights_of(one_by_one[0], point, SETTINGS)[2][0] for point in POINTS]
    assert shared[0] == shared[3] and first[0] != first[3]
    numbers = [
        [torch.rand(1, generator=s.first(p)).item() for p in POINTS[:4:3]]
        for s in (SETTINGS, alone)
    ]
    assert numbers[0][0] == numbers[0][1]
    assert numbers[1][0] != numbers[1][1]  # two decays at one width
    assert rows[0]["loss"] != one_by_one[1][0]["loss"]
    replicate = replace(POINTS[0], replicate=1)
    assert replicate.data != POINTS[0].data and replicate.key != POINTS[0].key


def test_mistakes_are_named(tmp_path):
    open_results(
        tmp_path, replace(SETTINGS, n=50)
    )  # nothing is lost with settings that have no points
    open_results(tmp_path, SETTINGS)
    (tmp_path / "points").mkdir()
    (tmp_path / "points" / "a.json").write_text("{}")
    with pytest.raises(HypvisionError, match=r"another grid: n 40 \(now 50\), steps 60 \(now 70\)"):
        open_results(tmp_path, replace(SETTINGS, n=50, steps=70))
    with pytest.raises(HypvisionError, match="from 1 to 40, got 41"):
        train(str(tmp_path), [replace(POINTS[0], m=41)], SETTINGS)
    with pytest.raises(ValueError, match="must have the same frequencies"):
        train(str(tmp_path), [POINTS[0], replace(POINTS[0], alpha=2.0)], SETTINGS)
    state = tmp_path / "points" / f"{POINTS[0].key}.pt"
    shape = (3, POINTS[0].m + 1, SETTINGS.n)
    for content in (
        {"step": 3},
        {"step": 3, "losses": torch.zeros(3), "state": torch.zeros(3, 4, 41)},
        [1],
        {"step": 3, "losses": torch.zeros(3), "state": torch.zeros(shape, dtype=torch.complex64)},
        {"step": 3, "losses": torch.zeros(3), "state": torch.zeros(shape, dtype=torch.float16)},
        {"step": 3, "losses": torch.zeros(3, dtype=torch.int64), "state": torch.zeros(shape)},
        {"step": 3, "losses": torch.zeros(3), "state": torch.full(shape, torch.nan)},
        {"step": "3", "losses": torch.zeros(3), "state": torch.zeros(shape)},
    ):
        torch.save(content, state)
        with pytest.raises(HypvisionError, match="damaged.*Remove it to train anew"):
            train(str(tmp_path), POINTS[:1], SETTINGS)
    with pytest.raises(HypvisionError, match=r"no weights of .*To train it again, remove '.*json'"):
        weights_of(tmp_path, POINTS[1], SETTINGS)
    (tmp_path / "points" / f"{POINTS[1].key}.json").write_text("{")
    with pytest.raises(HypvisionError, match="cannot be read as JSON"):
        read_rows(tmp_path, POINTS)
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(HypvisionError, match="cannot be read as JSON"):
        open_results(tmp_path, SETTINGS)
    (
        tmp_path / "settings.json"
    ).unlink()  # results of who knows which grid are not taken for this one's
    with pytest.raises(HypvisionError, match="has results, but lacks"):
        open_results(tmp_path, SETTINGS)


def test_a_loss_that_is_no_number_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Settings, "peaks", lambda self, m: (1e30, 1e30))
    with pytest.raises(
        HypvisionError,
        match=r"r0-g-1.0000-m8 gave NaN or infinity at step \d(.|\n)*--batch.*--steps",
    ):
        run(tmp_path)
    assert not finished(tmp_path, POINTS[:1]) and not list(tmp_path.glob("points/*"))


@pytest.mark.parametrize("name", ["parameters", "second"])
def test_what_is_not_finite_does_not_take_the_place_of_a_checkpoint(tmp_path, monkeypatch, name):
    """The last step before it is written spoils the weights, or the state of their optimizer; the
    losses are fine."""
    monkeypatch.setattr(sweep, "CHECK_STEPS", 10)
    monkeypatch.setattr(sweep, "SAVE_SECONDS", -1)
    whole = AdamW.step

    def spoil(self, *gradient_and_rates):
        whole(self, *gradient_and_rates)
        if self.steps == 20:
            getattr(self, name)[0, 0, 0] = torch.inf

    monkeypatch.setattr(AdamW, "step", spoil)
    with pytest.raises(HypvisionError, match=r"m3 gave NaN or infinity at step 20"):
        run(tmp_path, POINTS[:1])
    assert torch.load(tmp_path / "points" / f"{POINTS[0].key}.pt")["step"] == 10


def test_banks():
    widths = [
        [point.m for point in bank]
        for bank in banks_of(_of_widths(10, 15, 25, 39, 63, 100), "cuda", 1000)
    ]
    assert widths == [[100, 63], [39, 25], [15, 10]]
    assert len(banks_of(grid([1.2], [-1.0, 0.1], [2**k for k in range(3, 11)]), "cuda", 10240)) == 8
    assert sorted(map(len, banks_of(POINTS, "cpu", 40))) == [2, 2, 2]  # two decays of each width
    assert sorted(map(len, banks_of(POINTS, "cpu", 5000))) == [
        1,
        1,
        1,
        1,
        2,
    ]  # wider ones have no room together


def _of_widths(*widths):
    return [Point("power", 1.0, 0.0, 0.0, m) for m in widths]


def test_a_grid_has_all_combinations_and_groups_share_their_batches():
    points = grid([0.0, 1.0], [-1.0, 0.5], [4, 8], [0.0, 0.5], replicates=2, distribution="power")
    assert len(points) == len({point.key for point in points}) == 32
    assert points[0] == Point("power", 0.0, 0.0, -1.0, 4, 0)
    assert {point.replicate for point in points} == {0, 1}
    assert len(groups(points)) == 16 and len(groups(points, gpu=True)) == 8
    for members in groups(points).values():
        assert len({(point.data, point.m) for point in members}) == 1
    assert Settings(rates="large").peaks(128) == (0.01, 2 / 128)


def test_seeds(tmp_path, one_by_one):
    other = replace(SETTINGS, seed=7)
    rows = run(tmp_path / "7", POINTS[:1], other, dtype=torch.float64)
    again = run(tmp_path / "again", POINTS[:1], other, dtype=torch.float64)
    assert rows[0]["loss"] == again[0]["loss"] != one_by_one[1][0]["loss"]
    first = [
        weights_of(folder, POINTS[0], SETTINGS)[2][0] for folder in (tmp_path / "7", one_by_one[0])
    ]
    assert first[0] != first[1]
    with pytest.raises(HypvisionError, match=r"another grid: seed 7 \(now 0\)"):
        open_results(tmp_path / "7", SETTINGS)


@pytest.mark.slow
def test_both_regimes(tmp_path):
    settings = Settings(n=200, batch=512, steps=3000, warmup=300)
    exponents = {}
    for decay in (-1.0, 1 / 3):
        rows = run(
            tmp_path, [Point("power", 1.0, 0.0, decay, m) for m in (4, 6, 9, 13, 20)], settings
        )
        exponents[decay] = power_law(
            [row["m"] for row in rows], [row["loss"] for row in rows]
        ).exponent
        half = [row["phi_half"] for row in rows]
        assert min(half) == 1 if decay < 0 else max(half) < 0.5
    assert exponents[-1.0] > exponents[1 / 3] + 0.2
