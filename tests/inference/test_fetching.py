"""``hypvision predict`` of an address and of the standard input."""

import io
import json
from types import SimpleNamespace

import pytest
from helpers.bad_server import Server
from helpers.cases import each
from helpers.shapes.images import make_scene

from hypvision.cli import main
from hypvision.inference.fetching import fetched
from hypvision.io.errors import HypvisionError


def photo(format="PNG"):
    buffer = io.BytesIO()
    make_scene(0, "val", 32).image.save(buffer, format)
    return buffer.getvalue()


def send(monkeypatch, data, terminal=False):
    stream = SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: terminal)
    monkeypatch.setattr("sys.stdin", stream)


@pytest.fixture
def server():
    server = Server({"a b.png": photo(), "a%20b.png": photo(), "page": b"<html>", "raw": photo()})
    yield server
    server.close()


def test_predict(server, tmp_path, monkeypatch):
    send(monkeypatch, photo("JPEG"))
    names = [f"{server.url}/good/a%20b.png", f"{server.url}/good/raw?size=1", "-"]
    server.files["raw?size=1"] = photo()
    out = tmp_path / "out"
    model = ["--model", "hcformer_nano.cifar10", "--device", "cpu", "--out", str(out)]
    assert main(["predict", *names, *model]) == 0
    found = json.loads((out / "predictions.json").read_text())
    assert [image["file_name"] for image in found["images"]] == names
    assert {path.name for path in out.glob("*_overlay.png")} == {
        "a b_overlay.png", "raw_overlay.png", "stdin_overlay.png"
    }  # fmt: skip


def test_the_files_are_gone_afterwards(server):
    with fetched(["here.png", f"{server.url}/good/raw"]) as (files, called):
        assert files[0] == "here.png" and files[1].endswith("raw.png")
        [place] = called
    assert not place.parent.parent.exists()


@each("mode, name", [("missing", "a.png"), ("good", "none.png"), ("good", "page")])
def test_an_address_without_an_image(mode, name, server):
    address = f"{server.url}/{mode}/{name}"
    with pytest.raises(HypvisionError, match=address), fetched([address]):
        pass


@each("data, terminal, said", [
    (b"", False, "no image"), (b"words", False, "no image"), (photo(), True, "nothing is sent"),
])  # fmt: skip
def test_the_standard_input_without_an_image(data, terminal, said, monkeypatch):
    with monkeypatch.context() as patch:
        send(patch, data, terminal)
        with pytest.raises(HypvisionError, match=said), fetched(["-"]):
            pass
