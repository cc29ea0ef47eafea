"""The page and its server: what is sent back, and what is not."""

import os
import warnings
from pathlib import Path

import pytest

pytest.importorskip("gradio")
pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
import gradio as gr
import httpx

from hypvision.app import Answers, build
from hypvision.app.page import with_messages
from hypvision.app.server import serving
from hypvision.io.errors import HypvisionError

TABS = [
    "Classify and explain",
    "Find",
    "Segment by words",
    "From photo to root",
    "Hierarchy in the disk",
]


def test_errors_of_the_library_are_shown_as_they_are_and_bugs_are_not():
    @with_messages
    def ask(error):
        raise error

    with pytest.raises(gr.Error) as shown:
        ask(HypvisionError("The image '/scratch/0f3a/a <b>.png' is wrong."))
    assert shown.value.message == "The image 'a &lt;b&gt;.png' is wrong."
    with pytest.raises(gr.Error, match="The memory is full"):
        ask(MemoryError())
    with pytest.raises(gr.Error, match="a mistake of its own") as shown:
        ask(ZeroDivisionError("secret"))
    assert "secret" not in shown.value.message


def test_warnings_of_the_library_are_shown(monkeypatch):
    seen = []
    monkeypatch.setattr(gr, "Warning", seen.append)

    @with_messages
    def ask():
        warnings.warn_explicit("of ours & theirs", UserWarning, "/x/hypvision/data/classes.py", 1)
        warnings.warn_explicit("of theirs", UserWarning, "/x/torch/nn.py", 1)
        return 3

    assert ask() == 3 and seen == ["of ours &amp; theirs"]


served = pytest.mark.slow  # a server takes six seconds to begin


@pytest.fixture(scope="module")
def client(pictures):
    with serving(Answers(pictures / "gallery"), upload=1) as address:
        assert address.startswith("http://127.0.0.1:")
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
            yield client


@served
def test_the_page_has_its_tabs_and_no_public_endpoints(client):
    config = client.get("config").json()
    tabs = [part["props"]["label"] for part in config["components"] if part["type"] == "tabitem"]
    assert tabs == TABS
    assert config["analytics_enabled"] is False and not config.get("footer_links")
    actions = config["dependencies"]
    assert len(actions) == 8 and {action["api_visibility"] for action in actions} == {"private"}
    assert client.get("monitoring").status_code >= 400


@served
def test_only_files_made_by_the_page_are_served(client, pictures):
    here = Path(__file__)
    for path in (
        here,
        here.name,
        pictures / "secret.png",
        pictures / "gallery/red.png",
        "/etc/passwd",
        "README.md",
    ):
        assert client.get(f"gradio_api/file={path}").status_code in (403, 404), path


@pytest.mark.parametrize("marked", [True, False])
def test_every_input_of_a_page_of_ones_own_checks_its_file(pictures, tmp_path, monkeypatch, marked):
    """Without the server of this package, too."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (tmp_path / "mine.png").write_bytes((pictures / "object.png").read_bytes())
    page = build(Answers(), tmp_path / "examples")
    inputs = {
        each
        for action in page.fns.values()
        for each in action.inputs
        if each.get_block_name() in ("image", "file")
    }
    assert len(inputs) == 5
    for each in inputs:
        for path, fine in (
            (tmp_path / "mine.png", True),
            (pictures / "secret.png", False),
            (Path("/etc/passwd"), False),
        ):
            payload = (
                gr.FileData(path=str(path))
                if marked
                else type("Payload", (), dict(path=str(path)))()
            )
            if fine:
                assert each.preprocess(payload) == str(path)
            else:
                with pytest.raises(gr.Error, match="was not uploaded here"):
                    each.preprocess(payload)


@served
def test_uploads_are_limited_and_removed(pictures):
    with (
        serving(Answers(), upload=1) as address,
        httpx.Client(base_url=address, trust_env=False) as client,
    ):
        assert (
            client.post(
                "gradio_api/upload", files={"files": ("big.png", bytes(2**20 + 1))}
            ).status_code
            == 413
        )
        small = client.post("gradio_api/upload", files={"files": ("small.png", b"text")})
        [path] = Path(os.environ["GRADIO_TEMP_DIR"]).glob("*/small.png")
        assert path.read_bytes() == b"text" and str(path.parents[1]) not in small.text
    assert not path.exists()


@served
def test_an_address_that_is_taken_is_told(client):
    with (
        pytest.raises(HypvisionError, match="cannot listen at"),
        serving(Answers(), port=client.base_url.port),
    ):
        pass


def test_building_needs_no_server(tmp_path):
    page = build(Answers(), tmp_path)
    assert isinstance(page, gr.Blocks) and len(list(tmp_path.glob("*.jpg"))) == 4
