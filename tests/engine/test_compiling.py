"""Compiled training: which blocks, equal numbers, one graph a kind, and eager execution where it
fails."""

import logging
from collections import Counter

import pytest
import timm
import torch
from helpers.cases import each
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

pytest.importorskip("mmengine")
from functorch.compile import make_boxed_func
from helpers.engine import make_images, write_config
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.exc import InductorError

import hypvision.models  # noqa: F401 - timm's registry
from hypvision.cli import main
from hypvision.engine.compiling import blocks_of, compile_network, eager_on_failure
from hypvision.io.errors import HypvisionError


@pytest.fixture(autouse=True)
def no_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """Three layers, so that it is worth a graph."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.blocks(x))


@each(
    "name, kind, count",
    [
        ("resnet18", "BasicBlock", 8),
        ("swin_tiny_patch4_window7_224", "SwinTransformerBlock", 12),  # not its four stages
        ("vit_tiny_patch16_224", "Block", 12),
        ("efficientnet_lite0", "InvertedResidual", 14),
        ("hcformer_nano", "HCFormerBlock", 12),
        ("hcnn_resnet18", "BasicBlock", 8),
        ("vgg11", "VGG", 1),  # no blocks: the whole network
    ],
)
def test_blocks(name, kind, count):
    with torch.device("meta"):
        network = timm.create_model(name)
    assert Counter(type(block).__name__ for block in blocks_of(network)) == {kind: count}


def test_a_pair_of_layers_is_no_block():
    pair = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    network = nn.Sequential(pair, nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    assert blocks_of(network) == [network]


def test_numbers_and_names_stay_and_each_kind_is_compiled_once():
    plain = Network()
    network = Network()
    names = list(network.state_dict())
    counter = CompileCounterWithBackend("aot_eager")
    assert compile_network(network, backend=counter) == list(network.blocks)
    for batch in (5, 3, 7):  # the second size makes the graph one for all sizes
        x = torch.randn(batch, 4, requires_grad=True)  # as behind a stem
        for model in (plain, network):
            model.zero_grad()
            model(x).square().sum().backward()
        torch.testing.assert_close(network(x), plain(x))
        for ours, theirs in zip(network.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
    assert counter.frame_count == 2
    assert list(network.state_dict()) == names


def test_unknown_options_are_told():
    with pytest.raises(HypvisionError, match=r"compile=.*fast"):
        compile_network(Network(), fast=True)
    with pytest.raises(HypvisionError, match=r"compile=.*nobody"):
        compile_network(Network(), backend="nobody")


def broken(graph, inputs):
    """A failure as inductor's own compiler raises it, in a forward or in a backward."""
    raise InductorError(OSError("no compiler here"), None)


def eager(graph, inputs):
    return make_boxed_func(graph.forward)


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_what_cannot_be_compiled_runs_eagerly(caplog, part):
    backends = {"forward": broken, "backward": aot_autograd(fw_compiler=eager, bw_compiler=broken)}
    network = Network()
    plain = Network()
    blocks = compile_network(network, backend=backends[part])
    x = torch.randn(5, 4)

    def step(model):
        model(x).sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    guarded = eager_on_failure(lambda: step(network), blocks, network)
    with caplog.at_level(logging.WARNING):
        found = guarded()
        network.zero_grad()
        again = guarded()
    for ours, same, theirs in zip(found, again, step(plain), strict=True):
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(same, theirs)
    [record] = caplog.records
    assert "eagerly" in record.message and "no compiler here" in record.message


def test_errors_of_the_network_itself_stay():
    network = Network()
    blocks = compile_network(network, backend="aot_eager")
    guarded = eager_on_failure(lambda: network(torch.randn(5, 3)), blocks, network)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        guarded()


def test_a_training_is_compiled_and_its_checkpoint_is_as_any_other(tmp_path, capsys):
    data = make_images(tmp_path / "data")
    config = write_config(tmp_path / "mine.py", data)
    for name, options in {"plain": "", "compiled": "compile.backend=aot_eager --compile"}.items():
        words = f"train {config} --work-dir {tmp_path / name} --cfg-options model.backbone.depth=2"
        assert main(f"{words} {options}".split()) in (0, None)
    assert "2 Block" in capsys.readouterr().err
    plain, compiled = (
        torch.load(tmp_path / name / "epoch_1.pth", weights_only=False)["state_dict"]
        for name in ("plain", "compiled")
    )
    assert list(plain) == list(compiled)
    for key, value in plain.items():
        torch.testing.assert_close(compiled[key], value, rtol=1e-3, atol=1e-4, msg=key)
