"""Videos: what is one, whatever it is called."""

import numpy as np
import pytest
from helpers.cases import each
from PIL import Image

pytest.importorskip("cv2")
import cv2

from hypvision.io.errors import HypvisionError
from hypvision.viz import video
from hypvision.viz.video import frame_count, frame_rate, read_frames, writing_video


def write_video(path, codec="mp4v", frames=3):
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 10, (64, 48))
    for number in range(frames):
        writer.write(np.full((48, 64, 3), 40 * number % 256, np.uint8))
    writer.release()
    return path


FILES = [("a.mp4", "mp4v"), ("a.avi", "MJPG"), ("a.mov", "mp4v"), ("a.mkv", "mp4v")]


@each("name, codec", FILES)
def test_videos_are_read(tmp_path, name, codec):
    path = write_video(tmp_path / name, codec)
    assert (
        frame_count(path) == 3
        and [frame.shape for _, frame in read_frames(path)] == [(48, 64, 3)] * 3
    )
    path.rename(tmp_path / "b.webm")  # the name does not matter
    assert len(list(read_frames(tmp_path / "b.webm"))) == 3


def test_a_video_that_is_cut_off_is_told(tmp_path, recwarn):
    path = write_video(tmp_path / "a.avi", "MJPG", 40)
    assert len(list(read_frames(path))) == 40 and not recwarn.list
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 5])
    with pytest.warns(
        UserWarning, match=r"ends after \d+ of the 40 frames that its header promises"
    ):
        assert 0 < len(list(read_frames(path, every=3))) < 10


def test_what_is_no_video_is_not_decoded(tmp_path):
    """OpenCV would open an image, and FFmpeg a playlist, which names other files and addresses."""
    Image.new("RGB", (64, 48)).save(tmp_path / "image.png")
    (tmp_path / "image.png").rename(tmp_path / "image.mp4")
    Image.new("RGB", (64, 48)).save(tmp_path / "riff.webp")
    (tmp_path / "riff.webp").rename(tmp_path / "riff.avi")
    target = write_video(tmp_path / "target.mp4")
    (tmp_path / "list.mp4").write_text(f"ffconcat version 1.0\nfile {target}\n")
    (tmp_path / "empty.mp4").touch()
    for name in ("image.mp4", "riff.avi", "list.mp4", "empty.mp4", "missing.mp4"):
        message = (
            f"no video '.*{name}'"
            if name == "missing.mp4"
            else f"{name}' cannot be read: its content is none of"
        )
        with pytest.raises(HypvisionError, match=message):
            list(read_frames(tmp_path / name))


def test_frames_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "MAX_PIXELS", 64 * 48 - 1)
    with pytest.raises(HypvisionError, match="frames are 64 x 48 pixels"):
        list(read_frames(write_video(tmp_path / "a.mp4")))


@each("said", [0.0, np.nan, np.inf, -1.0, 1e-9, 9e4, 1e12])
def test_a_rate_that_no_video_has(tmp_path, monkeypatch, said):
    """Of a damaged header; OpenCV's writer refuses some, and never ends at infinity."""
    path, real = write_video(tmp_path / "a.mp4"), cv2.VideoCapture.get
    monkeypatch.setattr(
        cv2.VideoCapture,
        "get",
        lambda self, name: said if name == cv2.CAP_PROP_FPS else real(self, name),
    )
    assert frame_rate(path) == 25


def test_one_frame_in_ten_million(tmp_path):
    with writing_video(tmp_path / "b.mp4", 10 / 10**7) as append:
        append(Image.new("RGB", (64, 48)))
    assert frame_count(tmp_path / "b.mp4") == 1


def test_a_video_that_was_cut_short_is_not_kept(tmp_path, monkeypatch):
    """OpenCV says nothing of a full disk."""
    monkeypatch.setattr(video, "frame_count", lambda path: 1)
    said = r"b\.mp4' was not written: OpenCV could not write the whole video"
    with pytest.raises(HypvisionError, match=said), writing_video(tmp_path / "b.mp4", 10) as append:
        append(Image.new("RGB", (64, 48)))
        append(Image.new("RGB", (64, 48)))
    assert not list(tmp_path.iterdir())


def test_names_that_are_not_utf8(tmp_path):
    """OpenCV crashes at them."""
    place = tmp_path / "\udcff" / "a.mp4"
    place.parent.mkdir()
    with (
        pytest.raises(HypvisionError, match=r"not UTF-8.*Rename"),
        writing_video(place, 10) as append,
    ):
        append(Image.new("RGB", (64, 48)))
    write_video(tmp_path / "a.mp4").rename(place)
    with pytest.raises(HypvisionError, match=r"not UTF-8.*Rename"):
        frame_count(place)
