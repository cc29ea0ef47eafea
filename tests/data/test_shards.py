"""Shards: every sample once for all processes and workers, going on in the middle, and files that
are damaged."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import hypvision.data.shards as shards
from hypvision.data.shard_index import INDEX, count_shards
from hypvision.io.errors import HypvisionError


def picture(value, suffix="PNG"):
    out = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), value, np.uint8)).save(out, suffix)
    return out.getvalue()


def write_tar(path, files):
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def pair(number):
    return {f"{number:03}.png": picture(number), f"{number:03}.txt": f"picture {number}".encode()}


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    """Eight shards of 5, 6, 5, 6, ... pairs: 44 in all."""
    root, number = tmp_path_factory.mktemp("captions"), 0
    for shard in range(8):
        files = {}
        for _ in range(5 + shard % 2):
            files |= pair(number)
            number += 1
        write_tar(root / f"{shard:02}.tar", files)
    return root


def read(data, count, workers=0, batch=1):
    loader = DataLoader(data, batch_size=batch, num_workers=workers)
    found = []
    for sample in loader:
        found += [int(caption.split()[1]) for caption in sample["caption"]]
        assert [int(image[0, 0, 0]) for image in sample["inputs"]] == found[-batch:]
        if len(found) >= count:
            return found
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_two_processes_with_two_workers_see_every_sample_once_an_epoch(captions, monkeypatch, seed):
    found = []
    for rank in range(2):
        monkeypatch.setattr(shards, "get_dist_info", lambda rank=rank: (rank, 2))
        for worker in range(2):
            info = type("Info", (), dict(id=worker, num_workers=2))
            monkeypatch.setattr(shards, "get_worker_info", lambda info=info: info)
            data = shards.CaptionShards(captions, shuffle=3, seed=seed)
            order = np.random.default_rng([seed, 0]).permutation(8)[2 * rank + worker :: 4]
            stream = iter(data)
            found += [next(stream)["caption"] for _ in range(sum(5 + n % 2 for n in order))]
    assert sorted(found) == sorted(f"picture {n}" for n in range(44))


@pytest.mark.parametrize(("workers", "batch"), [(0, 1), (2, 3)])
def test_a_stream_goes_on_where_it_was_stopped(captions, workers, batch, monkeypatch):
    whole = read(shards.CaptionShards(captions, shuffle=3), 60, workers, batch)
    for batches in (1, 5, 16):
        data = shards.CaptionShards(captions, shuffle=3)
        data.seek(batches, batch)
        assert read(data, 60 - batches * batch, workers, batch) == whole[batches * batch :]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_of_so_many_batches_are_parts_of_the_stream(captions, workers):
    whole = read(shards.CaptionShards(captions, shuffle=3), 60, workers, 3)
    data, found = shards.CaptionShards(captions, shuffle=3), []
    for epoch in range(4):
        data.seek(5 * epoch, 3, stop=5)
        part = read(data, 1000, workers, 3)
        assert len(part) == 15  # and it has ended
        found += part
    assert found == whole


def test_a_process_counts_its_share(captions, monkeypatch):
    monkeypatch.setattr(shards, "get_dist_info", lambda: (0, 4))
    assert len(shards.CaptionShards(captions)) == 11
    with pytest.raises(HypvisionError, match="single process"):
        shards.CaptionShards(captions, shuffle=0)


def test_shards_that_were_seen_are_not_opened_again(captions, monkeypatch):
    whole = read(shards.CaptionShards(captions, shuffle=3), 44)
    assert whole != sorted(whole) and sorted(whole) == list(range(44))
    opened, real = [], shards._files
    data = shards.CaptionShards(captions, shuffle=3)
    monkeypatch.setattr(
        shards, "_files", lambda path, *rest: opened.append(path) or real(path, *rest)
    )
    data.seek(16, 1)
    assert read(data, 1) == whole[16:17] and len(opened) == 1


def test_a_pass_without_shuffling_is_in_order_and_ends(captions):
    data = shards.CaptionShards(str(captions / "{00..07}.tar"), shuffle=0)
    assert len(data) == 44 and read(data, 1000) == list(range(44))


def test_counts_are_remembered_until_a_shard_changes(tmp_path, monkeypatch):
    write_tar(tmp_path / "a.tar", pair(1) | pair(2))
    assert len(shards.CaptionShards(tmp_path)) == 2
    assert json.loads((tmp_path / INDEX).read_text())["CaptionShards"]["a.tar"]["samples"] == 2
    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("opened again"))
        assert len(shards.CaptionShards(tmp_path)) == 2
    write_tar(tmp_path / "a.tar", pair(1) | pair(2) | pair(3))
    assert len(shards.CaptionShards(tmp_path)) == 3


def test_counts_of_another_process_stay(tmp_path):
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", pair(1))

    def count(path):
        if path.stem == "a":  # another process counts the other shard meanwhile
            count_shards([tmp_path / "b.tar"], "words", count)
        return 1, []

    count_shards([tmp_path / "a.tar"], "words", count)
    assert json.loads((tmp_path / INDEX).read_text())["words"].keys() == {"a.tar", "b.tar"}


def test_what_cannot_be_used_is_named(tmp_path):
    files = pair(1) | {
        "002.png": picture(2),
        "003.txt": b"alone",
        "004.png": picture(4),
        "004.txt": b"\xff\xfe",
    }
    files |= {"005.png": picture(5), "005.json": b"{"} | pair(6)
    write_tar(tmp_path / "a.tar", files)
    write_tar(tmp_path / "b.tar", pair(7) | pair(8))
    whole = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(whole[: 512 * 4 + 512 + 20])  # within the second image
    data = shards.CaptionShards(tmp_path, shuffle=0)
    assert read(data, 10) == [1, 6, 7]
    told = str(data.usage)
    assert "used 3 of 8 samples" in told
    for text in (
        "no caption: a.tar, 002", "no image: a.tar, 003", "not UTF-8: a.tar, 004",
        "damaged JSON: a.tar, 005", "cut off or damaged: fetch or write it again: b.tar, 008.png",
    ):  # fmt: skip
        assert text in told


def test_an_image_that_cannot_be_read_is_named(tmp_path):
    write_tar(tmp_path / "a.tar", {"x.jpg": b"no picture", "x.txt": b"words"})
    with pytest.raises(HypvisionError, match=r"sample 'x' of the shard '.*a\.tar' cannot be read"):
        next(iter(shards.CaptionShards(tmp_path)))


def test_the_layout_of_grit(tmp_path):
    files = {
        "7.child.jpg": picture(7, "JPEG"),
        "7.child.txt": b"a dog and a cat",
        "7.numparents.txt": b"2",
    }
    for n, words in enumerate((b"dog", b"cat")):
        files |= {f"7.parent00{n}.jpg": picture(100 + n, "JPEG"), f"7.parent00{n}.txt": words}
    write_tar(
        tmp_path / "a.tar", files | {"8.child.jpg": picture(8, "JPEG"), "8.child.txt": b"no box"}
    )
    data = shards.CaptionShards(tmp_path, boxes=True)
    stream, seen = iter(data), set()
    for _ in range(20):
        sample = next(stream)
        assert (
            sample["caption"] == "a dog and a cat"
            and abs(int(sample["inputs"].float().mean()) - 7) <= 2
        )
        assert sample["box_inputs"].dtype == torch.uint8
        seen.add((sample["box_caption"], int(sample["box_inputs"].float().mean().round())))
    assert seen == {("dog", 100), ("cat", 101)}
    assert "no box: a.tar, 8" in str(data.usage)
    sample = next(iter(shards.CaptionShards(tmp_path, boxes=3)))
    assert sample["box_caption"] == ["dog", "cat", ""] and sample["box_count"] == 2
    means = sample["box_inputs"].float().flatten(1).mean(1).round().tolist()
    assert means == [100, 101, 0]


def test_labels(tmp_path):
    write_tar(
        tmp_path / "a.tar", {"1.png": picture(1), "1.cls": b"1", "2.png": picture(2), "2.cls": b"2"}
    )
    transform = dict(input_size=4, is_training=False)
    data = shards.ImageShards(tmp_path, transform, classes=["cat", "dog"], shuffle=0)
    assert [sample["label"] for sample in data] == [1]
    assert "a label beyond the classes: a.tar, 2" in str(data.usage)
    more = shards.ImageShards(tmp_path, transform, classes=["cat", "dog", "cow"], shuffle=0)
    assert (
        [sample["label"] for sample in more] == [1, 2]
        and len(more) == 2
        and not more.usage.left_out()
    )


def test_shards_that_do_not_exist_or_do_not_suffice(captions, tmp_path, monkeypatch):
    with pytest.raises(HypvisionError, match="no shards in"):
        shards.CaptionShards(tmp_path)
    with pytest.raises(HypvisionError, match=r"There is no shard '.*08\.tar'"):
        shards.CaptionShards(str(captions / "{00..08}.tar"))
    monkeypatch.setattr(shards, "get_dist_info", lambda: (0, 9))
    with pytest.raises(HypvisionError, match="8 shards cannot be shared out to 9 processes"):
        next(iter(shards.CaptionShards(captions)))


def test_half_of_the_captions_begin_with_the_subreddit(tmp_path):
    files = {}
    for n in range(200):
        content = {"caption": f"number {n}", **({"subreddit": "catpictures"} if n % 2 else {})}
        files |= {f"{n}.png": picture(n), f"{n}.json": json.dumps(content).encode()}
    write_tar(tmp_path / "a.tar", files)
    captions = [
        sample["caption"] for sample in shards.CaptionShards(tmp_path, shuffle=0, subreddits=0.5)
    ]
    named = [caption for caption in captions if caption.startswith("cat pictures : number ")]
    assert 30 <= len(named) <= 70 and all(int(caption.split()[-1]) % 2 for caption in named)
    assert {caption.removeprefix("cat pictures : ") for caption in captions} == {
        f"number {n}" for n in range(200)
    }
    plain = [sample["caption"] for sample in shards.CaptionShards(tmp_path, shuffle=0)]
    assert plain == [f"number {n}" for n in range(200)]
