"""``test`` and ``train --resume`` with files that are not what they seem: no metric for weights that never got in."""

import json
import re

import numpy as np
import pytest
import torch

pytest.importorskip("mmengine")
from helpers.engine import make_images, write_config
from helpers.hostile_checkpoints import object_at_an_address

from hypvision.cli import main
from hypvision.engine.checkpoint import load_checkpoint_file


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A config and the checkpoint of its training."""
    folder = tmp_path_factory.mktemp("hostile")
    data = make_images(folder / "data", per_class=2)
    config = write_config(folder / "config.py", data, batch=6)
    assert main(["train", str(config), "--work-dir", str(folder / "run")]) == 0
    return config, folder / "run" / "epoch_1.pth"


CHANGES = {
    "sparse": (lambda value: value.to_sparse(), "a sparse or nested tensor"),
    "meta": (lambda value: value.to("meta"), "of the device 'meta'"),
    "complex": (lambda value: value.to(torch.complex64), "complex numbers instead of real numbers"),
    "nan": (lambda value: value * float("nan"), "--allow-nonfinite"),
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.filterwarnings("ignore")
def test_weights_that_do_not_fit_give_no_metrics(trained, tmp_path, capsys, kind):
    config, checkpoint = trained
    change, message = CHANGES[kind]
    weights = load_checkpoint_file(checkpoint)["state_dict"]
    weights = {name: change(value) if value.is_floating_point() else value for name, value in weights.items()}
    torch.save({"state_dict": weights, "meta": {}}, tmp_path / "odd.pth")
    command = ["test", str(config), str(tmp_path / "odd.pth"), "--work-dir", str(tmp_path / "run")]
    assert main(command) == 2
    printed = capsys.readouterr()
    assert message in printed.err and "top1" not in printed.out.splitlines()[-1:]
    if kind == "nan":
        assert main([*command, "--allow-nonfinite"]) == 0
        assert "top1" in json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_resume_reads_no_pointers(trained, tmp_path, capsys):
    """The log of a training is where the attack lay: the file chose the address of an object, and the process died."""
    config, checkpoint = trained
    content = load_checkpoint_file(checkpoint)
    content["message_hub"]["runtime_info"]["x"] = object_at_an_address()
    torch.save(content, tmp_path / "epoch_1.pth")
    command = ["train", str(config), "--work-dir", str(tmp_path / "run"), "--resume", str(tmp_path / "epoch_1.pth")]
    assert main(command) == 2
    assert "contains 'numpy.dtype'" in capsys.readouterr().err


def test_an_honest_resume_still_goes_on(trained, tmp_path):
    config, checkpoint = trained
    content = load_checkpoint_file(checkpoint)
    content["message_hub"]["runtime_info"]["x"] = np.arange(3)
    torch.save(content, tmp_path / "epoch_1.pth")
    command = ["train", str(config), "--work-dir", str(tmp_path / "run"), "--resume", str(tmp_path / "epoch_1.pth")]
    assert main([*command, "--cfg-options", "train_cfg.max_epochs=2"]) == 0
    assert (tmp_path / "run" / "epoch_2.pth").is_file()


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("optimizer", lambda state: state["state"][0].update(exp_avg=torch.ones(7)), "for a parameter of"),
        ("optimizer", lambda state: state["param_groups"].pop(), "ValueError: loaded state dict"),
    ],
)
def test_a_resume_tells_what_it_stumbles_over(trained, tmp_path, capsys, part, change, message):
    config, checkpoint = trained
    content = load_checkpoint_file(checkpoint)
    change(content[part])
    torch.save(content, tmp_path / "epoch_1.pth")
    command = ["train", str(config), "--work-dir", str(tmp_path / "run"), "--resume", str(tmp_path / "epoch_1.pth")]
    assert main([*command, "--cfg-options", "train_cfg.max_epochs=2"]) == 2
    assert re.search(f"epoch_1.pth' cannot be resumed: .*({message})", capsys.readouterr().err)
