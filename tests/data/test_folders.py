"""Class folders: every file is used or counted with its reason, whatever lies there, by every
reader of them."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from PIL import Image, features

pytest.importorskip("mmengine")
from hypvision.data.fewshot.dataset import FewShotDataset
from hypvision.data.fewshot.splits import class_folders
from hypvision.data.image_folder import ImageFolderDataset
from hypvision.data.retrieval import RetrievalFolder
from hypvision.data.usage import Usage, usages
from hypvision.io.errors import HypvisionError
from hypvision.io.images import SUFFIXES, images_in, open_image

EVAL = dict(input_size=16, crop_pct=1.0)


def counted(folder):
    usage = Usage(folder)
    found = class_folders(folder, usage=usage)
    usage.use("files", sum(map(len, found.values())))
    return SimpleNamespace(
        usage=usage, paths=sum(found.values(), []), metainfo=dict(classes=tuple(found))
    )


READERS = {
    "ImageFolderDataset": lambda folder: ImageFolderDataset(folder, EVAL),
    "RetrievalFolder": lambda folder: RetrievalFolder(folder, EVAL),
    "class_folders": counted,
    "FewShotDataset": lambda folder: FewShotDataset(
        folder.parent.parent, folder.parent.name, shots=None
    ),
}
readers = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)


@pytest.fixture
def folder(tmp_path):
    """Three images of each class, in the place where a few-shot data set has its training
    images."""
    for part in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            place = tmp_path / "mine" / part / name
            place.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (16, 16), (100 * number, 50 * i, 0)).save(place / f"{i}.png")
    return tmp_path / "mine/train"


def said(data):
    (usage,) = usages(data)
    assert usage.used["files"] == len(data.paths)
    return str(usage)


@readers
def test_what_is_left_out_is_counted(folder, reader):
    assert said(reader(folder)).endswith("used 6 of 6 files.")
    (folder / "cat/a.xcf").write_bytes(b"x")
    (folder / "cat/b.xcf").write_bytes(b"x")
    (folder / "dog/Thumbs.db").write_bytes(b"x")
    (folder / "dog/._0.png").write_bytes(b"x")
    (folder / "dog/gone.png").symlink_to("nowhere")
    for name in (".ipynb_checkpoints", "__MACOSX"):
        (folder / name).mkdir()
        Image.new("RGB", (8, 8)).save(folder / name / "0.png")
        (folder / "cat" / name).mkdir()
        Image.new("RGB", (8, 8)).save(folder / "cat" / name / "1.png")
    data = reader(folder)
    assert data.metainfo["classes"] == ("cat", "dog") and len(data.paths) == 6
    text = said(data)
    assert "used 6 of 11 files" in text
    for reason in (
        "2 files (suffix .xcf: cat/a.xcf, cat/b.xcf)", "suffix .db: dog/Thumbs.db",
        "hidden file: dog/._0.png", "link to nothing: dog/gone.png", "4 folders (hidden: ",
    ):  # fmt: skip
        assert reason in text


@readers
def test_links_are_read_once(folder, reader):
    (folder / "cat/loop").symlink_to(folder, target_is_directory=True)
    (folder / "dog/own").symlink_to(folder / "dog", target_is_directory=True)
    (folder.parent / "store").mkdir()
    Image.new("RGB", (8, 8)).save(folder.parent / "store/extra.png")
    (folder / "dog/store").symlink_to(folder.parent / "store", target_is_directory=True)
    (folder / "dog/again").symlink_to(folder.parent / "store", target_is_directory=True)
    data = reader(folder)
    assert len(data.paths) == 7 and len({os.path.realpath(path) for path in data.paths}) == 7
    assert "3 folders (link to a folder that is read already" in said(data)
    (folder / "eel").symlink_to(folder / "cat", target_is_directory=True)
    with pytest.raises(
        HypvisionError, match="eel' is a link to .*cat': its images would have two labels"
    ):
        reader(folder)


@readers
def test_every_suffix_that_is_read(folder, reader):
    formats = {
        ".jfif": "JPEG",
        ".jpe": "JPEG",
        ".avif": "AVIF",
        ".pgm": "PPM",
        ".tif": "TIFF",
        ".jpg": "JPEG",
    }
    for suffix in SUFFIXES - {".heic", ".heif"}:
        name = formats.get(suffix, suffix[1:].upper()).replace("AVIFS", "AVIF")
        image = Image.new(
            "L" if suffix == ".pgm" else "RGB", (16, 16), 90 if suffix == ".pgm" else (200, 90, 10)
        )
        image.save(folder / f"dog/x{suffix.upper()}", format={"PNM": "PPM"}.get(name, name))
    data = reader(folder)
    extra = [path for path in data.paths if os.path.basename(path).startswith("x")]
    assert {os.path.splitext(path)[1].lower() for path in extra} == SUFFIXES - {".heic", ".heif"}
    for path in extra:
        assert open_image(path).size == (16, 16)
    assert {".jfif", ".jpe"} < SUFFIXES and (".avif" in SUFFIXES) == features.check("avif")


def test_formats_that_this_pillow_cannot_read_name_the_package_to_install(folder):
    (folder / "dog/photo.HEIC").write_bytes(b"x")
    if "pillow_heif" not in sys.modules:
        assert "suffix .heic: install pillow-heif" in said(ImageFolderDataset(folder, EVAL))
    for path in (folder / "dog").glob("*.png"):
        path.unlink()
    with pytest.raises(
        HypvisionError, match="a class without images: 'dog'.*photo.HEIC|cannot be read"
    ):
        ImageFolderDataset(folder, EVAL)[3]


SCRIPT = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from test_folders import EVAL, READERS, ImageFolderDataset, open_image

assert sys.getfilesystemencoding() == "ascii"
folder = Path(sys.argv[2])
for name, reader in READERS.items():
    data = reader(folder)
    for path in data.paths:
        open_image(path)
    print(name, len(data.paths), ascii(data.metainfo["classes"]))
listed = folder.parent / "list.txt"
data = ImageFolderDataset(folder, EVAL, ann_file=listed, classes=["\\xe4pple", "cat"])
print("list", data[0]["label"], len(data))
assert len(ImageFolderDataset(folder, EVAL, classes=["\\xe4pple"])) == 3
"""


@pytest.mark.slow
def test_names_are_utf_8_whatever_the_locale(folder):
    """A name that is stored with a model is the same where the process takes the names of files for
    ASCII."""
    for part in ("train", "test"):
        (folder.parent / part / "dog").rename(folder.parent / part / "äpple")
    (folder.parent / "list.txt").write_text("äpple/0.png 0\ncat/0.png 1\n", encoding="utf-8")
    environment = dict(os.environ, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    command = [sys.executable, "-c", SCRIPT, os.path.dirname(__file__), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = [f"{name} 6 ('cat', '\\xe4pple')" for name in READERS]
    assert done.stdout.splitlines() == [*expected, "list 0 2"]


def test_names_in_other_encodings_still_lead_to_their_folder(folder):
    (folder / "dog").rename(folder / "\udce9")
    data = ImageFolderDataset(folder, EVAL)
    assert data.metainfo["classes"] == ("cat", "\udce9") and data[3]["label"] == 1


def test_folders_that_differ_in_capitals_are_told(folder):
    assert not ImageFolderDataset(folder, EVAL).usage.notes
    (folder / "dog").rename(folder / "Cat")
    [note] = ImageFolderDataset(folder, EVAL).usage.notes
    assert "'Cat' and 'cat' differ by the size of letters" in note


def test_a_root_that_lies_too_high(folder):
    # of training and test the training is offered
    for root, right in ((folder.parent.parent, "mine"), (folder.parent, "train")):
        with pytest.raises(
            HypvisionError, match=f"one folder deeper. Give '{root / right}' as root"
        ):
            ImageFolderDataset(root, EVAL)
    assert len(ImageFolderDataset(folder.parent, EVAL, classes=["train", "test"])) == 12  # told to
    (folder / "cat").rename(folder / "day")
    (folder / "dog").rename(folder / "day/dog")
    assert len(ImageFolderDataset(folder, EVAL)) == 6  # one class whose images lie in it and below


def test_folders_and_files_that_were_not_asked_for(folder):
    assert "1 folders (none of the classes: dog)" in said(
        ImageFolderDataset(folder, EVAL, classes=["cat"])
    )
    Image.new("RGB", (8, 8)).save(folder / "lost.png")
    (folder / "readme.txt").write_text("x")
    text = said(ImageFolderDataset(folder, EVAL))
    assert "an image beside the class folders: lost.png" in text and "readme" not in text
    chosen = ImageFolderDataset(folder, EVAL, indices=[0])
    assert "used 1 of 2 files" in said(chosen) and not chosen.usage.notes  # a split is no fault
    text = said(RetrievalFolder(folder, EVAL, per_class=2))
    assert "used 4 of 7 files" in text and "per_class=2: 1.png" in text
    data = RetrievalFolder(folder.parent / "test", EVAL, gallery=folder, classes=["cat"])
    assert "used 6 of 7 files" in said(data)
    (folder.parent / "list.txt").write_text("cat/0.png 0\n")
    assert said(ImageFolderDataset(folder, EVAL, ann_file=folder.parent / "list.txt")).endswith(
        "used 1 of 1 files, 1 of 1 classes."
    )


def test_folders_of_images_without_classes(folder):
    (folder / "cat/._0.png").write_bytes(b"x")
    (folder / ".cache").mkdir()
    Image.new("RGB", (8, 8)).save(folder / ".cache/0.png")
    assert len(images_in(folder)) == 6


def test_folders_below_a_class_that_may_be_classes_are_told(tmp_path):
    for place in ("citrus/lemon", "citrus/orange", "other", "other/kiwi"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(tmp_path / place / "0.png")
    data = ImageFolderDataset(tmp_path, EVAL)
    [note] = data.usage.notes
    assert "'citrus' lie in the folders 'lemon', 'orange'" in note
    assert data.metainfo["classes"] == ("citrus", "other") and len(data) == 4
    (tmp_path / "other/0.png").rename(tmp_path / "other/other.png")
    (tmp_path / "other/apple").mkdir()
    (tmp_path / "other/other.png").rename(tmp_path / "other/apple/0.png")
    [note] = ImageFolderDataset(tmp_path, EVAL).usage.notes
    assert "(and those of 1 others alike)" in note


def test_an_empty_class_is_told_without_counts(folder):
    (folder / "cow").mkdir()
    (folder / "__MACOSX").mkdir()
    with pytest.raises(HypvisionError, match="without images: 'cow'") as told:
        ImageFolderDataset(folder, EVAL)
    assert "used" not in str(told.value)


def test_a_damaged_image_names_the_command_that_finds_all(folder):
    (folder / "dog/0.png").write_bytes(b"x")
    data = ImageFolderDataset(folder, EVAL)
    with pytest.raises(HypvisionError, match=r"dog/0.png' cannot be read.*hypvision check"):
        data[data.paths.index(str(folder / "dog/0.png"))]
