"""Files that appear complete or not at all."""

import errno
import os

import pytest
from PIL import Image

from hypvision.errors import HypvisionError
from hypvision.files import replacing
from hypvision.viz.sheet import save_picture


def test_a_file_is_moved_into_place_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "note.txt"
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == path.parent and temporary.suffix == ".txt" and not path.exists()
    assert path.read_text() == "new" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bug"), OSError(errno.ENOSPC, "No space left")])
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
            == f"'{path}' was not written: the disk is full. Free some space, or choose another place."
        )


def test_pictures(tmp_path, monkeypatch):
    picture = Image.new("RGB", (8, 8), "red")
    assert Image.open(save_picture(picture, tmp_path / "a" / "b.png")).getpixel((3, 3)) == (255, 0, 0)
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "a" / "b.png").stat().st_mode & 0o777 == 0o666 & ~umask  # not the private mode of mkstemp
    with pytest.raises(
        HypvisionError, match=r"b\.png/c\.png' was not written: (File exists|Not a directory)\. Choose another place"
    ):
        save_picture(picture, tmp_path / "a" / "b.png" / "c.png")
