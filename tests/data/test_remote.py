"""Shards on other machines: a web server that is busy, breaks off or has no ranges, and fsspec's
memory in the place of a store; the index of their counts."""

import io
import json
import tarfile

import fsspec
import numpy as np
import pytest
from helpers.bad_server import Server
from helpers.cases import each
from PIL import Image

from hypvision.data import shard_index, shards
from hypvision.data.remote import RemoteFile
from hypvision.io.errors import HypvisionError


def shard(numbers):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in numbers:
            picture = io.BytesIO()
            Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(picture, "PNG")
            for name, data in (("png", picture.getvalue()), ("txt", b"picture %d" % number)):
                info = tarfile.TarInfo(f"{number:03}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


SHARDS = {"00.tar": shard(range(4)), "01.tar": shard(range(4, 9))}
ALL = [f"picture {number}" for number in range(9)]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def server():
    server = Server(SHARDS)
    yield server
    server.close()


def captions(place, **options):
    return [sample["caption"] for sample in shards.CaptionShards(place, shuffle=0, **options)]


@each("mode", ["good", "busy2"])
def test_a_web_server(mode, server, home):
    assert captions(f"{server.url}/{mode}/{{00..01}}.tar") == ALL


def test_the_index_saves_the_second_counting(server, home):
    assert captions(f"{server.url}/good/{{00..01}}.tar") == ALL
    [index] = home.glob("shards/*.json")
    table = json.loads(index.read_text())["CaptionShards"]
    assert table["01.tar"]["samples"] == 5 and table["01.tar"]["bytes"] == len(SHARDS["01.tar"])
    server.log.clear()
    data = shards.CaptionShards(f"{server.url}/good/{{00..01}}.tar")
    assert data.counts == [4, 5]
    assert all("json" in entry or entry[0] == "HEAD" for entry in server.log)


def test_the_counts_of_a_server_are_lent_and_never_kept(server, home):
    """Where the sizes are right they serve; who reads the shard to its end corrects them."""
    known = dict(modified=1, left_out=[], samples=7)
    sizes = {"00.tar": len(SHARDS["00.tar"]), "01.tar": 1}
    table = {name: dict(known, bytes=size) for name, size in sizes.items()}
    server.files = {**SHARDS, "shards.json": json.dumps({"CaptionShards": table}).encode()}
    place = f"{server.url}/good/{{00..01}}.tar"
    data = shards.CaptionShards(place, shuffle=0)
    assert data.counts == [7, 5]
    [index] = home.glob("shards/*.json")
    assert list(json.loads(index.read_text())["CaptionShards"]) == ["01.tar"]
    with pytest.raises(HypvisionError, match=r"00\.tar' has 4 samples, but 7 by 'shards\.json'"):
        list(data)
    data = shards.CaptionShards(place, shuffle=0)  # the truth, counted here, wins
    assert data.counts == [4, 5] and len(list(data)) == 9


def test_a_lent_count_of_0_hides_no_samples(server):
    known = {"00.tar": dict(modified=1, left_out=[], samples=0, bytes=len(SHARDS["00.tar"]))}
    server.files = {**SHARDS, "shards.json": json.dumps({"CaptionShards": known}).encode()}
    data = shards.CaptionShards(f"{server.url}/good/{{00..01}}.tar", shuffle=0)
    assert data.counts == [0, 5]
    with pytest.raises(HypvisionError, match="has 4 samples, but 0"):
        list(data)


@each("content", [b"no JSON", b"[" * 10**5, b'{"CaptionShards": 3}', b"\xff"])
def test_damaged_counts_of_a_server_are_not_used(content, server):
    server.files = {**SHARDS, "shards.json": content}
    assert shards.CaptionShards(f"{server.url}/good/{{00..01}}.tar").counts == [4, 5]


def test_what_a_server_lacks(server):
    with pytest.raises(HypvisionError, match="02.tar"):
        shards.CaptionShards(f"{server.url}/good/{{00..02}}.tar")
    with pytest.raises(HypvisionError, match="has no list of its files"):
        shards.CaptionShards(f"{server.url}/good")
    with pytest.raises(HypvisionError, match="503"):
        RemoteFile(f"{server.url}/busy/00.tar").stat()


def test_seeking_reads_what_is_asked_for(server):
    content = SHARDS["01.tar"]
    with RemoteFile(f"{server.url}/good/01.tar").open() as file:
        for place, count in ((0, 5), (600, 700), (3, 4), (len(content) - 6, 100), (1500, 20)):
            file.seek(place)
            assert file.read(count) == content[place : place + count]


def test_a_connection_that_breaks_is_opened_again(server):
    with RemoteFile(f"{server.url}/cut/01.tar").open() as file:
        server.seen["cut"] = 0  # the next answer ends in its middle
        assert file.read() == SHARDS["01.tar"]
    half = len(SHARDS["01.tar"]) // 2
    assert server.ranges("cut") == [None, None, f"bytes={half}-"]


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    for name, data in SHARDS.items():
        system.pipe(f"/bucket/{name}", data)
    system.pipe("/bucket/classes.txt", b"cat\ndog\n")
    yield system
    system.rm("/bucket", recursive=True)


@each("place", ["memory://bucket", "memory://bucket/{00..01}.tar", ["memory://bucket/00.tar",
    "memory://bucket/01.tar"]])  # fmt: skip
def test_a_store(place, memory):
    assert captions(place) == ALL


def test_labels_in_a_store(memory):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in (("1.cls", b"1"), ("1.png", shard([1])[512:])):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    memory.pipe("/bucket/00.tar", buffer.getvalue())
    data = shards.ImageShards("memory://bucket/00.tar", dict(input_size=4), shuffle=0)
    assert data.metainfo["classes"] == ("cat", "dog") and data.counts == [1]


def test_an_unknown_kind_of_store():
    with pytest.raises(HypvisionError, match="fsspec needs a package|cannot be read"):
        shards.CaptionShards("nosuch://bucket/00.tar")


def test_counts_are_kept_when_the_counting_is_interrupted(tmp_path, monkeypatch):
    for name, data in SHARDS.items():
        (tmp_path / name).write_bytes(data)
    real = shards.CaptionShards._count_one
    seen = []

    def interrupted(self, path):
        seen.append(path.name)
        if path.name == "01.tar":
            raise KeyboardInterrupt
        return real(self, path)

    monkeypatch.setattr(shards.CaptionShards, "_count_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shards.CaptionShards(tmp_path)
    monkeypatch.setattr(shards.CaptionShards, "_count_one", real)
    [table] = json.loads((tmp_path / shard_index.INDEX).read_text()).values()
    assert list(table) == ["00.tar"] and shards.CaptionShards(tmp_path).counts == [4, 5]


def test_one_rank_counts_and_all_have_the_counts(monkeypatch):
    sent = []
    monkeypatch.setattr(shard_index, "broadcast_object_list", sent.append)
    monkeypatch.setattr(shard_index, "get_dist_info", lambda: (0, 2))

    def failing(path):
        raise HypvisionError("damaged")

    class Path(RemoteFile):
        def is_file(self):
            return False

        def stat(self):
            return shard_index.Counted(1, 1, 0, [])

        parent = property(lambda self: Path("memory://x"))
        __truediv__ = lambda self, name: Path(f"{self}/{name}")  # noqa: E731

    with pytest.raises(HypvisionError, match="damaged"):  # all ranks stop, none waits
        shard_index.count_shards([Path("memory://x/00.tar")], "kind", failing)
    assert sent == [["damaged"]]
    monkeypatch.setattr(shard_index, "get_dist_info", lambda: (1, 2))

    def receive(found):
        found[0] = [shard_index.Counted(1, 1, 3, [])]

    monkeypatch.setattr(shard_index, "broadcast_object_list", receive)
    [found] = shard_index.count_shards([Path("memory://x/00.tar")], "kind", failing)
    assert found.samples == 3


@pytest.mark.parametrize(
    "wrong", [dict(samples=-1), dict(samples=10**15), dict(left_out=[["no image"]])]
)
def test_counts_that_cannot_be_are_refused(wrong, tmp_path):
    (tmp_path / "00.tar").write_bytes(b"")
    counted = dict(bytes=0, modified=0, samples=1, left_out=[]) | wrong
    (tmp_path / shard_index.INDEX).write_text(json.dumps({"kind": {"00.tar": counted}}))
    with pytest.raises(HypvisionError, match=r"shards\.json"):
        shard_index.count_shards([tmp_path / "00.tar"], "kind", lambda path: (1, []))


def test_a_text_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr("hypvision.data.remote._TEXT", 10)
    fsspec.filesystem("memory").pipe("/texts/long.txt", b"x" * 11)
    with pytest.raises(HypvisionError, match="too many for a text"):
        RemoteFile("memory://texts/long.txt").read_text()
