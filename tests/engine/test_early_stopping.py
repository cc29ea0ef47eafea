"""A training stops when its metric no longer gets better, says why, and does so in the same epoch
after a break."""

import math
from types import SimpleNamespace

import pytest
from helpers.cases import each

pytest.importorskip("mmengine")
from helpers.engine import make_images, write_config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from hypvision.engine.hooks import EarlyStoppingHook
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError

VALUES = {1: 10.0, 2: 30.0, 3: 30.0, 4: 20.0, 5: 25.0, 6: 90.0}
STOP = {
    "default_hooks.early_stopping.type": "EarlyStoppingHook",
    "default_hooks.early_stopping.patience": 3,
}


@HOOKS.register_module(force=True)
class ValuesHook(Hook):
    """Validation gives :data:`VALUES`."""

    priority = "HIGHEST"

    def after_val_epoch(self, runner, metrics=None):
        metrics["top1"] = VALUES[runner.epoch]


@pytest.mark.slow
def test_it_says_why_and_stops_in_the_same_epoch_after_a_break(tmp_path, capsys):
    config = write_config(tmp_path / "config.py", make_images(tmp_path / "data", 2), epochs=6)
    config.write_text(config.read_text() + 'custom_hooks = [dict(type="ValuesHook")]\n')
    said = (
        "Stopped early, after epoch 5: top1 is 25, was best with 30 after epoch 2 and did not get "
        "better in 3 validations (patience 3). The best weights are in "
        f"{tmp_path / 'work/best_top1_epoch_2.pth'}."
    )
    for lost, steps in (
        ([], 5),
        (["epoch_5.pth", "last_checkpoint"], 5),
        ([], 5),
    ):  # at last, a resumed training that had stopped
        for name in lost:
            (tmp_path / "work" / name).unlink()
        runner = train(config, tmp_path / "work", resume="auto", cfg_options=STOP)
        assert runner.epoch == steps and capsys.readouterr().err.count(said) == 1
    runner = train(
        config,
        tmp_path / "work",
        "auto",
        cfg_options={**STOP, "default_hooks.early_stopping.patience": 9},
    )
    assert runner.epoch == 6


def test_a_metric_that_validation_does_not_give(tmp_path):
    config = write_config(tmp_path / "config.py", make_images(tmp_path / "data", 2))
    with pytest.raises(
        HypvisionError, match="looks at the metric 'mIoU', but validation gives top1, top2"
    ):
        train(
            config, tmp_path, cfg_options={**STOP, "default_hooks.early_stopping.monitor": "mIoU"}
        )


@each(
    "options, values, stopped",
    [
        (dict(patience=2), [1, 2, 3, 4], None),
        (dict(patience=2), [1, 1, 1], 3),
        (dict(patience=2), [math.nan, math.nan, 5], 2),
        (dict(patience=2, min_delta=1), [1, 2, 2, 5], 3),
        (dict(patience=2, rule="less"), [3, 2, 1, 1, 2], 5),
        (dict(stopping_threshold=4), [3, 4, 5, 6], 3),
        (dict(stopping_threshold=2, rule="less"), [3, 1], 2),
    ],
)
def test_when_it_stops(options, values, stopped):
    said = []
    runner = SimpleNamespace(
        train_loop=SimpleNamespace(stop_training=False), val_loop=True, iter=0, hooks=[],
        message_hub=SimpleNamespace(get_info=lambda *_: None, update_info=lambda *_: None),
        logger=SimpleNamespace(warning=said.append),
    )  # fmt: skip
    hook = EarlyStoppingHook("top1", **options)
    hook.before_train(runner)
    for runner.iter, value in enumerate(values, 1):
        hook.after_val_epoch(runner, {"top1": value})
        if runner.train_loop.stop_training:
            break
    assert (runner.iter if runner.train_loop.stop_training else None) == stopped
    assert len(said) == (stopped is not None)
    assert all(f"after iteration {stopped}:" in text for text in said)


def test_without_a_metric_or_a_validation_it_asks():
    for monitor, loop, said in (
        (None, None, "needs a validation"),
        (None, True, "which metric"),
        ("perplexity", True, "whether a greater or a smaller 'perplexity' is better"),
    ):
        with pytest.raises(HypvisionError, match=said):
            EarlyStoppingHook(monitor).before_train(
                SimpleNamespace(train_loop=None, val_loop=loop, iter=0, hooks=[])
            )
