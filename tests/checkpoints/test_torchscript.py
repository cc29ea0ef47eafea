"""TorchScript archives: their tensors by the names of the state dict, in each precision, and
nothing of them is run."""

import os
import pickle
import warnings
import zipfile

import pytest
import torch
from helpers.cases import each
from torch import nn

from hypvision.checkpoints.read import network_weights, read_file
from hypvision.checkpoints.torchscript import class_names
from hypvision.io.errors import HypvisionError

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.sizes, self.names, self.shares = [1, 2], {"a": 1}, [0.5]
        self.flags, self.words = [True], ["b"]
        self.kept, self.device = [torch.ones(1)], torch.device("cpu")

    def forward(self, x):
        return self.norm(self.linear(x)) * len(self.sizes) + self.kept[0]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.blocks.append(self.blocks[0])  # one module, two names
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.head = nn.Linear(4, 4)
        self.head.weight = self.blocks[0].linear.weight  # one tensor, two names
        self.register_buffer("resolution", torch.tensor(64))

    def forward(self, x):
        return self.head(self.blocks(x)) * self.scale


def network():
    torch.manual_seed(0)
    return Network().eval()


@each("make", [torch.jit.script, lambda net: torch.jit.trace(net, torch.ones(2, 4))])
@each("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_are_those_of_the_state_dict(tmp_path, make, dtype):
    net = network().to(dtype) if dtype != torch.float32 else network()
    script = make(network()).to(dtype)
    script.save(str(tmp_path / "net.pt"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_file(tmp_path / "net.pt")
    expected = net.state_dict()
    assert found.keys() == expected.keys() and found["resolution"].dtype == torch.int64
    assert all(
        torch.equal(found[name], value) and found[name].dtype == value.dtype
        for name, value in expected.items()
    )
    weights = network_weights(found)
    assert all(
        value.dtype == torch.float32 for value in weights.values() if value.is_floating_point()
    )
    again = network()
    again.load_state_dict(weights)
    assert torch.equal(again.blocks[2].linear.weight, weights["head.weight"])


def test_a_tensor_that_is_only_an_attribute_is_read_too(tmp_path):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.mask = nn.Linear(2, 2), torch.ones(2)

        def forward(self, x):
            return self.linear(x) * self.mask

    torch.jit.script(Masked()).save(str(tmp_path / "net.pt"))
    assert read_file(tmp_path / "net.pt").keys() == {"linear.weight", "linear.bias", "mask"}
    assert any(name.endswith("Masked") for name in class_names(tmp_path / "net.pt"))


def rewritten(path, pickled):
    """An archive like that of the network, with another pickle in it."""
    torch.jit.script(network()).save(str(path.with_name("good.pt")))
    with zipfile.ZipFile(path.with_name("good.pt")) as source, zipfile.ZipFile(path, "w") as target:
        for entry in source.infolist():
            target.writestr(
                entry, pickled if entry.filename.endswith("/data.pkl") else source.read(entry)
            )
    return path


CLASS = b"c__torch__\nNetwork\n)\x81"  # an object of a class of the archive
HOSTILE = {
    "a call": (lambda proof: pickle.dumps(Reduces(f"touch {proof}"), 2), "contains 'posix.system'"),
    "a call in a module": (
        lambda proof: (
            b"\x80\x02"
            + CLASS
            + b"}U\x01a"
            + pickle.dumps(Reduces(f"touch {proof}"), 2)[2:-1]
            + b"sb."
        ),
        "contains 'posix.system'",
    ),
    "a module in itself": (
        lambda proof: b"\x80\x02" + CLASS + b"q\x00}U\x01ah\x00sb.",
        "contains '__torch__'",
    ),
    "names without end": (
        lambda proof: b"\x80\x02" + CLASS + b"q\x00}X\x00\x00\x40\x00" + b"a" * 2**22 + b"h\x00sb.",
        "contains '__torch__'",
    ),
    "a function as a class": (
        lambda proof: b"\x80\x02c__torch__\nX\n(U\x01atR.",
        "is whole, but cannot be read",
    ),
    "a class of Python": (lambda proof: b"\x80\x02cbuiltins\neval\n(U\x011tR.", "contains 'eval'"),
}


class Reduces:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@each("name", HOSTILE)
def test_hostile_archives_are_refused_and_run_nothing(tmp_path, name):
    make, says = HOSTILE[name]
    path = rewritten(tmp_path / "bad.pt", make(tmp_path / "proof"))
    with pytest.raises(HypvisionError, match=says):
        read_file(path)
    assert not (tmp_path / "proof").exists()


def test_code_that_unpacks_to_more_is_not_unpacked_and_weights_that_do_are_refused(tmp_path):
    torch.jit.script(network()).save(str(tmp_path / "good.pt"))
    for place, fine in (("good/code/more.py", True), ("good/data/more", False)):
        path = tmp_path / "bomb.pt"
        path.write_bytes((tmp_path / "good.pt").read_bytes())
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(place, bytes(10**7))
        if fine:
            assert read_file(path).keys() == network().state_dict().keys()
        else:
            with pytest.raises(HypvisionError, match="compressed or overlapping parts"):
                read_file(path)


def test_a_pickle_that_unpacks_to_more_than_its_file_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/data.pkl", bytes(10**7))
        archive.writestr("net/constants.pkl", b"")
    with pytest.raises(HypvisionError, match="bomb.pt"):
        class_names(tmp_path / "bomb.pt")
