"""``hypvision train --log``: asked for by one word, refused before any work if the package is
missing."""

import sys
from types import ModuleType

import pytest

pytest.importorskip("mmengine")
from helpers.engine import fails, make_images, write_config
from mmengine.config import Config

from hypvision.engine import tracking
from hypvision.engine.run import train
from hypvision.engine.tracking import TRACKERS, track
from hypvision.io.errors import HypvisionError

FOUND = dict.fromkeys(TRACKERS, True)


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", FOUND.get)
    for name in (
        "WANDB_MODE",
        "WANDB_PROJECT",
        "WANDB_NAME",
        "MLFLOW_TRACKING_URI",
        "MLFLOW_EXPERIMENT_NAME",
    ):
        monkeypatch.delenv(name, raising=False)


def config(**more):
    return Config(dict(work_dir="work_dirs/mine", train_cfg=dict(max_epochs=3), **more))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_one_sentence_before_the_work(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    path = write_config(tmp_path / "c.py", make_images(tmp_path / "data", per_class=1))
    said = fails(capsys, "train", path, "--work-dir", tmp_path / "run", "--log", name)
    assert said.endswith(
        f"--log {name}: the package '{name}' is not installed. Run: pip install {name}"
    )
    assert not (tmp_path / "run").exists()


def test_backends_are_added_once_beside_the_files(installed):
    mine = config(visualizer=dict(type="Mine", vis_backends=[dict(type="TensorboardVisBackend")]))
    track(mine, "tensorboard")
    assert mine.visualizer == dict(type="Mine", vis_backends=[dict(type="TensorboardVisBackend")])
    mine = config()
    track(mine, "tensorboard")
    assert [part.type for part in mine.visualizer.vis_backends] == [
        "LocalVisBackend",
        "TensorboardVisBackend",
    ]
    with pytest.raises(HypvisionError, match="got 'wand'. Did you mean wandb"):
        track(mine, "wand")


def test_mlflow_goes_where_its_variables_say(installed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    mine = config()
    track(mine, "mlflow")
    found = mine.visualizer.vis_backends[1]
    assert found.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db" and found.exp_name == "hypvision"
    assert found.run_name == "mine" and found.tracked_config_keys == ["train_cfg"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    mine = config()
    track(mine, "mlflow")
    assert mine.visualizer.vis_backends[1].tracking_uri == "http://tracker:5000"


def test_wandb_needs_a_login_or_no_network(installed, monkeypatch):
    package = ModuleType("wandb")
    package.login = lambda prompt: False
    monkeypatch.setitem(sys.modules, "wandb", package)
    with pytest.raises(HypvisionError, match="nobody is logged in"):
        track(config(), "wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    mine = config()
    track(mine, "wandb")
    assert mine.visualizer.vis_backends[1].init_kwargs == dict(project="hypvision", name="mine")


@pytest.mark.drawn
def test_a_training_leaves_its_curves_and_its_events(tmp_path):
    pytest.importorskip("tensorboard")
    pytest.importorskip("matplotlib")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = write_config(tmp_path / "c.py", make_images(tmp_path / "data", per_class=3))
    train(path, tmp_path / "run", log="tensorboard")
    assert (tmp_path / "run/results.png").read_bytes().startswith(b"\x89PNG")
    (events,) = tmp_path.glob("run/*/vis_data/events.out*")
    record = EventAccumulator(str(events)).Reload()
    assert [event.step for event in record.Scalars("loss")] == [1, 2]
    assert len(record.Scalars("top1")) == 1
