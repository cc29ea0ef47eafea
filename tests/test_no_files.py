"""An error says that a path is a pipe, a device or a folder instead of a file, and the path is
never read."""

import os

import pytest

pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
from hypvision.cli import main
from hypvision.clip.segmentation.segment import parse_classes
from hypvision.io.errors import HypvisionError
from hypvision.io.files import why_no_file


def readers():
    """Everything that takes the path of one file from its user."""
    from hypvision.checkpoints.read import read, read_file, read_weights
    from hypvision.clip import adapters
    from hypvision.clip.models import create_clip
    from hypvision.clip.radial.retrieval import read_hyperlex
    from hypvision.data.chains import read_chains
    from hypvision.data.classes import load_classes
    from hypvision.data.hypernyms import read_terms
    from hypvision.data.image_folder import ImageFolderDataset
    from hypvision.data.language import documents
    from hypvision.data.shards import find_shards
    from hypvision.engine.config import load_config
    from hypvision.inference.sources import find_sources
    from hypvision.io.files import read_json, read_lines
    from hypvision.io.images import find_images, image_size, open_image, read_labels
    from hypvision.scaling.one_tensor import read_tensor
    from hypvision.viz.curves import read_runs
    from hypvision.viz.video import frame_count, read_frames

    yield from (
        read,
        read_file,
        read_weights,
        load_classes,
        read_hyperlex,
        read_chains,
        load_config,
        read_json,
    )
    yield from (open_image, image_size, read_labels, find_sources, find_shards, frame_count)
    yield lambda path: find_images([path])
    yield lambda path: adapters.load(create_clip("emoji-t8").model, path)
    yield lambda path: create_clip("emoji-t8", pretrained=path)
    yield lambda path: ImageFolderDataset(os.path.dirname(path), dict(input_size=32), ann_file=path)
    yield lambda path: list(documents(path))
    yield lambda path: read_tensor(path, max)
    yield lambda path: read_runs([path])
    yield lambda path: list(read_frames(path))
    yield lambda path: read_lines(path, "the list")
    yield lambda path: read_terms(path)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("place", "kind"), [("pipe", "pipe"), ("/dev/zero", "device")])
def test_every_reader_says_what_it_is(tmp_path, place, kind):
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / place  # /dev/zero stays what it is
    for number, read in enumerate(readers()):
        with pytest.raises(HypvisionError, match=f"{place}' is a {kind}, (not|but) a file"):
            read(path)
            pytest.fail(f"reader {number} has read it")


def test_the_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink("none", "link")
    assert why_no_file("none", "image") == "There is no image 'none'."
    assert why_no_file("a\0b", "image").startswith("There is no image")
    assert why_no_file("link", "image") == "The image 'link' is a link to nothing."
    assert why_no_file(tmp_path, "image") == f"The image '{tmp_path}' is a folder, not a file."


def test_paths_are_no_words(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "c.csv").write_text("cat\n")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/a.png").touch()
    os.mkfifo("pipe")
    assert parse_classes("cat") == ["cat"] and parse_classes("St. Bernard, dog") == [
        "St. Bernard",
        "dog",
    ]
    assert parse_classes("t.npy,") == ["t.npy"] and parse_classes("imagenet") == "imagenet"
    for given, said in (
        ("t.npy", "'t.npy' cannot be a class list: its suffix is '.npy'"),
        ("c.csv", "'c.csv' cannot be a class list: its suffix is '.csv'"),
        ("/dev/zero", "'/dev/zero' is a device, not a file"),
        ("pipe", "'pipe' is a pipe, not a file"),
        ("./cat", "'cat' is a folder, not a file"),
    ):
        assert main(["predict", "cat", "--clip", "emoji-t8.scenes", "--classes", given]) == 2
        assert said in capsys.readouterr().err
    for given, said in (
        ("c.csv", "a file of texts must end in .txt"),
        ("pipe", "'pipe' is a pipe"),
    ):
        assert main(["metric", "embed", "--clip", "emoji-t8.scenes", "--texts", given]) == 2
        assert said in capsys.readouterr().err
