"""``--epochs N``: every shipped schedule ends with its training, at any length."""

import copy

import pytest

pytest.importorskip("mmengine")
from helpers.cases import each
from helpers.configs import ROOT
from helpers.engine import make_images, write_config

from hypvision.cli import main
from hypvision.engine import lengths
from hypvision.engine.checks import as_list
from hypvision.engine.config import Run, load_config
from hypvision.engine.lengths import processes_of, with_epochs
from hypvision.io.errors import HypvisionError

NAMES = sorted(
    str(path.relative_to(ROOT)) for path in ROOT.glob("*/*.py") if path.parent.name != "_base_"
)


def parts_of(config):
    found = config.get("param_scheduler") or []
    if isinstance(found, dict) and "type" not in found:
        return [part for own in found.values() for part in as_list(own)]
    return as_list(found)


def last(part, length):
    end = part.get("end", length)
    return part["begin"] + part["T_max"] if "T_max" in part and "begin" in part else end


@each("name", NAMES)
def test_schedules_end_with_the_training_as_before(name, monkeypatch):
    config = load_config(ROOT / name)
    if config.get("train_cfg") is None:
        return  # it is tested only
    unit, old, _ = config.schedule
    monkeypatch.setattr(lengths, "_iterations", lambda *_: max(1, old // 40))
    before = copy.deepcopy(parts_of(config))
    with_epochs(config, 20)
    new = config.train_cfg[unit]
    assert new == (20 if unit == "max_epochs" else 20 * max(1, old // 40))
    parts = parts_of(config)
    by_epoch = unit == "max_epochs"
    for part in (part for part in parts if part.get("by_epoch", True) == by_epoch):
        assert 0 <= part.get("begin", 0) < part.get("end", new) <= max(new, 1)
        assert all(0 < point < new for point in part.get("milestones", ()))
    ends = [last(part, old) for part in before if part.get("by_epoch", True) == by_epoch]
    if ends and max(ends) == old:
        kept = [last(part, new) for part in parts if part.get("by_epoch", True) == by_epoch]
        assert max(kept) == new
    assert config.train_cfg.get("val_interval", 1) <= new


def made(schedule, **train):
    return Run(dict(model=dict(type="A"), train_cfg=train, param_scheduler=schedule))


def test_warm_up_and_decay_move_in_proportion():
    config = made(
        [dict(type="LinearLR", begin=0, end=2), dict(type="CosineAnnealingLR", begin=2, end=20)],
        max_epochs=20,
    )
    told = with_epochs(config, 50)
    warm_up, cosine = config.param_scheduler
    assert (warm_up.begin, warm_up.end, cosine.begin, cosine.end) == (0, 5, 5, 50)
    assert told[0] == "length  50 epochs in place of 20"
    with_epochs(config, 1)  # no place for a warm-up
    [cosine] = config.param_scheduler
    assert (cosine.type, cosine.begin, cosine.end) == ("CosineAnnealingLR", 0, 1)


def test_iterations_follow_the_images(monkeypatch):
    schedule = [
        dict(type="LinearLR", by_epoch=False, begin=0, end=80),
        dict(type="CosineAnnealingLR", by_epoch=False, begin=80, end=800, T_max=720),
        dict(type="MultiStepLR", by_epoch=False, milestones=[400, 600]),
    ]
    config = made(schedule, max_iters=800, val_interval=500)
    monkeypatch.setattr(lengths, "_iterations", lambda *_: 50)
    with_epochs(config, 4)
    linear, cosine, steps = config.param_scheduler
    assert (linear.end, cosine.begin, cosine.end, cosine.T_max) == (20, 20, 200, 180)
    assert steps.milestones == [100, 150]
    assert config.train_cfg.val_interval == 200


STARTED = {
    "pytorch": dict(WORLD_SIZE="4"),
    "slurm": dict(SLURM_NTASKS="4"),
    "mpi": dict(OMPI_COMM_WORLD_SIZE="4"),
}


@pytest.mark.parametrize("launcher", STARTED)
def test_processes_share_an_epoch(tmp_path, monkeypatch, launcher):
    """Of 24 images in batches of 2."""
    schedule = [dict(type="LinearLR", by_epoch=False, begin=0, end=30)]
    config = load_config(write_config(tmp_path / "mine.py", make_images(tmp_path / "data", 8)))
    config.train_dataloader.batch_size = 2
    for name in ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.setenv(name, "3")  # of another launcher around it
    for name, value in STARTED[launcher].items():
        monkeypatch.setenv(name, value)
    assert (processes_of("none"), processes_of(launcher)) == (1, 4)
    for own, length in (("none", 24), (launcher, 6)):
        config.train_cfg = dict(type="IterBasedTrainLoop", max_iters=60)
        config.param_scheduler = copy.deepcopy(schedule)
        with_epochs(config, 2, own)
        assert config.train_cfg.max_iters == length
        assert config.param_scheduler[0].end == length // 2


def test_parts_of_another_unit_are_told():
    warm_up = dict(type="LinearLR", by_epoch=False, begin=0, end=500)
    config = made([warm_up, dict(type="StepLR", step_size=4)], max_epochs=12)
    told = with_epochs(config, 6)
    assert config.param_scheduler[0].end == 500
    assert config.param_scheduler[1].step_size == 2
    assert "LinearLR counts in another unit and stays as it is" in told


def test_without_a_length_there_is_nothing_to_move():
    with pytest.raises(HypvisionError, match="does not say its length"):
        with_epochs(made([], by_epoch=True), 3)


def test_the_command_trains_as_long(tmp_path, capsys):
    config = write_config(tmp_path / "config.py", make_images(tmp_path / "data"), epochs=4)
    words = ["train", str(config), "--epochs", "2", "--work-dir", str(tmp_path / "run")]
    assert main(words) == 0
    said = capsys.readouterr().err
    assert "length  2 epochs in place of 4" in said and "The schedule ends" not in said
    assert (tmp_path / "run/epoch_2.pth").is_file()
    assert not (tmp_path / "run/epoch_3.pth").exists()


def test_the_iterations_of_an_epoch_are_counted(tmp_path):
    config = load_config(write_config(tmp_path / "config.py", make_images(tmp_path / "data")))
    count = lengths._iterations(config, "none")
    images = len(list((tmp_path / "data/train").rglob("*.png")))
    assert count == round(images / config.train_dataloader.batch_size)
