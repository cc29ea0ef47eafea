"""A resumed training has the rates of its config at each point, also where the config has
changed."""

import shutil

import pytest
import torch

pytest.importorskip("mmengine")
from helpers.engine import make_images, scalars, write_config

from hypvision.engine.run import train

CHANGES = {
    "another batch size": {"train_dataloader.batch_size": 4},
    "a longer training": {"train_cfg.max_epochs": 6},
    "a shorter training": {"train_cfg.max_epochs": 3},
    "a longer training and schedule": {"train_cfg.max_epochs": 6, "param_scheduler.1.end": 6},
    "another rate": {"optim_wrapper.optimizer.lr": 1e-4},
    "all of it": {
        "train_dataloader.batch_size": 12,
        "train_cfg.max_epochs": 5,
        "optim_wrapper.optimizer.lr": 1e-2,
    },
    "a schedule by epochs": {
        "param_scheduler.1.convert_to_iter_based": False,
        "train_dataloader.batch_size": 4,
    },
    "a schedule without warming up": {
        "param_scheduler": [
            dict(type="PolyLR", eta_min=0.0, begin=0, end=4, convert_to_iter_based=True)
        ]
    },
    "nothing": {},
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


QUICK = {"another batch size": "auto", "a longer training": "path", "nothing": "auto"}
CASES = [
    pytest.param(
        change,
        QUICK.get(change, "auto"),
        marks=() if change in QUICK else pytest.mark.slow,
        id=change,
    )
    for change in CHANGES
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "how"), CASES)
def test_rates_after_a_change(begun, tmp_path, change, how):
    folder, config = begun
    options = CHANGES[change]
    whole = {**options}
    if "train_cfg.max_epochs" in options:  # what ended with the training does so again
        whole["param_scheduler.1.end"] = options["train_cfg.max_epochs"]
    expected = train(config, tmp_path / "whole", cfg_options=whole)
    shutil.copytree(folder / "run", tmp_path / "run", ignore=shutil.ignore_patterns("2*"))
    resume = "auto" if how == "auto" else tmp_path / "run/epoch_2.pth"
    runner = train(config, tmp_path / "run", resume, cfg_options=options)
    rates = scalars(tmp_path / "whole", "lr")
    found = scalars(tmp_path / "run", "lr")
    assert expected.iter == len(rates)
    assert (
        runner.iter == runner.max_iters == 2 * 3 + len(found)
    )  # those that were done, not those of longer epochs
    assert found == pytest.approx(rates[len(rates) // expected.max_epochs * 2 :], rel=1e-9)
    log = next((tmp_path / "run").glob("*/*.log")).read_text()
    assert ("The schedule of the config is not that of" in log) == (change != "nothing")


def test_iterations_are_counted_as_they_were_done(begun, tmp_path):
    """Two epochs of 3 iterations and two of 6; what falls on the last one is not missed."""
    folder, config = begun
    shutil.copytree(folder / "run", tmp_path / "run", ignore=shutil.ignore_patterns("2*"))
    saving = {"default_hooks.checkpoint.by_epoch": False, "default_hooks.checkpoint.interval": 100}
    runner = train(
        config, tmp_path / "run", "auto", cfg_options={"train_dataloader.batch_size": 4, **saving}
    )
    assert runner.iter == runner.max_iters == 2 * 3 + 2 * 6
    assert scalars(tmp_path / "run", "step") == list(range(7, 19))
    meta = torch.load(tmp_path / "run/iter_18.pth", weights_only=False)["meta"]
    assert meta["iter"] == 18


@pytest.mark.parametrize("scheduled", [True, False])
def test_settings_of_the_optimizer_are_those_of_the_config(begun, tmp_path, scheduled):
    """A rate that a schedule moves is that of the schedule."""
    folder, config = begun
    shutil.copytree(folder / "run", tmp_path / "run", ignore=shutil.ignore_patterns("2*"))
    changes = dict(weight_decay=0.3, betas=(0.8, 0.9), amsgrad=True)
    options = {f"optim_wrapper.optimizer.{key}": value for key, value in changes.items()}
    if not scheduled:
        options |= {"param_scheduler": [], "optim_wrapper.optimizer.lr": 3e-5}
    runner = train(config, tmp_path / "run", "auto", cfg_options=options)
    groups = runner.optim_wrapper.optimizer.param_groups
    assert {group["weight_decay"] for group in groups} == {0.3, 0.0} and all(
        g["betas"] == (0.8, 0.9) for g in groups
    )
    assert scheduled or all(group["lr"] == 3e-5 for group in groups)
    assert all("max_exp_avg_sq" in state for state in runner.optim_wrapper.optimizer.state.values())
    log = next((tmp_path / "run").glob("*/*.log")).read_text()
    assert (
        "The optimizer of the config is not that of" in log
        and "weight_decay was 0.05, is 0.3" in log
    )


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
