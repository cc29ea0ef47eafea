"""Several seeds of a training as one command."""

import json
from statistics import mean, stdev

import pytest
from helpers.shapes.export import export

from hypvision.cli import main
from hypvision.engine.config import load_config
from hypvision.engine.run import train
from hypvision.engine.seeds import train_seeds
from hypvision.io.errors import HypvisionError

SMALL = [
    "model.backbone.widths=(4,4,4,4)", "train_dataloader.batch_size=8",
    "train_dataloader.num_workers=0", "val_dataloader.num_workers=0",
    "val_dataloader.persistent_workers=False", "train_cfg.max_epochs=1", "train_cfg.val_interval=1",
    "param_scheduler=[]",
]  # fmt: skip


def test_seeds_as_one_command(tmp_path, capsys):
    export(tmp_path / "data", "imagefolder", 16, 16, 32, level="kind")
    (tmp_path / "data/val").rename(tmp_path / "data/test")
    options = [*SMALL, f"data_root={tmp_path / 'data'}"]
    folder = tmp_path / "runs"
    command = [
        *f"train resnet18-small_3e_cifar10 --work-dir {folder} --cfg-options".split(),
        *options,
    ]
    assert main([*command, "--seeds", "1"]) == 0
    first = json.loads((folder / "seeds.json").read_text())
    logs = {path.name: path.stat().st_mtime_ns for path in (folder / "seed-0").iterdir()}
    assert main([*command, "--seeds", "2"]) == 0
    found = json.loads((folder / "seeds.json").read_text())
    assert found["seeds"]["0"] == first["seeds"]["0"] and set(found["seeds"]) == {"0", "1"}
    assert logs == {path.name: path.stat().st_mtime_ns for path in (folder / "seed-0").iterdir()}
    with pytest.raises(HypvisionError, match="seeds.json.*--work-dir"):  # of another training
        train_seeds(
            "resnet18-small_3e_cifar10", 2, folder, _parsed([*options, "model.backbone.plus=True"])
        )
    with pytest.raises(HypvisionError, match="seeds.json.*--work-dir"):
        train_seeds("resnet18-small_3e_cifar10", 2, folder, _parsed(options), amp=True)
    found = found["seeds"]
    for seed in ("0", "1"):  # the seed is that of the run
        run = next((folder / f"seed-{seed}").glob("*.py"))
        assert load_config(run).randomness.seed == int(seed)
    name = next(name for name in found["0"] if "top1" in name)
    values = [found[seed][name] for seed in ("0", "1")]
    line = next(
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(name) and "±" in line
    )
    assert f"{mean(values):.4g} ± {stdev(values):.4g}" in line
    once = train(
        load_config("resnet18-small_3e_cifar10", _parsed([*options, "randomness.seed=1"])),
        tmp_path / "once",
    )
    assert once.message_hub.get_scalar(f"val/{name}").current() == pytest.approx(found["1"][name])


def _parsed(options):
    from hypvision.engine.config import parse_options

    return parse_options(options)


def test_mistakes(tmp_path, capsys):
    with pytest.raises(HypvisionError, match="randomness.seed"):
        train_seeds("resnet18-small_3e_cifar10", 2, tmp_path, {"randomness.seed": 3})
    (tmp_path / "seeds.json").write_text('{"0": {"top1": 50.0}}')  # says nothing of its training
    with pytest.raises(HypvisionError, match="seeds.json.*--work-dir"):
        train_seeds("resnet18-small_3e_cifar10", 1, tmp_path)
    assert main(["train", "resnet18-small_3e_cifar10", "--seeds", "2", "--resume", "a.pth"]) == 2
    assert "--seeds" in capsys.readouterr().err
