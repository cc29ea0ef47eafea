"""A run that is killed in mid-epoch and resumed ends where an uninterrupted one does."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("mmengine")
from helpers.engine import ROOT, make_images, scalars, write_config
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.registry import HOOKS

from hypvision.cli import main
from hypvision.engine.checkpoint import load_checkpoint_file
from hypvision.engine.hooks import CoreTimeHook
from hypvision.engine.hooks.stop import InterruptHook
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError

# Everything that uses random numbers is on: augmentation in a worker, mixup, dropout, stochastic
# depth, and EMA too.
RANDOM = dict(
    epochs=3, workers=1, drop=0.2, mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0),
    transform=dict(input_size=32, is_training=True, pad_crop=4, auto_augment="rand-m9-mstd0.5-inc1",
    re_prob=0.25),
    hooks=[dict(type="EMAHook", ema_type="ExponentialMovingAverage", momentum=0.1)],
)  # fmt: skip


SIGNAL_HOOK = """
import os, signal, sys
import helpers.engine
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from hypvision.cli import main

name, at, config, folder = sys.argv[1:]

@HOOKS.register_module()
class SignalHook(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == int(at):
            os.kill(os.getpid(), getattr(signal, name))

sys.exit(main(["train", config, "--work-dir", folder]))
"""


def run_until(signal_name, at, folder, config):
    """Train in a process that sends itself a signal before iteration ``at``; the finished
    process."""
    script = folder / "signal_hook.py"
    script.write_text(SIGNAL_HOOK)
    command = [
        sys.executable,
        str(script),
        signal_name,
        str(at),
        str(config),
        str(folder / "broken"),
    ]
    paths = [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(paths))
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    done = subprocess.run(command, env=environment, text=True, timeout=300, **pipes)
    return SimpleNamespace(returncode=done.returncode, output=done.stdout)


def with_signal_hook(options):
    return {**options, "hooks": [*options["hooks"], dict(type="SignalHook")]}


@pytest.mark.slow
@pytest.mark.parametrize("by_epoch", [True, False], ids=["epochs", "iterations"])
def test_resume_after_sigkill_repeats_the_uninterrupted_run(tmp_path, by_epoch):
    data = make_images(tmp_path / "data")
    whole = write_config(tmp_path / "whole.py", data, **RANDOM)
    config = write_config(tmp_path / "broken.py", data, **RANDOM)
    killed = write_config(tmp_path / "killed.py", data, **with_signal_hook(RANDOM))
    if not by_epoch:
        for path in (whole, config, killed):
            path.write_text(path.read_text() + ITERATIONS)
    # 3 iterations an epoch: killed in the second epoch, after the first checkpoint.
    done = run_until("SIGKILL", 5, tmp_path, killed)
    assert done.returncode == -signal.SIGKILL, done.output[-2000:]
    last = "epoch_3.pth" if by_epoch else "iter_9.pth"
    assert not (tmp_path / "broken" / last).exists()

    assert main(["train", str(config), "--work-dir", str(tmp_path / "broken"), "--resume"]) == 0
    assert main(["train", str(whole), "--work-dir", str(tmp_path / "whole")]) == 0
    assert scalars(tmp_path / "broken", "loss")[-3:] == scalars(tmp_path / "whole", "loss")[-3:]
    assert scalars(tmp_path / "broken", "top1")[-1] == scalars(tmp_path / "whole", "top1")[-1]
    expected = torch.load(tmp_path / "whole" / last, weights_only=False)["state_dict"]
    got = torch.load(tmp_path / "broken" / last, weights_only=False)["state_dict"]
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=0, atol=0, msg=name)


def test_core_time_adds_up_over_restarts(tmp_path, monkeypatch):
    clock = iter(range(0, 10**6, 10))  # ten seconds from one look at it to the next
    monkeypatch.setattr(
        "hypvision.engine.hooks.logs.time", SimpleNamespace(process_time=lambda: float(next(clock)))
    )
    data = make_images(tmp_path / "data", per_class=2)
    config = write_config(tmp_path / "config.py", data, epochs=2, hooks=[dict(type="CoreTimeHook")])
    whole = train(config, tmp_path / "whole").message_hub.get_info("core_seconds")
    assert whole == 50.0  # looked at before, after each step and epoch, and at the end
    train(config, tmp_path / "run")
    (tmp_path / "run/epoch_2.pth").unlink()
    first = tmp_path / "run/epoch_1.pth"
    assert (
        train(config, tmp_path / "run", resume=first).message_hub.get_info("core_seconds")
        == 20.0 + 30.0
    )
    step = torch.load(tmp_path / "run/epoch_2.pth", weights_only=False)["message_hub"][
        "runtime_info"
    ]
    assert step["core_seconds"] == 40.0
    hook, hub = (
        CoreTimeHook(),
        MessageHub.get_instance("steps"),
    )  # a training by steps writes files within its epoch
    hook.before_train(runner := SimpleNamespace(message_hub=hub))
    hook.after_train_iter(runner, batch_idx=0, data_batch=None, outputs=None)
    assert hub.get_info("core_seconds") == 10.0


def test_a_training_begins_with_the_weights_that_its_config_loads(tmp_path):
    """Also where --resume finds nothing to go on from: it must not begin from random weights in
    silence."""
    config = write_config(tmp_path / "config.py", make_images(tmp_path / "data", per_class=2))
    train(config, tmp_path / "first")
    given = tmp_path / "first/epoch_1.pth"
    expected = torch.load(given, weights_only=False)["state_dict"]
    still = ["--cfg-options", "optim_wrapper.optimizer.lr=1e-300", "randomness.seed=5"]
    ways = (
        ["--resume", *still, f"load_from={given}"],
        ["--resume", *still, f"model.checkpoint={given}"],
        [
            *still,
            f"model.checkpoint={given}",
            "resume=True",
        ],  # resume beside load_from is mmengine's: it goes on
    )
    for number, way in enumerate(ways):
        place = tmp_path / str(number)
        assert main(["train", str(config), "--work-dir", str(place), *way]) == 0
        got = torch.load(place / "epoch_1.pth", weights_only=False)["state_dict"]
        assert all(torch.equal(got[name], value) for name, value in expected.items()), way


def test_an_average_is_not_resumed_without_its_hook(tmp_path):
    data = make_images(tmp_path / "data", per_class=2)
    hook = dict(type="EMAHook", ema_type="ExponentialMovingAverage")
    train(write_config(tmp_path / "averaged.py", data, hooks=[hook]), tmp_path / "run")
    for resume in ("auto", tmp_path / "run/epoch_1.pth"):
        with pytest.raises(HypvisionError, match="the average of an EMAHook"):
            train(write_config(tmp_path / "plain.py", data, epochs=2), tmp_path / "run", resume)


ITERATIONS = """
train_cfg = dict(type="IterBasedTrainLoop", max_iters=9, val_interval=3)
train_dataloader["sampler"] = dict(type="InfiniteSampler", shuffle=True)
default_hooks["checkpoint"] = dict(by_epoch=False, interval=3)
log_processor["by_epoch"] = False
param_scheduler = []
"""


class Killed(BaseException):
    """What nothing catches."""


@HOOKS.register_module()
class KillValidationHook(Hook):
    """Ends the process in the validation after step ``at``."""

    def __init__(self, at):
        self.at = at

    def before_val_epoch(self, runner):
        if self.at in (runner.epoch, runner.iter):
            raise Killed


@pytest.mark.quick("2-epochs", "2-iterations")
@pytest.mark.parametrize("by_epoch", [True, False], ids=["epochs", "iterations"])
@pytest.mark.parametrize("at", [2, 3])  # of 3 steps, which validate after 2 and at the end
def test_a_validation_that_was_cut_short_is_repeated(tmp_path, by_epoch, at):
    data = make_images(tmp_path / "data", per_class=2)
    config, killed = (
        write_config(tmp_path / f"{name}.py", data, epochs=3, hooks=hooks)
        for name, hooks in dict(config=[], killed=[dict(type="KillValidationHook", at=at)]).items()
    )
    steps = "" if by_epoch else ITERATIONS.replace("max_iters=9", "max_iters=3")
    for path in (config, killed):
        text = path.read_text() + steps.replace(
            "by_epoch=False, interval=3", "by_epoch=False, interval=1"
        )
        path.write_text(text + "train_cfg['val_interval'] = 2\n")
    work = tmp_path / "work"
    with pytest.raises(Killed):
        train(killed, work)
    assert len(scalars(work, "top1")) == at - 2
    for _ in range(2):  # the second time there is nothing to repeat
        train(config, work, resume="auto")
        assert len(scalars(work, "top1")) == 2 and list(work.glob("best_top1_*.pth"))


@HOOKS.register_module()
class KillHook(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 2:
            raise Killed


@HOOKS.register_module()
class GroupSignalHook(Hook):
    """SIGTERM to the whole group, of which the workers end first."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 2:
            signal.raise_signal(signal.SIGTERM)
            raise RuntimeError("DataLoader worker (pid 3) is killed by signal: Terminated. ")


def test_a_signal_that_workers_get_too_is_an_interruption(tmp_path, capfd):
    options = dict(RANDOM, batch=6, hooks=[dict(type="GroupSignalHook")])
    config = write_config(tmp_path / "stopped.py", make_images(tmp_path / "data"), **options)
    assert main(["train", str(config), "--work-dir", str(tmp_path / "run")]) == 130
    said = capfd.readouterr().err
    assert said.index("Stopping after this step") < said.index("Interrupted")


def test_a_signal_is_noted_where_nothing_can_be_told(tmp_path):
    """Ctrl-C ends tee, too, so that standard error is a closed pipe."""
    hook = InterruptHook()
    reader, writer = os.pipe()
    os.close(reader)
    before = os.dup(2)
    os.dup2(writer, 2)
    try:
        hook._note(signal.SIGINT, None)
    finally:
        os.dup2(before, 2)
    assert hook._received is signal.SIGINT


def test_resume_after_a_break(tmp_path):
    """The quick form of the test above, without a process and workers: three iterations, the last
    one repeated."""
    options = dict(epochs=1, batch=4, drop=0.2, mixup=dict(mixup_alpha=0.8), hooks=[])
    data = make_images(
        tmp_path / "data", per_class=4
    )  # three batches: the run is killed within an epoch
    short = ITERATIONS.replace("max_iters=9", "max_iters=3").replace(
        "by_epoch=False, interval=3", "by_epoch=False, interval=2"
    )
    config = write_config(tmp_path / "config.py", data, **options)
    config.write_text(config.read_text() + short)
    killed = write_config(
        tmp_path / "killed.py", data, **{**options, "hooks": [dict(type="KillHook")]}
    )
    killed.write_text(killed.read_text() + short)
    with pytest.raises(Killed):
        main(["train", str(killed), "--work-dir", str(tmp_path / "broken")])
    assert [path.name for path in (tmp_path / "broken").glob("*.pth")] == ["iter_2.pth"]
    for folder, resume in (("broken", ["--resume"]), ("whole", [])):
        assert main(["train", str(config), "--work-dir", str(tmp_path / folder), *resume]) == 0
    assert len(scalars(tmp_path / "whole", "loss")) == 3
    assert scalars(tmp_path / "broken", "loss")[-1] == scalars(tmp_path / "whole", "loss")[-1]
    expected, got = (
        load_checkpoint_file(tmp_path / name / "iter_3.pth")["state_dict"]
        for name in ("whole", "broken")
    )
    assert all(torch.equal(got[name], value) for name, value in expected.items())


@pytest.mark.slow
@pytest.mark.parametrize("signal_name, by_epoch", [("SIGINT", True), ("SIGTERM", False)])
def test_interruption_ends_with_130_and_says_how_to_resume(tmp_path, signal_name, by_epoch):
    data = make_images(tmp_path / "data")
    config = write_config(tmp_path / "stopped.py", data, **with_signal_hook(RANDOM))
    if not by_epoch:
        config.write_text(config.read_text() + ITERATIONS)
    done = run_until(signal_name, 4, tmp_path, config)
    assert done.returncode == 130, done.output[-2000:]
    assert "Traceback" not in done.output
    saved = (
        "epoch_1.pth" if by_epoch else "iter_5.pth"
    )  # an iteration-based run saves where it stops
    assert f"{saved}' is complete" in done.output and "--resume" in done.output
    checkpoint = torch.load(tmp_path / "broken" / saved, weights_only=False)
    assert checkpoint["meta"]["iter"] == (3 if by_epoch else 5)


def test_channels_last_weights_from_the_start(tmp_path):
    hook = dict(type="ChannelsLastHook")
    data = make_images(tmp_path / "data", per_class=2)
    runner = train(write_config(tmp_path / "config.py", data, hooks=[hook]), tmp_path / "run")
    kernels = [weight for weight in runner.model.parameters() if weight.dim() == 4]
    assert any(not weight.is_contiguous() for weight in kernels)
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in kernels)
