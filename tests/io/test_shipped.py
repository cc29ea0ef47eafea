"""Configs by their names, other projects' scripts, and a wheel that works outside of the
checkout."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hypvision.cli import main
from hypvision.engine.config import load_config
from hypvision.io.errors import HypvisionError
from hypvision.io.shipped import config_folder, find_config, recipes, shipped_configs

ROOT = Path(__file__).parents[2]


def test_names_are_unique_and_found():
    files = [path for path in (ROOT / "configs").glob("*/*.py") if path.parent.name != "_base_"]
    assert config_folder() == ROOT / "configs" and len(shipped_configs()) == len(files) + len(
        recipes()
    )
    path = ROOT / "configs/hcformer/hcformer-nano_cifar10.py"
    for name in (
        "hcformer-nano_cifar10",
        "hcformer-nano_cifar10.py",
        "hcformer/hcformer-nano_cifar10",
    ):
        assert find_config(name) == path
    assert (
        find_config("lhier/hcformer-nano_cifar10") is None
        and find_config("default_runtime") is None
    )
    assert set(shipped_configs("demo/*")) == {
        "emoji_detection", "emoji_segmentation", "open_vocabulary", "photos",
    }  # fmt: skip


def test_names_work_in_any_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert load_config("hcformer-nano_cifar10").model.backbone.model_name == "hcformer_nano"
    with pytest.raises(HypvisionError, match="Did you mean hcformer-nano_cifar10"):
        load_config("hcformer-nano_cifar1O")
    assert main(["configs", "camvid"]) == 0
    assert "semantic-fpn_hcformer-nano_600i_camvid" in capsys.readouterr().out
    assert main(["configs", "no_such"]) == 2
    assert "Did you mean" not in capsys.readouterr().err
    assert main(["configs", "cifr10"]) == 2
    assert "Did you mean cifar10" in capsys.readouterr().err


def test_exec_runs_a_script_with_our_models(tmp_path, capsys):
    (tmp_path / "helper.py").write_text("name = 'hcformer_nano'")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, timm, helper\nassert __name__ == '__main__' and sys.argv[1:] == ['--lr', '1', "
        "'-x']\nprint(timm.is_model(helper.name), "
        "timm.optim.get_optimizer_class('riemannianadamw').__name__)\n"
    )
    before = list(sys.path), list(sys.argv)
    assert main(["exec", str(script), "--lr", "1", "-x"]) == 0
    assert "True RiemannianAdamW" in capsys.readouterr().out and (sys.path, sys.argv) == before
    assert main(["exec", str(tmp_path / "none.py")]) == 2


@pytest.mark.slow
def test_a_wheel_trains_by_name_outside_of_the_checkout(tmp_path):
    """Two steps of CIFAR-10's config, on images of ten classes."""
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    build = [
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path / "dist"),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True, text=True)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)], check=True
    )
    for split in ("train", "test"):
        for number in range(10):
            place = tmp_path / "data" / split / str(number)
            place.mkdir(parents=True)
            Image.fromarray(np.full((32, 32, 3), 20 * number, np.uint8)).save(place / "0.png")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    options = [
        f"data_root={tmp_path / 'data'}",
        "train_dataloader.batch_size=5",
        "train_cfg.max_epochs=1",
    ]
    options += [
        "train_dataloader.num_workers=0",
        "val_dataloader.num_workers=0",
        "default_hooks.logger.interval=1",
    ]
    command = [
        sys.executable,
        "-m",
        "hypvision_cli",
        "train",
        "hcformer-nano_cifar10",
        "--cfg-options",
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    [log] = elsewhere.glob("work_dirs/*/*/vis_data/scalars.json")
    assert sum("loss" in json.loads(line) for line in log.read_text().splitlines()) == 2
