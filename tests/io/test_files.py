"""Files that appear complete or not at all."""

import errno
import gzip
import io
import os
import stat
import sys
from pathlib import Path

import pytest
from helpers.cases import each
from helpers.processes import forked
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hypvision.io import files
from hypvision.io.errors import HypvisionError
from hypvision.io.files import (
    below,
    check_new_folder,
    csv_text,
    protecting,
    read_lines,
    read_pieces,
    replacing,
    replacing_folder,
    write_table,
)
from hypvision.viz.sheet import save_image


def test_a_file_is_moved_into_place_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "note.txt"
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == path.parent and temporary.suffix == ".txt" and not path.exists()
    assert path.read_text() == "new" and list(path.parent.iterdir()) == [path]


@each("error", [KeyboardInterrupt(), ValueError("bug"), OSError(errno.ENOSPC, "No space left")])
def test_what_breaks_off_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "note.txt"
    path.write_text("old")
    expected = HypvisionError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught, replacing(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    if isinstance(error, OSError):
        assert (
            str(caught.value)
            == f"'{path}' was not written: the disk is full. Free some space, or choose another "
            "place."
        )


def test_images(tmp_path, monkeypatch):
    image = Image.new("RGB", (8, 8), "red")
    assert Image.open(save_image(image, tmp_path / "a" / "b.png")).getpixel((3, 3)) == (255, 0, 0)
    umask = os.umask(0)
    os.umask(umask)
    assert (
        tmp_path / "a" / "b.png"
    ).stat().st_mode & 0o777 == 0o666 & ~umask  # not the private mode of mkstemp
    with pytest.raises(
        HypvisionError,
        match=r"b\.png/c\.png' was not written: '.*b\.png' is not a folder\. Choose another path",
    ):
        save_image(image, tmp_path / "a" / "b.png" / "c.png")


# What is never written. The attacks: `test CONFIG WEIGHTS --out CONFIG` overwrote the config,
# `--out /dev/null` put a file in the place of the device, `prepare` wrote outside of its folder.


def attempt(path):
    with replacing(path) as temporary:
        temporary.write_text("new")


def test_devices_pipes_links_and_folders_are_refused(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for path, reason in [
        (tmp_path / "link", "a link"), (tmp_path / "dangling", "a link"),
        (tmp_path / "pipe", "a device or pipe"), (tmp_path, "a folder"),
        ("/dev/null", "a device or pipe"), ("", "a folder"), ("a\0b", "was not written"),
        (tmp_path / ("x" * 300), "was not written"),
        (tmp_path / "target" / "deep" / "x", "is not a folder"),
    ]:  # fmt: skip
        with pytest.raises(HypvisionError, match=reason):
            attempt(path)
    assert (tmp_path / "target").read_text() == "old" and not (tmp_path / "nowhere").exists()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert {path.name for path in tmp_path.iterdir()} == {"target", "link", "dangling", "pipe"}


def test_a_device_that_comes_meanwhile_is_kept(tmp_path):
    path = tmp_path / "note.txt"
    with pytest.raises(HypvisionError, match="a device or pipe"), replacing(path) as temporary:
        temporary.write_text("new")
        os.mkfifo(path)
    assert stat.S_ISFIFO(os.stat(path).st_mode) and list(tmp_path.iterdir()) == [path]


def test_inputs_are_protected_by_whatever_name(tmp_path, monkeypatch):
    (tmp_path / "config.py").write_text("x = 1")
    os.link(tmp_path / "config.py", tmp_path / "other.json")
    monkeypatch.chdir(tmp_path)
    with protecting("config.py", "absent.pth", "a\0b"):
        for name in ("config.py", tmp_path / "config.py", "./other.json"):
            with pytest.raises(
                HypvisionError, match=r"is an input of this command \('config.py'\)"
            ):
                attempt(name)
        with protecting("deeper.txt"):
            attempt("deeper.txt")  # did not exist when it was said
        attempt("new.txt")
    assert (tmp_path / "config.py").read_text() == "x = 1"
    attempt("config.py")
    assert (tmp_path / "config.py").read_text() == "new"


def test_names_from_data_stay_below_the_folder(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    assert below(folder, "a/b.png") == folder / "a/b.png"
    for name in ("../x.png", "a/../../x.png", "/etc/x.png", "link/x.png", "a/.."):
        with pytest.raises(HypvisionError, match="leads out of the folder"):
            below(folder, name)


def test_what_killed_processes_left_is_swept(tmp_path):
    path = tmp_path / "note.txt"

    def killed():
        with replacing(path) as temporary:
            temporary.write_text("half")
            os._exit(9)

    assert forked(killed).returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".note.hyp-") and left.suffix == ".txt"
    running = tmp_path / f".other.hyp-{files._HOST}-{os.getpid()}-00000000.txt"
    elsewhere = (
        tmp_path / ".third.hyp-01234567-1-00000000.txt"
    )  # of another machine: it may still be written
    for file in (running, elsewhere, tmp_path / ".hidden.txt"):
        file.write_text("x")
    assert forked(lambda: attempt(path)).returncode == 0  # a process sweeps a folder once
    assert {file.name for file in tmp_path.iterdir()} == {
        "note.txt",
        running.name,
        elsewhere.name,
        ".hidden.txt",
    }
    os.utime(elsewhere, (0, 0))
    assert forked(lambda: attempt(path)).returncode == 0
    assert elsewhere not in tmp_path.iterdir()


def test_folders_are_replaced_whole(tmp_path):
    folder = tmp_path / "data"
    for round in ("first", "second"):
        with replacing_folder(folder) as temporary:
            (temporary / f"{round}.txt").write_text("x")
        assert [path.name for path in folder.iterdir()] == [f"{round}.txt"]
    with pytest.raises(ValueError), replacing_folder(folder) as temporary:
        (temporary / "third.txt").write_text("x")
        raise ValueError
    assert [path.name for path in folder.iterdir()] == ["second.txt"] and list(
        tmp_path.iterdir()
    ) == [folder]
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(folder)
    for path in (tmp_path / "file", tmp_path / "link", "/dev/null", tmp_path / "file/deep"):
        with pytest.raises(HypvisionError), replacing_folder(path):
            pytest.fail("was begun")
    assert (tmp_path / "link").is_symlink() and (folder / "second.txt").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot swap folders in one step")
def test_a_folder_is_replaced_in_one_step(tmp_path, monkeypatch):
    """A kill between two steps would leave none, and the next command would sweep away both."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "old.txt").write_text("x")
    monkeypatch.setattr(os, "replace", lambda *_: pytest.fail("two steps"))
    with replacing_folder(folder) as temporary:
        (temporary / "new.txt").write_text("x")
    assert [path.name for path in folder.iterdir()] == ["new.txt"] and list(tmp_path.iterdir()) == [
        folder
    ]


@given(name=st.text(min_size=1, max_size=400))
@settings(max_examples=40, deadline=None)
def test_any_name_is_written_or_refused(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp() / "names"
    try:
        path = below(folder, name)
        attempt(path)
    except HypvisionError:
        return
    assert path.read_text() == "new" and path.resolve().is_relative_to(folder.resolve())


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    assert (
        check_new_folder(tmp_path / "new") == tmp_path / "new"
        and check_new_folder(tmp_path) == tmp_path
    )
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(HypvisionError, match="not empty"):
        check_new_folder(tmp_path)


def test_tables(tmp_path):
    write_table(tmp_path / "a.csv", [dict(a=1, b="x, y"), dict(b="é", c=None)])
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == 'a,b,c\n1,"x, y",\n,é,\n'
    write_table(tmp_path / "a.csv", [], empty="file")
    assert (tmp_path / "a.csv").read_text() == "file\n"


def json_readers(path):
    """Everything that reads JSON which others have written, as (name in the message, call)."""
    from hypvision.clip.radial.retrieval import read_tree
    from hypvision.data.classes import load_classes
    from hypvision.data.emoji import class_groups
    from hypvision.data.fewshot import load_split  # noqa: F401 - its package
    from hypvision.data.fewshot.splits import read_split
    from hypvision.openmmlab.datasets.detection import CheckedCOCO
    from hypvision.scaling.sweep import Settings, open_results
    from hypvision.tasks.few_shot_tables import read_results

    copies = [path.with_name(name) for name in ("result.json", "settings.json")]
    for copy in copies:
        copy.write_bytes(path.read_bytes())
    path.with_name("points").mkdir()
    path.with_name("points").joinpath("a.json").write_text(
        "{}"
    )  # else settings have nothing to belong to
    emoji = path.with_name("emoji")
    (emoji / "splits").mkdir(parents=True)
    (emoji / "splits/classes.json").write_bytes(path.read_bytes())
    yield lambda: load_classes(path)
    yield lambda: read_tree(path)
    yield lambda: class_groups(emoji)
    yield lambda: read_split(path, path.parent)
    yield lambda: CheckedCOCO(str(path))
    yield lambda: open_results(path.parent, Settings())
    yield lambda: read_results(path.parent)


@each("content", ["[" * 100_000, '{"a": ' * 100_000, "{", "\0"])
def test_json_of_others_is_read_or_told(tmp_path, content):
    pytest.importorskip("mmdet")
    import hypvision.openmmlab  # noqa: F401 - operators without a compiler

    path = tmp_path / "a.json"
    path.write_text(content)
    for read in json_readers(path):
        with pytest.raises(HypvisionError, match=r"\.json"):
            read()


def test_lines_of_others_are_read_or_told(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbfone \r\n\r\n two\n")
    assert read_lines(path, "the list") == ["one", "two"]
    assert read_lines(path, "the list", blank=True) == ["one", "", "two"]
    path.write_bytes("a\u2028b\r\n\nc\x0cd\re".encode())  # an editor sees four lines with text
    assert read_lines(path, "the list", blank=True) == ["a\u2028b", "", "c\x0cd", "e"]
    path.write_bytes("gar\xe7on".encode("latin-1"))
    for place, message in (
        (path, "'.*list.txt', the list, is not text in UTF-8"),
        (tmp_path / "none", "There is no '.*none', the list"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(HypvisionError, match=message):
            read_lines(place, "the list")


def table_readers(path):
    """Everything that reads a text or a table of others, as calls."""
    from hypvision.checkpoints.index import read_index
    from hypvision.data.chains import read_chains
    from hypvision.data.language import documents
    from hypvision.io.files import read_json
    from hypvision.scaling.language_models import read_losses
    from hypvision.tasks.publishing import read_about

    yield lambda: read_lines(path, "the list")
    yield lambda: read_json(path)
    yield lambda: read_chains(path)
    yield lambda: read_losses(path)
    yield lambda: read_index(path)
    yield lambda: read_about(path)
    yield lambda: list(documents(path))


def test_pipes_devices_and_bombs_are_refused_at_once(tmp_path, monkeypatch):
    pipe, bomb = tmp_path / "pipe", tmp_path / "bomb.gz"
    os.mkfifo(pipe)
    bomb.write_bytes(gzip.compress(bytes(10_000)))
    (tmp_path / "cut.gz").write_bytes(bomb.read_bytes()[:20])
    monkeypatch.setattr("hypvision.io.files.MAX_UNPACKED", 1000)
    for path in (pipe, Path("/dev/zero"), bomb, tmp_path / "cut.gz"):
        for read in table_readers(path):
            with pytest.raises(HypvisionError, match=path.name):
                read()


def test_a_bomb_is_unpacked_no_further_than_its_limit():
    class Zeros(io.RawIOBase):
        given = 0

        def read(self, size=-1):
            assert 0 < size <= 2**20 and self.given < 10**7
            self.given += size
            return bytes(size)

    stream = Zeros()
    with pytest.raises(HypvisionError, match="bomb.gz.*more than 3,000,000 bytes"):
        read_pieces(stream, 3_000_000, "bomb.gz")
    assert stream.given == 3 * 2**20
    assert read_pieces(io.BytesIO(b"abc"), 3, "small.gz") == b"abc"


def test_cells_that_a_spreadsheet_would_run_are_quoted():
    cells = ["=1+1", "+a", "-a", "@a", "\ta", "-1.5", "+2e3", -1, "a=b", ""]
    assert csv_text([cells]) == "'=1+1,'+a,'-a,'@a,'\ta,-1.5,+2e3,-1,a=b,\n"


def test_a_name_that_is_not_utf8_is_written_escaped(tmp_path):
    write_table(tmp_path / "a.csv", [dict(file="\udcff.png")])
    assert (tmp_path / "a.csv").read_text() == "file\n\\udcff.png\n"


def large_readers(folder):
    """Everything that reads YAML or configs, as calls."""
    from hypvision.checkpoints.index import read_index
    from hypvision.engine.config import load_config
    from hypvision.tasks.publishing import read_about

    for name, text in {
        "a.yml": "".join(f"k{i}: {i}\n" for i in range(10**6)),
        "a.py": "model = dict(type='x')\nd = {"
        + "".join(f"'k{i}': {i}, " for i in range(10**6))
        + "}\n",
        "a.json": '{"model": {' + "".join(f'"k{i}": {i}, ' for i in range(10**6)) + '"x": 1}}',
    }.items():
        (folder / name).write_text(text)
    yield lambda: read_index(folder / "a.yml")
    yield lambda: read_about(folder / "a.yml")
    yield lambda: load_config(folder / "a.py")
    yield lambda: load_config(folder / "a.json")


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_million_keys_are_refused_at_once(tmp_path):
    """Readers of JSON take them, in seconds; those of YAML and Python would take minutes."""
    pytest.importorskip("mmengine")
    for read in large_readers(tmp_path):
        with pytest.raises(HypvisionError, match=r"\.(yml|py|json).*more than [24],\d{3},\d{3}"):
            read()
