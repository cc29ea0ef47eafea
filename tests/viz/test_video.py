"""Videos: what is one, whatever it is called."""

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("cv2")
import cv2

from hypvision.errors import HypvisionError
from hypvision.viz import video
from hypvision.viz.video import frame_count, read_frames


def write_video(path, codec="mp4v", frames=3):
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 10, (64, 48))
    for number in range(frames):
        writer.write(np.full((48, 64, 3), 40 * number, np.uint8))
    writer.release()
    return path


FILES = [("a.mp4", "mp4v"), ("a.avi", "MJPG"), ("a.mov", "mp4v"), ("a.mkv", "mp4v")]


@pytest.mark.parametrize(("name", "codec"), FILES)
def test_videos_are_read(tmp_path, name, codec):
    path = write_video(tmp_path / name, codec)
    assert frame_count(path) == 3 and [frame.shape for _, frame in read_frames(path)] == [(48, 64, 3)] * 3
    path.rename(tmp_path / "b.webm")  # the name does not matter
    assert len(list(read_frames(tmp_path / "b.webm"))) == 3


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
        with pytest.raises(HypvisionError, match=f"{name}' cannot be read: it is none of"):
            list(read_frames(tmp_path / name))


def test_frames_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "MAX_PIXELS", 64 * 48 - 1)
    with pytest.raises(HypvisionError, match="frames are 64 x 48 pixels"):
        list(read_frames(write_video(tmp_path / "a.mp4")))
