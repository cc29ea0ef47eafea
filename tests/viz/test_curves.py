"""Curves of trainings: what was logged, once for each step, and nothing else."""

import csv
import json

import pytest
from helpers.cases import each
from PIL import Image

pytest.importorskip("matplotlib")
from hypvision.io.errors import HypvisionError
from hypvision.viz.curves import choose, draw_curves, read_runs, write_curves


def log(folder, time, records):
    path = folder / time / "vis_data/scalars.json"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def train(step, loss, **more):
    return dict(loss=loss, lr=0.1, time=0.5, iter=step, step=step, **more)


@pytest.fixture
def run(tmp_path):
    """A training of two epochs that broke off in its second, after iteration 40, and was resumed
    after the first."""
    first = [
        train(10, 3.0, epoch=1),
        train(20, 2.0, epoch=1),
        dict(top1=30.0, data_time=0.1, step=1),
    ]
    log(
        tmp_path / "run",
        "20260101_000000",
        [*first, train(30, 9.0, epoch=2), train(40, 8.0, epoch=2)],
    )
    log(
        tmp_path / "run",
        "20260102_000000",
        [train(30, 1.5, epoch=2), dict(top1=40.0, data_time=0.1, step=2)],
    )
    return tmp_path / "run"


def rows(path):
    return [tuple(row) for row in csv.reader(path.read_text().splitlines())][1:]


def test_the_table_is_the_log_of_the_whole_training(run, tmp_path):
    write_curves(read_runs([run]), tmp_path / "c.csv")
    found = rows(tmp_path / "c.csv")
    assert [row[4:] for row in found if row[2] == "loss"] == [
        ("10", "3.0"),
        ("20", "2.0"),
        ("30", "1.5"),
    ]
    assert [row for row in found if row[2] == "top1"] == [
        ("run", "val", "top1", "epoch", "1", "30.0"),
        ("run", "val", "top1", "epoch", "2", "40.0"),
    ]
    assert {row[2] for row in found} == {"loss", "lr", "time", "top1", "data_time"}
    assert {row[3] for row in found if row[1] == "train"} == {"iteration"}


def test_steps_of_a_validation_are_what_they_were_counted_in(tmp_path):
    by_iteration = log(
        tmp_path / "a", "t", [train(100, 1.0), dict(mIoU=5.0, step=100), train(200, 1.0)]
    )
    by_pass = log(tmp_path / "b", "t", [train(100, 1.0), dict(mIoU=5.0, step=1), train(200, 1.0)])
    units = {
        curve.run: curve.unit
        for curve in read_runs([by_iteration, by_pass])
        if curve.quantity == "mIoU"
    }
    assert units == {"a/t": "iteration", "b/t": "epoch"}


def test_a_validation_that_a_resumed_training_repeats_replaces_the_first(tmp_path):
    first = [
        train(50, 3.0),
        *(dict(top1=float(step), step=step) for step in (60, 80)),
        train(100, 2.0),
    ]
    log(tmp_path, "1", [*first, *(dict(top1=0.0, step=step) for step in (120, 140))])
    log(tmp_path, "2", [dict(top1=120.0, step=120), dict(top1=140.0, step=140), train(150, 1.0)])
    (curve,) = (curve for curve in read_runs([tmp_path]) if curve.quantity == "top1")
    assert (curve.steps, curve.values) == ([60, 80, 120, 140], [60.0, 80.0, 120.0, 140.0])


def test_runs_of_one_name_are_told_apart(run, tmp_path):
    log(tmp_path / "other/run", "t", [train(1, 1.0)])
    names = {curve.run for curve in read_runs([run, tmp_path / "other/run"])}
    assert names == {f"{tmp_path.name}/run", "other/run"}


def test_panels(run):
    curves = read_runs([run])
    assert list(choose(curves)) == ["loss", "lr", "top1 (validation)"]
    assert list(choose(curves, ["*time"])) == ["time", "data_time (validation)"]
    with pytest.raises(HypvisionError, match="No run has logged 'los'. Did you mean loss"):
        choose(curves, ["los"])


def test_a_figure_has_each_run_in_its_colour(run, tmp_path):
    log(tmp_path / "other", "t", [train(1, 1.0), train(2, float("nan")), train(3, 2.0)])
    draw_curves(choose(read_runs([run, tmp_path / "other"]), ["loss"]), tmp_path / "c.png")
    colours = {
        colour for _, colour in Image.open(tmp_path / "c.png").convert("RGB").getcolors(10**6)
    }
    assert {(31, 119, 180), (255, 127, 14)} <= colours and (44, 160, 44) not in colours


@each("text", ["{", "[1]", '{"loss": 1}', '{"step": "a"}', "[" * 9999])
def test_what_is_no_log(tmp_path, text):
    path = log(tmp_path / "a", "t", [train(1, 1.0)])
    path.write_text(f"{path.read_text()}\n{text}\n")
    with pytest.raises(HypvisionError, match="Line 3 of .* is not a record"):
        read_runs([path])


def test_a_place_without_a_log(tmp_path):
    with pytest.raises(HypvisionError, match="has no log of a training"):
        read_runs([tmp_path])
    with pytest.raises(HypvisionError, match="There is no run"):
        read_runs([tmp_path / "none"])


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "nothing"), ('{"memory": 3, "iter": 1, "step": 1}', "There are: memory")],
)
def test_a_log_with_nothing_to_draw(tmp_path, text, said):
    (tmp_path / "scalars.json").write_text(text)
    with pytest.raises(HypvisionError, match=f"neither loss, rate nor metrics.*{said}"):
        choose(read_runs([tmp_path / "scalars.json"]))
