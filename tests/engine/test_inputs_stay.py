"""What a run reads is never written by it: its config, that one's bases, the files that it names; links stay links."""

import pytest
from helpers.engine import make_images, write_config

from hypvision.cli import main


@pytest.fixture
def config(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return write_config(folder / "config.py", make_images(tmp_path / "data"), epochs=1)


def test_a_config_in_its_own_work_dir_stays(config, capsys):
    text = config.read_text() + "# mine\n"
    config.write_text(text)
    assert main(["train", str(config), "--work-dir", str(config.parent)]) == 0
    assert config.read_text() == text
    dumped = [path for path in config.parent.glob("*.py") if path != config]
    assert len(dumped) == 1 and "train_dataloader" in dumped[0].read_text()

    base = config.parent / "base.json"
    base.write_text("{}")
    child = config.parent / "child.py"
    child.write_text("_base_ = ['config.py', 'base.json']\n")
    weights = str(config.parent / "epoch_1.pth")
    capsys.readouterr()
    for written in (base, config):
        before = written.read_text()
        assert main(["test", str(child), weights, "--work-dir", str(config.parent / "t"), "--out", str(written)]) == 2
        assert "an input of this command" in capsys.readouterr().err and written.read_text() == before


def test_a_test_leaves_the_record_of_the_training(config, tmp_path, capsys):
    work = tmp_path / "work"
    options = ["--work-dir", str(work), "--cfg-options"]
    assert main(["train", str(config), *options, "randomness.seed=7"]) == 0
    record = (work / "config.py").read_text()
    assert "seed=7" in record
    assert main(["test", str(config), str(work / "epoch_1.pth"), *options, "randomness.seed=8"]) == 0
    [own] = set(work.glob("*.py")) - {work / "config.py"}
    assert (work / "config.py").read_text() == record and "seed=8" in own.read_text()


@pytest.mark.parametrize("name", ["last_checkpoint", "config.py"])
def test_links_in_a_work_dir_are_not_followed(config, tmp_path, capsys, name):
    precious = tmp_path / "precious"
    precious.write_text("old")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / name).symlink_to(precious)
    assert main(["train", str(config), "--work-dir", str(tmp_path / "work")]) == 2
    assert "link" in capsys.readouterr().err and precious.read_text() == "old"
