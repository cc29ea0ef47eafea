"""Converting files: formats, wrappers, what is told to the user, and that no half-written file
stays behind."""

import sys
from argparse import Namespace
from types import ModuleType

import numpy as np
import pytest
import timm
import torch
from references.hcformer import ReferenceHCFormer
from safetensors.torch import load_file, save_file

from hypvision.checkpoints.read import LogHistory, read_file
from hypvision.cli import main
from hypvision.io.errors import HypvisionError
from hypvision.models.hcformer_checkpoint import (
    hcformer_from_official,
    hcformer_to_official,
    hcformer_variant,
)
from hypvision.zoo.convert import convert_file
from hypvision.zoo.loading import load_trained


@pytest.fixture(scope="module")
def official():
    torch.manual_seed(0)
    return ReferenceHCFormer("hcformer_nano", num_classes=7).state_dict()


def with_buffers(official, k=1.0):
    """With geoopt's, which mixers with a window level have in the official files, and ours
    nowhere."""
    windows = [name for name in official if name.endswith("relative_position_bias2")]
    assert len(windows) == 10
    return {
        **official,
        **{
            name.replace("relative_position_bias2", "manifold.k"): torch.tensor(k)
            for name in windows
        },
    }


def save(weights, path, wrapper=None):
    if path.suffix == ".safetensors":
        save_file({name: value.contiguous() for name, value in weights.items()}, path)
    else:
        torch.save({wrapper: weights, "epoch": 3} if wrapper else weights, path)
    return path


@pytest.mark.quick("None-new/out.safetensors")
@pytest.mark.parametrize(
    ("wrapper", "target"),
    [(None, "new/out.safetensors"), ("state_dict", "out.pth"), ("model", "out.safetensors")],
)
def test_converted_files_load_in_timm(tmp_path, official, wrapper, target):
    source = save(official, tmp_path / "in.pth", wrapper)
    done = convert_file("hcformer", source, tmp_path / target)
    assert (done.model, done.arguments) == ("hcformer_nano", {"num_classes": 7})
    scope = {"timm": timm}
    model = eval(done.usage(), scope)  # the line that the user is told
    expected = hcformer_from_official(official)
    assert model.num_classes == 7
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert [path.name for path in done.path.parent.iterdir() if path.suffix == ".tmp"] == []


def test_diverged_weights_cause_one_warning_with_the_file_name(tmp_path, official, caplog):
    name = next(name for name, value in official.items() if name.endswith("weight"))
    source = save({**official, name: official[name] * float("nan")}, tmp_path / "in.pth")
    convert_file("hcformer", source, tmp_path / "out.pth")
    assert [f"'{source}' has NaN" in text for text in caplog.messages] == [True]
    caplog.clear()
    load_trained(tmp_path / "out.pth", "hcformer_nano")
    assert [f"'{tmp_path / 'out.pth'}' has NaN" in text for text in caplog.messages] == [True]
    caplog.clear()
    timm.create_model(
        "hcformer_nano", num_classes=7, checkpoint_path=str(tmp_path / "out.pth")
    )  # timm tells no name
    assert any("The checkpoint that is being loaded has NaN" in text for text in caplog.messages)


def test_there_and_back(tmp_path, official):
    whole = with_buffers(official, 4.0)
    source = save(whole, tmp_path / "in.safetensors")
    assert (
        convert_file("hcformer", source, tmp_path / "ours.safetensors").arguments["curvature"]
        == 0.25
    )
    back = tmp_path / "back.safetensors"
    done = convert_file(
        "hcformer", tmp_path / "ours.safetensors", back, to_official=True, curvature=0.25
    )
    back = load_file(back)
    assert done.model == "hcformer_nano"
    assert {n: v.shape for n, v in back.items()} == {n: v.shape for n, v in whole.items()}
    assert all(torch.equal(back[name], value) for name, value in whole.items())
    with pytest.raises(
        HypvisionError, match="--curvature has no use here: it is for HCFormers and Lorentz ResNets"
    ):
        convert_file("hcformer", source, tmp_path / "ours.safetensors", curvature=0.25)
    with pytest.raises(HypvisionError, match="curvature must be .* above 0"):
        hcformer_to_official({}, -1.0)


def test_data_parallel_prefix_and_scalar_temperatures(tmp_path, official):
    renamed = {
        "module." + name: value.squeeze() if "sim_alpha" in name else value
        for name, value in official.items()
    }
    convert_file("hcformer", save(renamed, tmp_path / "in.pth"), tmp_path / "out.pth")
    assert torch.load(tmp_path / "out.pth", weights_only=True)[
        "stages.0.blocks.0.mixer.alpha"
    ].shape == (1,)


@pytest.mark.parametrize("prefix", ["backbone.", "backbone.timm_model.model."])
def test_back_from_a_trained_model(tmp_path, official, prefix):
    trained = {prefix + name: value for name, value in hcformer_from_official(official).items()}
    source = save(
        {**trained, "decode_head.weight": torch.ones(2)}, tmp_path / "in.pth", "state_dict"
    )
    convert_file("hcformer", source, tmp_path / "out.pth", to_official=True)
    assert set(torch.load(tmp_path / "out.pth", weights_only=True)) == set(with_buffers(official))


def test_variants_are_recognised():
    arguments = {}
    for name in timm.list_models("hcformer_*"):
        weights = timm.create_model(name, device="meta", **arguments).state_dict()
        assert hcformer_variant(weights) == (name, arguments)
        arguments = {"num_classes": 0, "img_size": 96, "in_chans": 1}


def test_dense_checkpoints(tmp_path):
    source = save(ReferenceHCFormer("hcformer_tiny", dense=True).state_dict(), tmp_path / "in.pth")
    done = convert_file("hcformer", source, tmp_path / "out.pth")
    assert (done.model, done.arguments) == ("hcformer_tiny", {"features_only": True})
    weights = torch.load(done.path, weights_only=True)
    timm.create_model(done.model, **done.arguments).model.load_state_dict(weights)
    reference = with_buffers(ReferenceHCFormer("hcformer_tiny", dense=True).state_dict())
    assert set(hcformer_to_official(weights)) == set(reference)


MISTAKES = {
    "no file": (None, {}, "There is no checkpoint"),
    "no family": (lambda own: own, dict(family="resnet"), "family"),
    "no suffix": (lambda own: own, dict(target="out.bin"), "must end in"),
    "official already": (lambda own: own, dict(to_official=True), "official names already"),
    "ours already": (hcformer_from_official, {}, "hypvision's names already"),
    "another network": (lambda own: {"conv.weight": torch.ones(2)}, {}, "not a checkpoint of"),
    "a list": (lambda own: [1, 2], {}, "holds a list"),
    "one more": (lambda own: own | {"network.8.weight": torch.ones(2)}, {}, "'network.8.weight'"),
    "another size": (
        lambda own: own | {"patch_embed.proj.weight": torch.ones(40, 3, 4, 4)}, {}, "40 channels"
    ),
    "a part": (
        lambda own: {key: own[key] for key in own if not key.startswith("network.0.")}, {}, "a part"
    ),
    "two curvatures": (
        lambda own: with_buffers(own) | {"network.2.0.token_mixer.manifold.k": torch.tensor(4.0)},
        {}, "manifold.k",
    ),
    "no curvature": (lambda own: with_buffers(own, -1.0), {}, "manifold.k"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(tmp_path, official, mistake):
    change, options, mentioned = MISTAKES[mistake]
    options = dict(family="hcformer", target="out.pth") | options
    source = tmp_path / "in.pth"
    if change is not None:
        save(change(official), source)
    family, target = options.pop("family"), tmp_path / options.pop("target")
    with pytest.raises(HypvisionError, match=mentioned) as caught:
        convert_file(family, source, target, **options)
    assert "\n" not in str(caught.value) and not target.exists()


@pytest.mark.parametrize("stem", ["conv", "residual"])
def test_what_the_official_code_lacks_is_named(tmp_path, stem):
    options = dict(stem=stem, local_conv=True, locality=1.0, mixer_norm=True)
    ours = timm.create_model("hcformer_nano", num_classes=2, img_size=32, patch_size=2, **options)
    save(ours.state_dict(), tmp_path / "own.pth")
    with pytest.raises(HypvisionError, match=f"{stem}.*local_conv.*locality.*mixer_norm"):
        convert_file("hcformer", tmp_path / "own.pth", tmp_path / "out.pth", to_official=True)


def test_the_source_is_not_overwritten(tmp_path, official):
    source = save(official, tmp_path / "in.pth")
    with pytest.raises(HypvisionError, match="overwritten"):
        convert_file("hcformer", source, source)


def test_files_of_trainings(tmp_path, official):
    """timm saves its command line beside the weights."""
    args = Namespace(model="hcformer_nano", lr=0.1, opt_betas=None)
    torch.save(
        {"state_dict": official, "args": args, "epoch": 3, "arch": "hcformer_nano"},
        tmp_path / "in.pth",
    )
    assert (
        convert_file("hcformer", tmp_path / "in.pth", tmp_path / "out.pth").model == "hcformer_nano"
    )


def test_checkpoints_with_a_log_need_no_mmengine(tmp_path, official, monkeypatch):
    """The class that a training's log has need not be there to read the weights beside it."""

    class HistoryBuffer:
        def __init__(self):
            self._log_history, self._count_history, self.max_length = (
                np.array([1.5, 2.5]),
                np.array([1, 3]),
                7,
            )

    HistoryBuffer.__module__, HistoryBuffer.__qualname__ = (
        "mmengine.logging.history_buffer",
        "HistoryBuffer",
    )
    package = ModuleType("mmengine.logging.history_buffer")
    package.HistoryBuffer = HistoryBuffer
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, package.__name__, package)
        torch.save(
            {"state_dict": official, "message_hub": {"loss": HistoryBuffer()}}, tmp_path / "in.pth"
        )
    monkeypatch.setitem(sys.modules, "mmengine", None)  # as where mmengine is not installed
    monkeypatch.setitem(sys.modules, package.__name__, None)
    assert (
        convert_file("hcformer", tmp_path / "in.pth", tmp_path / "out.pth").model == "hcformer_nano"
    )
    log = read_file(tmp_path / "in.pth")["message_hub"]["loss"]
    assert isinstance(log, LogHistory)
    assert log.log_history.tolist() == [1.5, 2.5]
    assert log.max_length == 7


def test_command_line(tmp_path, official, capsys):
    def call(*arguments):
        status = main(["zoo", "convert", "--from", "hcformer", *map(str, arguments)])
        return status, capsys.readouterr()

    source = save(official, tmp_path / "in.pth")
    code, printed = call(source, tmp_path / "out.safetensors")
    assert code == 0
    assert 'timm.create_model("hcformer_nano", num_classes=7, checkpoint_path=' in printed.out
    code, printed = call(tmp_path / "out.safetensors", tmp_path / "back.pth", "--to-official")
    assert code == 0 and "hcformer_nano: wrote" in printed.out and "Use:" not in printed.out
    code, printed = call(tmp_path / "none.pth", tmp_path / "out.pth")
    assert code == 2 and "There is no checkpoint" in printed.err and printed.out == ""
