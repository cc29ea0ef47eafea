"""A client of the running app asks every endpoint of Gradio for files that are not its own."""

import json
import os
import re
import warnings
from functools import cached_property
from itertools import product
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("gradio")
pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
import gradio
import httpx
from gradio.routes import App
from PIL import Image

from hypvision.app import Answers, build
from hypvision.app.server import serving
from hypvision.app.sessions import ROUTES
from hypvision.app.uploads import NOT_YOURS, UNKNOWN

pytestmark = pytest.mark.slow  # a server takes six seconds to begin, and its worker as long
META = {"meta": {"_type": "gradio.FileData"}}
MODEL = {"classify": "hcformer_nano.cifar10", "find": "hcformer_nano.cifar10"}
CLIP = "emoji-t8.scenes"
SECRET = (1, 222, 3)  # the colour of a picture that nobody may see


class Client(httpx.Client):
    """One user: cookies of its own."""

    def __init__(self, address):
        super().__init__(base_url=address, trust_env=False, timeout=120)

    @cached_property
    def actions(self):
        return {each["api_name"]: each["id"] for each in self.get("config").json()["dependencies"]}

    def upload(self, path, name=None):
        """The name by which the server calls an upload."""
        with Path(path).open("rb") as file:
            [handle] = self.post(
                "gradio_api/upload", files={"files": (name or Path(path).name, file)}
            ).json()
        return handle

    def ask(self, action, data, session="s"):
        """Whether a function gave a result, and all that the server said."""
        fn_index = action if isinstance(action, int) else self.actions[action]
        joined = self.post(
            "gradio_api/queue/join", json=dict(data=data, fn_index=fn_index, session_hash=session)
        )
        if joined.status_code != 200:
            return False, joined.text
        with self.stream(
            "GET", "gradio_api/queue/data", params={"session_hash": session}
        ) as events:
            said = "".join(event + "\n" for event in events.iter_lines())
        return '"success":true' in said, said


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A gallery, and secrets beside it: a picture, a text and links to them."""
    root = tmp_path_factory.mktemp("server")
    (root / "gallery").mkdir()
    Image.new("RGB", (32, 32), "red").save(root / "gallery/red.png")
    Image.new("RGB", (32, 32), SECRET).save(root / "secret.png")
    (root / "secret.csv").write_text("id1,id2\nclassified,top secret\n")
    (root / "gallery/link.png").symlink_to(root / "secret.png")
    return root


@pytest.fixture(scope="module")
def address(place):
    with serving(Answers(place / "gallery"), upload=1) as address:
        yield address


@pytest.fixture(scope="module")
def uploads(address):
    """The folder of uploads, which only the test knows."""
    return Path(os.environ["GRADIO_TEMP_DIR"])


@pytest.fixture
def client(address):
    with Client(address) as client:
        yield client


def names(place, uploads, theirs):
    """Names of files that are not the client's, or of none at all."""
    real = str(next(path for path in uploads.glob("*/theirs.png")))
    link = uploads / "link.png"
    if not link.is_symlink():
        link.symlink_to(place / "secret.png")
    folder = theirs.rpartition("/")[0]
    return [
        str(place / "secret.png"), str(place / "secret.csv"), str(place / "gallery/red.png"),
        str(place / "no.png"), str(place / "gallery/link.png"), str(link), real, theirs,
        f"{uploads}/../{place.name}/secret.png", f"{folder}/../../../{place / 'secret.png'}",
        f"{theirs}/../theirs.png", f"{folder}/..", "/proc/self/environ",
        "/proc/self/cwd/pyproject.toml", "/dev/zero", "/etc/passwd", "../../etc/passwd",
        "file:///etc/passwd", "http://127.0.0.1:1/x.png", f"{uploads}/examples/scene0.jpg",
        str(uploads), "~/.bashrc", "a\0b", "x" * 5000,
    ]  # fmt: skip


def check_silent(text, place, uploads):
    """Nothing of the server's folders, and nothing of the secrets, is in an answer."""
    for word in (
        place,
        uploads,
        Path.home(),
        Path.cwd(),
        Path(gradio.__file__).parent,
        "classified",
        "Traceback",
    ):
        assert str(word) not in text, (word, text[:500])


def routes():
    """Every route of Gradio, as method and path."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app = App.create_app(build(Answers(), Path("unused")))
    found = []
    for route in app.routes:
        for each in route.original_router.routes if hasattr(route, "original_router") else [route]:
            found += [(method, each.path) for method in sorted(each.methods)]
    return found


@pytest.fixture(scope="module")
def every_route(tmp_path_factory):
    here = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("drawn"))
    try:
        return routes()
    finally:
        os.chdir(here)


def test_all_routes_of_gradio_are_known(every_route):
    paths = {path for _, path in every_route}
    assert (
        len(every_route) > 60
        and {"/gradio_api/queue/join", "/gradio_api/call/{api_name}", "/config"} <= paths
    )


def test_no_route_gives_a_file_that_is_not_the_clients(
    client, address, place, uploads, every_route
):
    with Client(address) as other:
        theirs = other.upload(place / "secret.png", "theirs.png")
        real = next(uploads.glob("*/theirs.png"))
        assert (
            str(uploads) not in theirs
            and other.get(f"gradio_api/file={quote(theirs)}").content == real.read_bytes()
        )
    secrets = [path.read_bytes() for path in (place / "secret.png", place / "secret.csv")]
    passed = set()
    for (method, route), name in product(every_route, names(place, uploads, theirs)):
        if "heartbeat" in route:  # never ends
            continue
        path = quote(name, safe="").join(re.split(r"\{[^}]*\}", route))
        body = dict(
            data=[{"path": name, **META}], fn_index=4, session_hash="s", event_id="e", path=name
        )
        body |= dict(component_id=1, fn_name="ls", code="x", prompt="x", bucket_id="x")
        asked = dict(json=body) if method == "POST" else {}
        answer = client.request(
            method, path.lstrip("/"), params=dict(deep_link=name, session_hash="s"), **asked
        )
        check_silent(answer.text, place, uploads)
        assert not any(secret in answer.content for secret in secrets), (method, path)
        if answer.status_code < 400:
            passed.add((method, route))
        else:
            assert method == "HEAD" or "upload" in path or answer.json()["detail"], (
                method,
                path,
                answer.text,
            )
    reached = {(method, re.sub(r"\{.*?\}", "x", route)) for method, route in passed}
    assert all(re.fullmatch(ROUTES[method], route) for method, route in reached), reached


@pytest.mark.parametrize("marked", [True, False])
def test_no_function_takes_a_file_that_is_not_the_clients(client, address, place, uploads, marked):
    with Client(address) as other:
        theirs = other.upload(place / "secret.png", "theirs.png")
    config = client.get("config").json()
    assert len(config["dependencies"]) == 8
    for action, name in product(config["dependencies"], names(place, uploads, theirs)):
        payload = {"path": name, "orig_name": "x.png", "url": f"http://127.0.0.1:1/{name}"} | (
            META if marked else {}
        )
        for given in (payload, [payload], {"image": payload, "caption": None}, {"path": name}):
            data = [given for _ in action["inputs"]]
            done, said = client.ask(action["id"], data)
            assert not done and NOT_YOURS in json.loads(said)["detail"], (
                action["api_name"],
                name,
                said,
            )
    assert client.ask("segment", [None, "x", CLIP])[0] is False


def test_all_wrong_names_get_the_same_answer(client, address, place, uploads):
    with Client(address) as other:
        theirs = other.upload(place / "secret.png", "theirs.png")
    told = {
        client.ask("segment", [{"path": name}, "x", CLIP])[1]
        for name in names(place, uploads, theirs)
    }
    told |= {
        client.get(f"gradio_api/file={quote(name, safe='')}").text
        for name in names(place, uploads, theirs)[:-2]
    }
    assert len(told) == 1
    folders = [
        "/etc",
        "/no/such",
        "..",
        "../no",
        str(place),
        "/root/x",
        "link",
        "no_such",
        "/proc/self/fd",
    ]
    folders += [str(place / "gallery"), "../gallery"]
    sentences = set()
    for folder in folders:
        done, said = client.ask("find", ["disk", None, CLIP, 1, folder])
        assert not done and "There is no folder" in said
        sentences.add(re.sub(r"folder '[^']*'", "", re.findall(r'"error":"[^"]*"', said)[0]))
    assert len(sentences) == 1


@pytest.mark.parametrize(
    "name",
    [
        "a b.png",
        "ä'ß&#;%20.png",
        "../../x.png",
        "a%2fb.png",
        "😀.png",
        ".png",
        "l\u202eong" + "g" * 400 + ".png",
    ],
)
def test_an_upload_is_its_owners_under_any_name(client, place, name):
    handle = client.upload(place / "gallery/red.png", name)
    assert (
        client.get(f"gradio_api/file={quote(handle)}").content
        == (place / "gallery/red.png").read_bytes()
    )
    for payload in ({"path": handle}, {"path": handle, **META}):
        done, said = client.ask("segment", [payload, "fruit, bird", CLIP])
        assert done, said


def test_results_and_sessions_are_their_owners(client, address, place, uploads):
    handle = client.upload(place / "gallery/red.png")
    done, said = client.ask(
        "classify", [{"path": handle, **META}, MODEL["classify"], ""], session="mine"
    )
    check_silent(said, place, uploads)
    results = re.findall(r'"path":"([^"]*)"', said)
    urls = re.findall(r'"url":"([^"]*)"', said)
    assert done and results and all(client.get(url).status_code == 200 for url in urls)
    with Client(address) as other:
        assert {other.get(url).status_code for url in urls} == {403}
        assert {
            other.get(f"gradio_api/file={quote(name)}").status_code for name in [handle, *results]
        } == {403}
        done, said = other.ask("segment", [{"path": handle, **META}, "x", CLIP], session="mine")
        assert not done and NOT_YOURS in said
        body = dict(data=["a > b", None, 100], fn_index=client.actions["disk"], session_hash="mine")
        assert client.post("gradio_api/queue/join", json=body).status_code == 200
        with other.stream(
            "GET", "gradio_api/queue/data", params={"session_hash": "mine"}
        ) as events:
            assert "process_completed" not in events.read().decode()
    with client.stream("GET", "gradio_api/queue/data", params={"session_hash": "mine"}) as events:
        assert '"success":true' in events.read().decode()


def test_examples_are_everyones(client, address):
    with Client(address) as other:
        for each in (client, other):
            done, said = each.ask("example", [1])
            [url] = re.findall(r'"url":"([^"]*)"', said)
            assert done and each.get(url).headers["content-type"] == "image/jpeg"


def test_pages_tell_no_folder(client, place, uploads):
    for path in (
        "",
        "config",
        "gradio_api/info",
        "gradio_api/info?all_endpoints=true",
        "theme.css",
        "manifest.json",
    ):
        answer = client.get(path)
        assert answer.status_code == 200
        check_silent(answer.text, place, uploads)


@pytest.mark.parametrize(
    "data",
    [["x"], [], [None] * 9, {"a": 1}, [{"path": None}], [[[[]]]], [10**400, "\ud800", -1.5],
     [{"a": {"b": []}}] * 3],
)  # fmt: skip
def test_every_mistake_is_told_in_a_sentence(client, place, uploads, data):
    for number in [*client.actions.values(), 99, -1]:
        body = dict(data=data, fn_index=number, session_hash="s")
        joined = client.post(
            "gradio_api/queue/join",
            content=json.dumps(body),
            headers={"content-type": "application/json"},
        )
        if joined.status_code == 200:
            with client.stream(
                "GET", "gradio_api/queue/data", params={"session_hash": "s"}
            ) as events:
                said = events.read().decode()
        else:
            said = joined.text
            assert joined.json()["detail"]
        check_silent(said, place, uploads)
        assert '"error":null' not in said and (
            "success" not in said or re.search('"error":"[^"]{20,}|"success":true', said)
        )


def test_requests_are_bounded(client):
    assert client.post("gradio_api/queue/join", content=b"[" * 100_000).status_code == 400
    assert client.post("gradio_api/queue/join", json=dict(data=["x" * 2**20])).status_code == 413
    assert UNKNOWN and client.get("").status_code == 200
