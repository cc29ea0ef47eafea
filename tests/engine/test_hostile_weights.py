"""``test`` and ``train --resume`` with files that are not what they seem: no metric for weights
that never got in."""

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
    weights = {
        name: change(value) if value.is_floating_point() else value
        for name, value in weights.items()
    }
    torch.save({"state_dict": weights, "meta": {}}, tmp_path / "odd.pth")
    command = ["test", str(config), str(tmp_path / "odd.pth"), "--work-dir", str(tmp_path / "run")]
    assert main(command) == 2
    printed = capsys.readouterr()
    assert message in printed.err and "top1" not in printed.out.splitlines()[-1:]
    if kind == "nan":
        assert main([*command, "--allow-nonfinite"]) == 0
        assert "top1" in json.loads(capsys.readouterr().out.splitlines()[-1])


def resume(trained, folder, change):
    """Go on with the training from its checkpoint with a change; the exit status."""
    config, checkpoint = trained
    content = load_checkpoint_file(checkpoint)
    change(content)
    torch.save(content, folder / "epoch_1.pth")
    command = (
        f"train {config} --work-dir {folder / 'run'} --resume {folder / 'epoch_1.pth'}".split()
    )
    return main([*command, "--cfg-options", "train_cfg.max_epochs=2"])


def test_an_honest_resume_goes_on(trained, tmp_path):
    assert (
        resume(
            trained,
            tmp_path,
            lambda state: state["message_hub"]["runtime_info"].update(x=np.arange(3)),
        )
        == 0
    )
    assert (tmp_path / "run" / "epoch_2.pth").is_file()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # The log of a training is where the attack lay: the file chose the address of an object,
        # and the process died.
        (
            lambda s: s["message_hub"]["runtime_info"].update(x=object_at_an_address()),
            "contains 'numpy.dtype'",
        ),
        (
            lambda s: s["optimizer"]["state"][0].update(exp_avg=torch.ones(7)),
            "epoch_1.pth' cannot be resumed: .*for a parameter of",
        ),
        (
            lambda s: s["optimizer"]["param_groups"].pop(),
            "epoch_1.pth' cannot be resumed: .*ValueError: loaded state dict",
        ),
    ],
)
def test_a_resume_tells_what_it_stumbles_over(trained, tmp_path, capsys, change, message):
    assert resume(trained, tmp_path, change) == 2
    assert re.search(message, capsys.readouterr().err)
