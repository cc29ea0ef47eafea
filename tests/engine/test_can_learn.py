"""Configs by which nothing would be learned are told before the first step."""

import pytest
from helpers.cases import each

pytest.importorskip("mmengine")
from types import SimpleNamespace

import torch
from helpers.engine import make_images, write_config

from hypvision.cli import main
from hypvision.engine.hooks import CanLearnHook

CHANGES = {
    "rate": (["optim_wrapper.optimizer.lr=0"], "learning rate is 0"),
    "classes": (["model.backbone.num_classes=1", "model.mixup=None"], "one class with one output"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_training_that_changes_nothing_is_told(tmp_path, capsys, kind):
    options, message = CHANGES[kind]
    data = make_images(
        tmp_path / "data", per_class=2, classes=("blue",) if kind == "classes" else ("blue", "red")
    )
    text = write_config(tmp_path / "config.py", data, batch=2).read_text()
    (tmp_path / "config.py").write_text(
        text.replace("num_classes=3", "num_classes=2").replace("topk=(1, 2)", "topk=(1,)")
    )
    command = [
        *f"train {tmp_path / 'config.py'} --work-dir {tmp_path / 'run'} --cfg-options".split(),
        *options,
    ]
    assert main(command) == 2
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("*.pth"))


def run_with(*rates, frozen=False, **heads):
    model = torch.nn.Linear(2, 2).requires_grad_(not frozen)
    for name, value in heads.items():
        setattr(model, name, value)
    told = []
    wrapper = SimpleNamespace(
        get_lr=lambda: {"lr": [group["lr"] for group in wrapper.param_groups]},
        param_groups=[dict(lr=rate, initial_lr=rate) for rate in rates],
    )
    logger = SimpleNamespace(warning=lambda text, *values: told.append(text % values))
    return SimpleNamespace(
        model=model, optim_wrapper=wrapper, logger=logger, iter=4, max_iters=10, told=told
    )


@each("run, message", [
        (run_with(0.0, 0.0), "rate is 0"),
        (run_with(0.1, num_classes=1, multi_label=False), "one class"),
        (
            run_with(
                0.1,
                decode_head=SimpleNamespace(
                    num_classes=1, out_channels=1, loss_decode=SimpleNamespace(use_sigmoid=False)
                ),
            ),
            "one class",
        ),
    ])  # fmt: skip
def test_kinds(run, message):
    with pytest.raises(Exception, match=message):
        CanLearnHook().before_train(run)


@each("run", [
        run_with(0.0, 0.1),
        run_with(0.1, num_classes=1, multi_label=True),
        run_with(0.1, bbox_head=SimpleNamespace(num_classes=1)),  # detectors have a background
        run_with(0.1, decode_head=SimpleNamespace(num_classes=1, out_channels=1,
                                                  loss_decode=SimpleNamespace(use_sigmoid=True))),
    ])  # fmt: skip
def test_trainings_that_learn_pass(run):
    hook = CanLearnHook()
    hook.before_train(run)
    hook.before_train_iter(run, 0)
    assert not run.told


def test_a_schedule_that_ends_at_0_is_told_once():
    hook, run = CanLearnHook(), run_with(0.1)
    hook.before_train(run)
    run.optim_wrapper.param_groups[0]["lr"] = 0.0
    hook.before_train_iter(run, 0)
    hook.before_train_iter(run, 1)
    assert len(run.told) == 1 and "From iteration 5 of 10" in run.told[0]


def test_frozen_weights_are_told():
    """As a warning: methods without a training have nothing else."""
    run = run_with(0.1, frozen=True)
    CanLearnHook().before_train(run)
    assert "frozen" in run.told[0]
