"""``hypvision predict`` of an address and of the standard input."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.bad_server import Server
from helpers.cases import each
from helpers.shapes.images import make_scene

from hypvision.cli import main
from hypvision.inference.sources import fetched
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
    shown = [name.partition("?")[0] for name in names]  # a query may sign the address
    assert [image["file_name"] for image in found["images"]] == shown
    assert {path.name for path in out.glob("*_overlay.png")} == {
        "a b_overlay.png", "raw_overlay.png", "stdin_overlay.png"
    }  # fmt: skip


def test_predict_of_a_video(server, tmp_path):
    """Its rate is that of the file, not of the address."""
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "clip.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 10, (96, 96))
    if not writer.isOpened():
        pytest.skip("OpenCV has no encoder here")
    for number in range(4):
        writer.write(np.full((96, 96, 3), 40 * number, np.uint8))
    writer.release()
    server.files["clip.mp4?sig=hunter2"] = path.read_bytes()
    out = tmp_path / "out"
    model = ["--model", "hcformer_nano.cifar10", "--device", "cpu", "--out", str(out)]
    address = f"{server.url}/good/clip.mp4"
    assert main(["predict", f"{address}?sig=hunter2", "--every", "2", *model]) == 0
    found = json.loads((out / "predictions.json").read_text())
    assert [image["file_name"] for image in found["images"]] == [address] * 2
    reader = cv2.VideoCapture(str(out / "clip_overlay.mp4"))
    assert (reader.get(cv2.CAP_PROP_FRAME_COUNT), reader.get(cv2.CAP_PROP_FPS)) == (2, 5)


def test_no_secret_of_an_address_is_printed_or_written(server, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    server.files["raw?sig=hunter2"] = photo()
    secret = server.url.replace("://", "://me:hunter2@")
    out = str(tmp_path / "out")
    model = ["--model", "hcformer_nano.cifar10", "--device", "cpu", "--out", out]
    assert main(["predict", f"{secret}/good/raw?sig=hunter2", *model]) == 0
    for words in (
        [f"{secret}/missing/raw?sig=hunter2", *model],
        [f"{secret}/good/raw?sig=hunter2", *model, "--weights", f"{secret}/good/w.pth?sig=hunter2"],
        [f"{secret}/good/raw?sig=hunter2", *model, "--weights",
         f"{secret}/missing/w.pth?sig=hunter2#sha256={'0' * 64}"],
    ):  # fmt: skip
        assert main(["predict", *words]) == 2
    told = "".join(capfd.readouterr())
    assert "127.0.0.1" in told and "hunter2" not in told
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written and not any(b"hunter2" in path.read_bytes() for path in written)
    assert not any("hunter2" in str(path.relative_to(tmp_path)) for path in written)


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
