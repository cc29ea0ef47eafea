"""What the app takes from a client, without Gradio: files of its session, requests of the page,
sentences."""

import asyncio
import json
import os

import pytest
from helpers.slow_answers import SlowAnswers
from PIL import Image

pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
from hypvision.app.answers import MAX_PAIRS, SIDE, Answers
from hypvision.app.sessions import LONGEST, Sessions
from hypvision.app.uploads import NOT_YOURS, UNKNOWN, told, uploaded, uploads, without_folders
from hypvision.app.worker import Worker
from hypvision.io.errors import HypvisionError

HASH = "0a" * 32


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Gradio's folder of uploads with one, a secret beside it, and a link to that."""
    inside = tmp_path / "uploads"
    (inside / HASH).mkdir(parents=True)
    (inside / HASH / "cat.png").write_bytes(b"cat")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (inside / HASH / "link.png").symlink_to(tmp_path / "secret.png")
    (inside / HASH / "loop.png").symlink_to(inside / HASH / "loop.png")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(inside))
    return inside


@pytest.mark.parametrize(
    "path",
    ["{0}/../secret.png", "{0}/HASH/link.png", "{0}/HASH/loop.png", "{0}/HASH", "{0}",
     "{0}/HASH/no.png", "/etc/passwd", "/proc/self/environ", "/dev/zero", "~/x", "a\0b", "x" * 5000,
     "http://127.0.0.1/x", "\ud800", 3, ["x"]],
)  # fmt: skip
def test_only_uploads_are_taken_and_nothing_is_told_of_others(folder, path):
    path = path.format(folder).replace("HASH", HASH) if isinstance(path, str) else path
    with pytest.raises(HypvisionError) as error:
        uploaded(path)
    assert str(error.value) == NOT_YOURS


def test_uploads_are_taken(folder, monkeypatch):
    cat = folder / HASH / "cat.png"
    assert uploaded(str(cat)) == uploaded(f"{folder}/{HASH}/../{HASH}/cat.png") == str(cat)
    assert uploaded(None) is None and uploaded("") is None
    monkeypatch.delenv("GRADIO_TEMP_DIR")
    assert uploads().name == "gradio"


def test_messages_have_no_folders(capsys):
    for message, shown in (
        ("The image '/home/me/my photos/a.png' is bad.", "The image 'a.png' is bad."),
        ("[Errno 2] no such file: '/mnt/x y'", "[Errno 2] no such file: 'x y'"),
        ("see https://a.org/b/c, and a/b or c / d", "see https://a.org/b/c, and a/b or c / d"),
        ("/usr/lib/x.so and ~/.cache/y/z: gone", "x.so and z: gone"),
        ("There is no folder '../a'.", "There is no folder '../a'."),
    ):
        assert without_folders(message) == shown
    assert told(FileNotFoundError(2, "No such file", "/home/me/a")) == told(
        FileNotFoundError(2, "No such file", "/a")
    )
    assert (
        told(ZeroDivisionError("/home/me")) == UNKNOWN
        and "ZeroDivisionError" in capsys.readouterr().err
    )


class Gradio:
    """In place of Gradio: remembers what it is asked, and answers with a text that has ``{path}``s
    of the server."""

    def __init__(self, answer="", status=200, error=None, begun=False):
        self.answer, self.status, self.error, self.begun, self.asked = (
            answer,
            status,
            error,
            begun,
            [],
        )

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"] if scope["method"] == "POST" else b""
        self.asked.append((scope["path"], scope["query_string"].decode(), body))
        if self.begun or not self.error:
            headers = [
                (b"content-type", b"text/plain"),
                (b"content-length", b"%d" % len(self.answer)),
            ]
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if self.error:
            raise self.error
        await send({"type": "http.response.body", "body": self.answer.encode()})


def ask(app, method, path, body=b"", cookie=None, query=""):
    """Status, headers and text of an answer."""
    sent = []
    pieces = [body[place : place + 2**16] for place in range(0, len(body), 2**16)] or [b""]
    queue = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    queue[-1]["more_body"] = False

    async def receive():
        return queue.pop(0)

    async def send(message):
        sent.append(message)

    headers = [(b"cookie", f"a=b; hypvision={cookie}".encode())] if cookie else []
    scope = dict(
        type="http", method=method, path=path, query_string=query.encode(), headers=headers
    )
    asyncio.run(app(scope, receive, send))
    text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
    return sent[0]["status"], dict(sent[0]["headers"]), text


ME, YOU = "1" * 64, "2" * 64
JOIN = "/gradio_api/queue/join"


def test_a_client_sees_names_of_its_own(folder):
    gradio = Gradio(
        json.dumps(
            [f"{folder}/{HASH}/cat.png", f"see {folder}", f"x/file={folder}/{HASH}/a%20b.png"]
        )
    )
    app = Sessions(gradio)
    mine, yours = (
        json.loads(ask(app, "POST", "/gradio_api/upload", cookie=each)[2]) for each in (ME, YOU)
    )
    assert mine != yours and str(folder.parent) not in str([mine, yours]) and mine[1] == "see "
    for cookie, handle, status in (
        (ME, mine, 200),
        (YOU, yours, 200),
        (ME, yours, 403),
        (YOU, mine, 403),
    ):
        assert ask(app, "GET", f"/gradio_api/file={handle[0]}", cookie=cookie)[0] == status
        for payload in ({"path": handle[0], "url": "http://x"}, {"path": handle[0], "meta": {}}):
            data = json.dumps(dict(data=[[{"image": payload}]])).encode()
            assert ask(app, "POST", JOIN, data, cookie)[0] == status
            if status == 200:
                [[inner]] = json.loads(gradio.asked[-1][2])["data"]
                assert (
                    inner["image"]["path"] == f"{folder}/{HASH}/cat.png"
                    and "url" not in inner["image"]
                )
    assert ask(app, "GET", f"/gradio_api/file={mine[0]}")[0] == 403  # no cookie is another session
    (folder / HASH / "cat.png").unlink()
    assert ask(app, "GET", f"/gradio_api/file={mine[0]}", cookie=ME)[0] == 403


def test_no_path_of_the_server_is_a_name(folder):
    app = Sessions(Gradio())
    names = [
        f"{folder}/{HASH}/cat.png",
        f"/uploads/{HASH[:32]}/{HASH}/cat.png",
        "/uploads/../x",
        "",
        3,
        ["x"],
        {"path": "x"},
    ]
    answers = {
        ask(app, "POST", JOIN, json.dumps(dict(data=[{"path": name}])).encode(), ME)[2]
        for name in names
    }
    answers |= {ask(app, "GET", f"/gradio_api/file={name}", cookie=ME)[2] for name in names[:3]}
    assert [json.loads(answer)["detail"] for answer in answers] == [NOT_YOURS]


def test_sessions_are_kept_apart(folder):
    gradio = Gradio()
    app = Sessions(gradio)
    body = json.dumps(dict(session_hash="s", data=[])).encode()
    for cookie in (ME, YOU):
        ask(app, "POST", JOIN, body, cookie, query="__theme=dark")
        ask(app, "GET", "/gradio_api/queue/data", cookie=cookie, query="session_hash=s&deep_link=x")
        ask(app, "GET", "/gradio_api/heartbeat/s", cookie=cookie)
    seen = [
        json.loads(body)["session_hash"] if body else query or path
        for path, query, body in gradio.asked
    ]
    mine, yours = seen[:3], seen[3:]
    assert mine[1:] == [f"session_hash={mine[0]}", f"/gradio_api/heartbeat/{mine[0]}"] and not set(
        mine
    ) & set(yours)
    status, headers, _ = ask(app, "GET", "/")
    assert status == 200 and b"HttpOnly; SameSite=Lax" in headers[b"set-cookie"]
    assert b"set-cookie" not in ask(app, "GET", "/", cookie=ME)[1]


@pytest.mark.parametrize(
    "path",
    ["gradio_api/call/segment", "gradio_api/run/segment", "gradio_api/api/segment",
     "gradio_api/component_server", "gradio_api/deep_link", "gradio_api/proxy=http://x",
     "gradio_api/process_recording", "gradio_api/stream/x", "gradio_api/vibe-edit",
     "gradio_api/file/etc/passwd", "monitoring", "login", "openapi.json", "no"],
)  # fmt: skip
def test_nothing_else_of_gradio_is_reached(folder, path):
    gradio = Gradio()
    for method in ("GET", "POST", "HEAD", "PUT", "DELETE"):
        assert ask(Sessions(gradio), method, f"/{path}")[0] == 404
    assert gradio.asked == []


def test_mistakes_become_sentences(folder, capsys):
    app = Sessions(Gradio('data: {"error":null}'))
    assert (
        json.loads(ask(app, "GET", "/gradio_api/queue/data")[2].removeprefix("data: "))["error"]
        == UNKNOWN
    )
    status, _, text = ask(Sessions(Gradio(error=KeyError("/home/me"))), "GET", "/config")
    assert (status, json.loads(text)["detail"]) == (
        500,
        UNKNOWN,
    ) and "KeyError" in capsys.readouterr().err
    assert ask(Sessions(Gradio(error=KeyError("x"), begun=True)), "GET", "/config")[2] == ""
    assert ask(app, "POST", JOIN, b"[" * 100_000)[0] == ask(app, "POST", JOIN, b"\xff")[0] == 400
    assert ask(app, "POST", JOIN, b'"' + b"x" * LONGEST + b'"')[0] == 413


def test_photos_are_limited_and_reduced(tmp_path):
    answers = Answers(max_pixels=10_000)
    Image.new("RGB", (240, 180)).save(tmp_path / "large.png")
    Image.new("RGB", (SIDE + 1, 3)).save(tmp_path / "wide.png")
    with pytest.raises(HypvisionError, match="large.png.*240 x 180 pixels, more than 10,000"):
        answers._photo(str(tmp_path / "large.png"))
    assert answers._photo(str(tmp_path / "wide.png")).size == (SIDE, 3)


def test_hierarchies_are_limited():
    with pytest.raises(HypvisionError, match=f"more than {MAX_PAIRS:,} pairs"):
        Answers().disk(" > ".join(map(str, range(30_000))), None)


@pytest.mark.slow  # each process imports PyTorch
def test_a_request_that_takes_too_long_is_ended():
    worker = Worker(SlowAnswers(), seconds=2)
    try:
        first = worker.wait(0)
        assert first == worker.wait(0) != os.getpid()
        with pytest.raises(HypvisionError, match="more than 2 seconds"):
            worker.wait(10_000)
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
        assert worker.wait(0) not in (first, os.getpid())
        with pytest.raises(HypvisionError, match="a mistake of its own"):
            worker.fail()
        with pytest.raises(Exception) as broken:
            worker.end()
        assert "started again" in told(broken.value)
        assert worker.wait(0) != first
    finally:
        worker.close()
