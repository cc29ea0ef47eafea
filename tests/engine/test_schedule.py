"""A resumed training has the rates of its config at each point, also where the config is longer
now; another optimiser or schedule is refused."""

import shutil
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("mmengine")
from helpers.engine import make_images, scalars, write_config

from hypvision.engine.checkpoint import _follow_schedules
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError

CHANGES = {
    "another rate": ({"optim_wrapper.optimizer.lr": 1e-4}, "base_values of"),
    "another decay": (
        {"optim_wrapper.optimizer.weight_decay": 0.3},
        r"weight_decay of group \d of AdamW was 0.05, is 0.3",
    ),
    "other betas": ({"optim_wrapper.optimizer.betas": (0.8, 0.9)}, "betas of group 0"),
    "a rate without a schedule": (
        {"param_scheduler": [], "optim_wrapper.optimizer.lr": 3e-5},
        "lr of group 0",
    ),
    "another kind of schedule": (
        {"param_scheduler": [dict(type="PolyLR", begin=0, end=4, convert_to_iter_based=True)]},
        "of PolyLR 0",
    ),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Two of four epochs, warming up in the first."""
    folder = tmp_path_factory.mktemp("begun")
    data = make_images(folder / "data", per_class=8)
    config = write_config(folder / "config.py", data, epochs=4)
    with config.open("a") as file:
        file.write(
            "param_scheduler.insert(0, dict(type='LinearLR', start_factor=0.1, begin=0, end=1, "
            "convert_to_iter_based=True))\nparam_scheduler[1]['begin'] = 1\nval_dataloader = "
            "val_cfg = val_evaluator = test_dataloader = test_cfg = test_evaluator = None\n"
        )
    train(config, folder / "run", cfg_options={"default_hooks.checkpoint.max_keep_ckpts": -1})
    for path in (
        folder / "run/epoch_3.pth",
        folder / "run/epoch_4.pth",
        folder / "run/last_checkpoint",
    ):
        path.unlink(missing_ok=True)
    return folder, config


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_optimizer_or_schedule_is_refused(begun, tmp_path, change):
    folder, config = begun
    options, said = CHANGES[change]
    shutil.copytree(folder / "run", tmp_path / "run", ignore=shutil.ignore_patterns("2*"))
    with pytest.raises(HypvisionError, match=rf"epoch_2.pth'.*{said}.*load_from="):
        train(config, tmp_path / "run", "auto", cfg_options=options)


LENGTHS = {
    "longer": {"train_cfg.max_epochs": 6, "param_scheduler.1.end": 6},
    "shorter": {"train_cfg.max_epochs": 3, "param_scheduler.1.end": 3},
    "a later warm-up": {"param_scheduler.0.end": 3, "param_scheduler.1.begin": 3},
    "another batch size": {"train_dataloader.batch_size": 4},
}


@pytest.mark.parametrize("change", LENGTHS)
def test_a_schedule_of_another_length_is_followed(begun, tmp_path, capsys, change):
    """From the resumed epoch on the rates are those of an uninterrupted training of this config."""
    folder, config = begun
    options = LENGTHS[change]
    shutil.copytree(folder / "run", tmp_path / "run", ignore=shutil.ignore_patterns("2*"))
    whole = train(config, tmp_path / "whole", cfg_options=options)
    runner = train(config, tmp_path / "run", "auto", cfg_options=options)
    left = scalars(tmp_path / "whole", "lr")[2 * whole.max_iters // whole.max_epochs :]
    assert len(left) == runner.max_iters - 2 * 3
    assert scalars(tmp_path / "run", "lr") == pytest.approx(left, rel=1e-9)
    assert "epoch_2.pth' comes from a training of another length" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("resume", ["auto", "epoch_2.pth"])
@pytest.mark.parametrize("epochs", [3, 4, 6])
def test_the_rates_go_on_as_they_were(begun, tmp_path, resume, epochs):
    """Also in a training that is now longer or shorter than its schedule."""
    folder, config = begun
    options = {"train_cfg.max_epochs": epochs}
    expected = train(config, tmp_path / "whole", cfg_options=options)
    shutil.copytree(folder / "run", tmp_path / "run", ignore=shutil.ignore_patterns("2*"))
    start = resume if resume == "auto" else tmp_path / "run" / resume
    runner = train(config, tmp_path / "run", start, cfg_options=options)
    rates = scalars(tmp_path / "whole", "lr")
    assert len(rates) == expected.iter == runner.iter == 3 * epochs
    assert scalars(tmp_path / "run", "lr") == pytest.approx(rates[6:], rel=1e-9)


def test_iterations_are_counted_as_they_were_done(begun, tmp_path):
    """Two epochs of 3 iterations and two of 6; what falls on the last one is not missed."""
    folder, config = begun
    options = {"param_scheduler": []}
    train(config, tmp_path / "run", cfg_options={**options, "train_cfg.max_epochs": 2})
    shutil.copy(tmp_path / "run/epoch_2.pth", tmp_path / "half.pth")
    options["train_dataloader.batch_size"] = 4
    options["default_hooks.checkpoint.by_epoch"] = False
    options["default_hooks.checkpoint.interval"] = 100
    runner = train(config, tmp_path / "on", tmp_path / "half.pth", cfg_options=options)
    assert runner.iter == runner.max_iters == 2 * 3 + 2 * 6
    assert scalars(tmp_path / "on", "step") == list(range(7, 19))
    meta = torch.load(tmp_path / "on/iter_18.pth", weights_only=False)["meta"]
    assert meta["iter"] == 18


def test_a_cosine_that_rises_again_is_told(begun, tmp_path, caplog):
    folder, config = begun
    train(config, tmp_path / "run", cfg_options={"param_scheduler.1.T_max": 1})
    assert (
        "The schedule ends at 2, the training at max_epochs=4: the learning rate rises again"
        in caplog.text
    )
    assert "and its T_max to 3" in caplog.text


@pytest.mark.parametrize(
    "epochs,told", [(5, "stays at its last value"), (2, "has not fallen"), (4, None)]
)
def test_a_schedule_of_another_length_is_told(begun, tmp_path, caplog, epochs, told):
    folder, config = begun
    train(config, tmp_path / "run", cfg_options={"train_cfg.max_epochs": epochs})
    wanted = (
        f"The schedule ends at 4, the training at max_epochs={epochs}: the learning rate {told}"
    )
    assert (wanted in caplog.text) == (told is not None)
    assert ("The schedule ends" in caplog.text) == (told is not None)


def test_a_training_shorter_than_its_warm_up_is_told_of_epochs(begun, tmp_path, caplog):
    folder, config = begun
    train(config, tmp_path / "run", cfg_options={"train_cfg.max_epochs": 1})
    assert "The warm-up before it ends at 1: give the length by --epochs" in caplog.text


def test_a_schedule_that_follows_a_metric_is_not_moved():
    """Its state, the best value and how long none was better, belongs to no position."""
    runner = SimpleNamespace(train_loop=SimpleNamespace(_iter=3), param_schedulers=[])
    _follow_schedules(runner, [(dict(begin=0, end=9), [0.1])])
    with pytest.raises(HypvisionError, match="ReduceOnPlateau"):
        _follow_schedules(runner, [(dict(best=1.0, begin=0, end=9), [0.1])])
