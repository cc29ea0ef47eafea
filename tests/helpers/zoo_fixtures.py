"""A tiny model in a zoo of its own, a cache of its own, and a server that misbehaves."""

import huggingface_hub.constants
import pytest
import timm
import torch
from helpers.bad_server import Server
from helpers.zoo import MICRO, NAME, make_item

import hypvision
import hypvision.checkpoints.download
from hypvision.checkpoints.index import parse_record, write_index
from hypvision.checkpoints.records import Index
from hypvision.checkpoints.storage import write_weights


@pytest.fixture(scope="session")
def micro(tmp_path_factory):
    """A tiny HCFormer with random weights, and the file that holds them."""
    torch.manual_seed(0)
    arguments = {
        key: tuple(value) if isinstance(value, list) else value for key, value in MICRO.items()
    }
    model = timm.create_model("hcformer_nano", num_classes=3, **arguments).eval()
    path = tmp_path_factory.mktemp("micro") / "micro.safetensors"
    write_weights(model.state_dict(), path)
    return model, path


@pytest.fixture
def item(micro):
    """A valid record as plain values."""
    return make_item(micro[1])


@pytest.fixture
def record(item):
    """The record of the tiny model, packaged nowhere: only sources can give it."""
    return parse_record(
        {**item, "file": {**item["file"], "path": None, "urls": ["file:///nowhere/x.safetensors"]}}
    )


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A cache of its own, no mirrors, short waits."""
    for name in (
        "HYPVISION_WEIGHTS",
        "HYPVISION_OFFLINE",
        "HF_HUB_OFFLINE",
        "HYPVISION_INDEX",
        "XDG_CACHE_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hypvision.checkpoints.download, "WAIT", 0.01)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    return tmp_path / "home"


@pytest.fixture
def server(micro, record):
    """Serves the tiny model under the name that mirrors use."""
    server = Server({record.filename: micro[1].read_bytes()})
    yield server
    server.close()


@pytest.fixture
def zoo(tmp_path, micro, item, monkeypatch):
    """A zoo with the tiny model packaged, which is the built-in one for this test."""
    folder = tmp_path / "zoo"
    (folder / "weights").mkdir(parents=True)
    (folder / "weights" / "micro.safetensors").write_bytes(micro[1].read_bytes())
    write_index(Index({NAME: parse_record(item)}), folder / "index.yml")
    monkeypatch.setenv("HYPVISION_INDEX", str(folder / "index.yml"))
    return folder
