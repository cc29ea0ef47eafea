"""The commands of the zoo, as users call them."""

import json

import pytest
from filelock import FileLock
from helpers.bad_server import Server
from helpers.zoo import NAME

from hypvision.checkpoints.index import builtin_index, parse_record, write_index
from hypvision.checkpoints.records import Index
from hypvision.checkpoints.sources import cache_folder, lock_path
from hypvision.cli import main


@pytest.fixture
def call(capsys):
    """Calls the command; returns status, output, and errors."""

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out, captured.err

    return run


@pytest.fixture
def remote(tmp_path, record, server, monkeypatch):
    """A built-in index whose one file a server has."""
    write_index(Index({NAME: record}), tmp_path / "remote" / "index.yml")
    monkeypatch.setenv("HYPVISION_INDEX", str(tmp_path / "remote"))
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{server.url}/good")
    return record


def named(out):
    """The names of a list's rows, between its heading and its last line."""
    return [line.split()[0] for line in out.splitlines()[1:-1] if not line.startswith(" ")]


def test_models_lists_what_ships(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = call("zoo", "list")
    lines = out.splitlines()
    assert status == 0 and lines[0].split()[:4] == ["name", "params", "input", "size"]
    assert max(map(len, lines)) <= 80
    assert named(out) == list(builtin_index().records)
    assert "top1 84.88 %" in out and "packaged" in out and "4.0 MB" in out
    assert "coco/bbox_mAP_50 0.598:" in out  # a fraction
    assert len(named(call("zoo", "list", "*.grocery")[1])) == 2
    assert len(named(call("zoo", "list", "--task", "retrieval")[1])) == 1
    assert len(named(call("zoo", "list", "cifar", "--task", "classification")[1])) == 2
    status, _, error = call("zoo", "list", "no-such")
    assert status == 2 and "hcformer_nano.cifar10" in error


def test_models_as_json_are_whole_records(call):
    rows = json.loads(call("zoo", "list", "--json")[1])
    where = [row.pop("where") for row in rows]
    assert set(where) == {"packaged"}
    assert [parse_record(row) for row in rows] == list(builtin_index())
    assert json.loads(call("zoo", "list", "no-such", "--json")[1]) == []


def test_models_writes_the_readme(call, tmp_path, zoo):
    assert call("zoo", "list", "--write-readme", tmp_path / "README.md")[0] == 0
    assert NAME in (tmp_path / "README.md").read_text()


def test_download_verify_cache(call, remote, micro, tmp_path):
    assert "to download" in call("zoo", "list")[1]
    status, out, _ = call("zoo", "verify")
    assert status == 0 and "missing" in out
    status, _, error = call("zoo", "verify", NAME)
    assert status == 2 and f"hypvision zoo get {NAME}" in error
    assert call("zoo", "clean", "--list")[1].splitlines()[-1] == "empty"

    status, out, _ = call("zoo", "get", NAME, "--out", tmp_path / "mirror")
    assert status == 0 and out.strip() == str(tmp_path / "mirror" / remote.filename)
    assert (tmp_path / "mirror" / remote.filename).read_bytes() == micro[1].read_bytes()
    assert "cached" in call("zoo", "list")[1]
    assert call("zoo", "verify", NAME)[1].startswith("ok")
    assert NAME in call("zoo", "clean", "--list")[1]

    path = cache_folder() / remote.filename
    path.write_bytes(bytes(path.stat().st_size))
    status, out, error = call("zoo", "verify")
    assert status == 2 and "WRONG" in out and str(path) in error


def test_download_that_fails(call, remote, server, monkeypatch):
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{server.url}/missing")
    status, _, error = call("zoo", "get", NAME)
    assert status == 2 and "404" in error and "HYPVISION_WEIGHTS" in error
    status, _, error = call("zoo", "get", "hcformer_nano.micr")
    assert status == 2 and f"Did you mean {NAME}" in error


def test_cleaning_keeps_what_is_needed_and_what_is_in_use(call, remote):
    folder = cache_folder()
    call("zoo", "get", NAME)
    (folder / "old.tag-00000000.safetensors").write_bytes(b"x" * 10)
    (folder / "a.b-00000000.safetensors.part").write_bytes(b"x" * 10)
    (folder / "busy.b-00000000.safetensors.part").write_bytes(b"x" * 10)
    lines = call("zoo", "clean", "--list")[1]
    assert "(no record)" in lines and "unfinished" in lines
    with FileLock(lock_path("busy.b-00000000.safetensors")):
        status, out, _ = call("zoo", "clean")
    assert status == 0 and "Removed 2 files" in out
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["busy.b-00000000.safetensors.part", remote.filename]
    )
    assert call("zoo", "clean", "no.such")[0] == 2
    assert "Removed 1 " in call("zoo", "clean", NAME)[1]
    assert "Removed 1 " in call("zoo", "clean", "--all")[1]
    assert list(folder.iterdir()) == []
    assert call("zoo", "clean", "--list", "--all")[0] == 2


def test_files_of_releases_are_known_to_the_cache(call, zoo, record, micro, tmp_path, monkeypatch):
    """What hypvision.load("https://HOST/FOLDER#NAME") brought is needed, though no record of the
    index says so."""
    release = tmp_path / "release"
    assert call("zoo", "push", NAME, "--out", release)[0] == 0
    server = Server({path.name: path.read_bytes() for path in release.iterdir()})
    address = f"{server.url}/good#{NAME}"
    monkeypatch.delenv("HYPVISION_INDEX")
    try:
        status, _, error = call("zoo", "verify", address)
        assert status == 2 and f"hypvision zoo get {address}" in error
        assert call("zoo", "get", address)[0] == 0
    finally:
        server.close()
    (path,) = cache_folder().iterdir()
    assert NAME in call("zoo", "clean", "--list")[1]
    assert "(no record)" not in call("zoo", "clean", "--list")[1]
    assert "Removed 0 files" in call("zoo", "clean")[1] and path.is_file()
    for arguments in ((), (address,)):
        status, out, _ = call("zoo", "verify", *arguments)
        assert status == 0 and f"ok       {NAME}  {path}" in out
    path.write_bytes(micro[1].read_bytes()[:-1])
    for arguments in ((), (address,)):
        status, out, error = call("zoo", "verify", *arguments)
        assert status == 2 and "WRONG" in out and str(path) in error
    status, _, error = call("zoo", "clean", NAME, "--all")
    assert status == 2 and "either names or --all" in error and path.is_file()
    assert "Removed 1 file," in call("zoo", "clean", NAME)[1] and not path.exists()
    assert call("zoo", "clean", "--all")[0] == 0
    assert not list((cache_folder().parent / "indexes").iterdir())


def test_verify_looks_into_a_release_folder(call, zoo, tmp_path):
    call("zoo", "push", NAME, "--out", tmp_path / "release")
    assert call("zoo", "verify", f"{tmp_path / 'release'}#{NAME}")[1].startswith(
        f"ok       {NAME}  {tmp_path / 'release'}"
    )
    (path,) = (tmp_path / "release").glob("*.safetensors")
    path.write_bytes(bytes(path.stat().st_size))
    status, out, _ = call("zoo", "verify", f"{tmp_path / 'release'}#{NAME}")
    assert status == 2 and out.startswith("WRONG")


def test_card(call, zoo, tmp_path):
    status, out, _ = call("zoo", "card", NAME)
    assert status == 0 and out.startswith(f"# {NAME}") and "Knows nothing." in out
    assert call("zoo", "card", NAME, "--save", tmp_path / "card.md")[0] == 0
    assert (tmp_path / "card.md").read_text() == out


def test_push(call, zoo, tmp_path):
    status, out, _ = call("zoo", "push", NAME, "--out", tmp_path / "release")
    assert status == 0 and "SHA256SUMS" in out and f"#{NAME}" in out
    assert call("zoo", "push", NAME, "--out", tmp_path / "release")[0] == 2
    assert call("zoo", "push", NAME, "--out", tmp_path / "other", "--private")[0] == 2


def test_push_to_the_hub_respects_offline_mode(call, zoo, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", None)  # nothing may ask it
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    status, _, error = call("zoo", "push", NAME, "--hub", "me/model")
    assert status == 2 and "HYPVISION_OFFLINE" in error and "--out DIR" in error
