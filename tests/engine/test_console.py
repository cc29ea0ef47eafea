"""The console of a run: few lines, the numbers that matter, everything else in the log file."""

import json
import logging
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from helpers.engine import make_images, write_config

from hypvision import cli
from hypvision.cli import main
from hypvision.engine import console
from hypvision.engine.console import ConsoleHook, _count, _is_brief, _table, quiet
from hypvision.engine.metrics import OfClass
from hypvision.inference.progress import Progress, duration


@pytest.fixture
def config(tmp_path):
    return str(write_config(tmp_path / "config.py", make_images(tmp_path / "data"), epochs=2))


def test_a_training_and_a_test_print_the_important_lines(tmp_path, config, capsys):
    work = tmp_path / "work"
    with open(config, "a") as file:
        file.write(
            "__import__('warnings').warn('a note that a library makes when it is imported')\n"
        )
    assert main(["train", config, "--work-dir", str(work)]) == 0
    said = capsys.readouterr()
    lines = said.err.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(("train ", "validate ")))
    assert first <= 25 and said.out == "" and "a note" not in said.err
    begin = "\n".join(lines[:first])
    for word in (
        "ImageClassifier on test_vit",
        "0.3 M parameters",
        "24 samples",
        "3 classes",
        "CPU",
        "log",
        "6 steps",
    ):
        assert word in begin, word
    [bar] = [line for line in lines if line.startswith("train 6/6")]
    assert "loss " in bar and "lr " in bar and "it/s" in bar
    assert [line.split() for line in lines].count(["epoch", "top1", "top2"]) == 1, (
        "later rows stand alone"
    )
    *_, row, worst, weights, curves = lines
    assert row.split()[0] == "2" and len(row.split()) == 3
    assert worst.startswith("  worst of 3 classes: ") and worst.count("(of 8)") == 3
    assert weights == f"weights {work / 'epoch_2.pth'}"
    assert curves == f"curves  {work / 'results.png'}"
    [log] = work.glob("*/*.log")
    text = log.read_text()
    assert "train_dataloader = dict(" in text
    assert "Epoch(train)" in text
    assert len(text.splitlines()) > 200
    line = ["test", config, str(work / "epoch_2.pth"), "--work-dir", str(tmp_path / "test")]
    assert main([*line, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert set(json.loads(said.out)) == {"top1", "top2"} and "test 3/3" in said.err
    assert f"report  {tmp_path / 'out/report.html'}" in said.err.splitlines()


def test_verbose_is_mmengines_console(tmp_path, capsys):
    config = str(write_config(tmp_path / "config.py", make_images(tmp_path / "data")))
    assert main(["train", config, "--work-dir", str(tmp_path / "work"), "--verbose"]) == 0
    said = capsys.readouterr()
    assert "train_dataloader = dict(" in said.out + said.err and "log     " not in said.err


def test_two_runs_in_one_second_have_their_own_logs(tmp_path, config, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda *_: "20260101_000000")
    for name in ("one", "two"):
        assert main(["train", config, "--work-dir", str(tmp_path / name)]) == 0
        [log] = (tmp_path / name).glob("*/*.log")
        assert "Epoch(train)" in log.read_text()


def test_errors_and_our_warnings_reach_the_console(tmp_path, capsys):
    from mmengine.logging import MMLogger

    with quiet():
        logger = MMLogger.get_instance("console-test", log_file=str(tmp_path / "log"))
        logger.info("details")
        logger.warning("theirs")  # from a file outside of the package
        logger.error("serious")
        print("printed by a library")
        warnings.warn("of Python", stacklevel=1)
    for handler in logger.handlers:
        handler.flush()
    said, text = capsys.readouterr(), (tmp_path / "log").read_text()
    assert "error: serious\n" in said.err
    assert "details" not in said.err
    assert "theirs" not in said.err
    assert said.out == ""
    assert all(
        word in text
        for word in ("details", "theirs", "serious", "printed by a library", "of Python")
    )
    record = logging.LogRecord("x", logging.WARNING, console.__file__, 1, "ours", (), None)
    assert _is_brief(record)


def test_a_terminal_has_a_live_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = Progress("train", 4)
    for step in range(1, 5):
        bar.update(step, "loss 0.5")
    bar.close()
    assert "train: 100%" in capsys.readouterr().err and bar.bar.n == 4


@pytest.mark.parametrize(
    ("rates", "said"), [([0.1, 0.1], "lr 0.1"), ([0.01, 0.1, 0.02], "lr 0.01 to 0.1")]
)
def test_the_bar_shows_all_rates_of_the_groups(rates, said):
    hook, shown = ConsoleHook(), []
    hook.train_bar = SimpleNamespace(update=lambda done, facts: shown.append((done, facts)))
    now = {"lr": rates}
    runner = SimpleNamespace(iter=4, optim_wrapper=SimpleNamespace(get_lr=lambda: now))
    hook.before_train_iter(runner, 0)
    now = {"lr": [0.5]}  # of the next step, which a schedule has set by then
    hook.after_train_iter(runner, 0)
    assert shown == [(5, said)]


def test_warnings_of_libraries_about_their_own_code_are_hidden(capsys):
    with warnings.catch_warnings():
        warnings.resetwarnings()
        cli._silence_libraries()
        warnings.warn_explicit("old", UserWarning, "builder.py", 36, module="mmseg.models.builder")
        warnings.warn("pkg_resources is deprecated as an API.", stacklevel=1)
        with pytest.warns(UserWarning, match="ours"):
            warnings.warn_explicit("ours", UserWarning, "x.py", 1, module="hypvision.x")
    assert capsys.readouterr().err == ""


def test_words():
    assert [duration(seconds) for seconds in (7, 65, 3720)] == ["7 s", "1 min 05 s", "1 h 02 min"]
    assert [_count(number, "epoch") for number in (0, 1, 2)] == ["0 epochs", "1 epoch", "2 epochs"]
    row = {"epoch": "1", "coco/bbox_mAP": "0.5"}
    assert _table(row).split() == ["epoch", "bbox_mAP", "1", "0.5"]
    assert _table(row, head=False).split() == ["1", "0.5"]


def test_a_table_is_as_wide_as_the_terminal(monkeypatch):
    row = {f"coco/bbox_mAP_{number}": "0.5" for number in range(12)}
    monkeypatch.setenv("COLUMNS", "80")
    head, values = _table(row).splitlines()
    assert len(head) <= 80
    assert head.endswith("bbox_mAP_4  +7 in the log")
    assert values.split() == ["0.5"] * 5
    monkeypatch.setenv("COLUMNS", "200")
    head, values = _table(row).splitlines()
    assert head.endswith("bbox_mAP_11") and len(head) == len(values) and len(values.split()) == 12


def test_the_head_of_a_table_comes_again(capsys):
    hook = console.ConsoleHook()
    metric = SimpleNamespace(classes=[])
    runner = SimpleNamespace(
        _train_loop=None, iter=5, val_evaluator=SimpleNamespace(metrics=[metric])
    )
    for _ in range(11):
        hook.after_val_epoch(runner, {"mIoU": 1.0})
    hook.after_val_epoch(runner, {"mIoU": 1.0, "aAcc": 2.0})
    lines = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert lines[0] == lines[11] == ["step", "mIoU"]
    assert lines[13] == ["step", "mIoU", "aAcc"]
    assert len(lines) == 15


def test_the_worst_classes_stand_below_the_table(capsys):
    found = [
        OfClass(name, value, 4)
        for name, value in (("ant", 50.0), ("bee", 25.0), ("cow", 75.0), ("doe", 100.0))
    ]
    evaluator = SimpleNamespace(metrics=[SimpleNamespace(classes=2 * found)])
    console.ConsoleHook().after_test_epoch(
        SimpleNamespace(test_evaluator=evaluator), {"top1": 62.5}
    )
    said = capsys.readouterr().err.splitlines()[-1]
    assert (
        said.split(": ")[1]
        == "bee 25 (of 4), bee 25 (of 4), ant 50 (of 4), ant 50 (of 4), cow 75 (of 4)"
    )


def test_a_model_without_a_backbone_is_named_by_its_clip(capsys):
    parts = dict(log_dir="logs", test_dataloader=None)
    runner = SimpleNamespace(
        model=torch.nn.Linear(2, 2), cfg=dict(model=dict(clip=dict(name="emoji-t8"))), **parts
    )
    console.ConsoleHook().before_run(runner)
    assert "model   Linear on emoji-t8, 0.0 k parameters" in capsys.readouterr().err
    console.ConsoleHook().before_run(
        SimpleNamespace(**{**vars(runner), "cfg": dict(model=dict(type="Linear"))})
    )
    assert "model   Linear, 0.0 k parameters" in capsys.readouterr().err
