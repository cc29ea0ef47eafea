"""Every entry point for images accepts the same files and refuses the same attacks."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.bad_images import BAD_IMAGES
from helpers.cases import each
from PIL import Image

from hypvision.io.errors import HypvisionError
from hypvision.io.images import open_image


def classification(path):
    pytest.importorskip("mmengine")
    from hypvision.data.image_folder import ImageFolderDataset

    return ImageFolderDataset(str(path.parents[1]), dict(input_size=32)).read(0)


def retrieval(path):
    pytest.importorskip("mmengine")
    from hypvision.data.retrieval import RetrievalFolder

    return RetrievalFolder(str(path.parents[1]), dict(input_size=32)).read(0)


def published_retrieval(path):
    pytest.importorskip("mmengine")
    from hypvision.data.retrieval import CUB200

    data = CUB200.__new__(CUB200)
    data.paths = [str(path)]
    data._cache = None
    return data.read(0)


def captions(path):
    from hypvision.data.tag_captions import TagCaptions

    size = Image.open(path).size[::-1] if path.name.startswith("good") else (1, 1)
    data = SimpleNamespace(_images={}, files=[(path, path)], _labels=[np.zeros(size)])
    return TagCaptions._image(data, 0)


def embed(path):
    from hypvision.inference.sources import Sources
    from hypvision.tasks.embedding import Embedder, embed_sources

    taken = []
    embedder = Embedder(
        lambda x: x, lambda image: torch.tensor(taken.append(image) or 0), "cosine", ""
    )
    embed_sources(embedder, Sources((path,)))
    return taken[0]


def segment(path):
    from hypvision.clip.segmentation.segment import segment

    model = SimpleNamespace(
        check_size=lambda *args: None,
        classes=("a",),
        predict=lambda x: [torch.zeros(x[0].shape[1:])],
    )
    return segment(path, ["a"], model).image


def radius(path):
    from hypvision.clip import radius
    from hypvision.clip.spaces import Sphere

    taken = []
    clip = SimpleNamespace(
        model=SimpleNamespace(visual=SimpleNamespace(image_size=64)), space=Sphere()
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(radius, "image_radii", lambda clip, batch, **how: taken.append(batch[0]))
        radius.measure_radii(clip, {}, [path])
    return Image.fromarray(taken[0].permute(1, 2, 0).numpy())


def stock(path):
    """The transform of every config of mmseg and mmdet."""
    pytest.importorskip("mmcv")
    from mmengine.registry import TRANSFORMS

    import hypvision.openmmlab  # noqa: F401

    found = TRANSFORMS.build(dict(type="LoadImageFromFile"))(dict(img_path=str(path)))
    assert found["img_shape"] == found["ori_shape"] == found["img"].shape[:2]
    return Image.fromarray(found["img"][..., ::-1])


def command(path):
    """explain, search and the rest of the commands open images in the one way."""
    from hypvision.cli import main

    assert (
        main(["metric", "search", str(path), "--gallery", str(path.parent), "--model", "test_vit"])
        == 2
    )
    return open_image(path)  # raises for the bad ones


IMAGES = [
    classification,
    retrieval,
    published_retrieval,
    captions,
    embed,
    segment,
    radius,
    stock,
    command,
]


def wide_labels(path):
    pytest.importorskip("mmseg")
    import hypvision.openmmlab  # noqa: F401
    from hypvision.openmmlab.open_vocabulary.segmentation import Load16BitAnnotations

    Load16BitAnnotations()._load_seg_map(dict(seg_map_path=str(path)))


def stock_labels(path):
    """mmseg's own reader, which takes Pillow and all its formats; whatever a file is called."""
    pytest.importorskip("mmseg")
    from mmseg.datasets.transforms import LoadAnnotations

    import hypvision.openmmlab  # noqa: F401
    from hypvision.openmmlab.sample_checks import CheckedPipeline

    CheckedPipeline(LoadAnnotations())(
        dict(img_path="image.png", seg_map_path=str(path), seg_fields=[])
    )


def panoptic_labels(path):
    pytest.importorskip("mmdet")
    import hypvision.openmmlab  # noqa: F401
    from hypvision.openmmlab.open_vocabulary.panoptic import LoadPanopticSegments

    LoadPanopticSegments()(dict(seg_map_path=str(path)))


def caption_labels(path):
    from hypvision.data.tag_captions import _read_labels

    _read_labels(path)


@each("entry_point", [*IMAGES, wide_labels, stock_labels, panoptic_labels, caption_labels])
def test_bad_files_are_refused_by_name(tmp_path, capsys, entry_point):
    for name, content in BAD_IMAGES.items():
        folder = tmp_path / name.replace(".", "_") / "class"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(content)
        with pytest.raises(HypvisionError, match=name):
            entry_point(folder / name)
    assert "Traceback" not in capsys.readouterr().err


@each("entry_point", IMAGES)
def test_sixteen_bits_and_turned_photos_are_taken_as_they_are_shown(tmp_path, entry_point):
    (tmp_path / "grey/class").mkdir(parents=True)
    (tmp_path / "turned/class").mkdir(parents=True)
    values = np.linspace(0, 65535, 64 * 64).reshape(64, 64)
    Image.fromarray(values.astype(np.uint16)).save(tmp_path / "grey/class/good.png")
    found = np.asarray(entry_point(tmp_path / "grey/class/good.png")).astype(int)
    assert np.abs(found[..., 0] - values / 257).max() <= 1  # all above 255 was white
    exif = Image.Exif()
    exif[0x0112] = 3  # the camera was upside down
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels[::-1, ::-1].copy()).save(tmp_path / "turned/class/good.png", exif=exif)
    assert (np.asarray(entry_point(tmp_path / "turned/class/good.png")) == pixels).all()


@each(
    "mode, suffix",
    [
        ("RGB", "jpg"),
        ("L", "jpg"),
        ("CMYK", "jpg"),
        ("RGB", "png"),
        ("L", "png"),
        ("RGBA", "png"),
        ("P", "png"),
    ],
)
def test_mmcv_shows_what_the_other_entry_points_show(tmp_path, mode, suffix):
    """``hypvision test`` reads by its transform, ``hypvision predict`` by open_image."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8))
    image = image.resize((96, 64), Image.Resampling.BICUBIC).convert(mode)
    if mode == "RGBA":
        image.putalpha(0)
    image.save(tmp_path / f"a.{suffix}", **({"quality": 95} if suffix == "jpg" else {}))
    shown, read = (
        np.asarray(open_image(tmp_path / f"a.{suffix}")),
        np.asarray(stock(tmp_path / f"a.{suffix}")),
    )
    assert np.abs(shown.astype(int) - read).max() <= (1 if suffix == "jpg" else 0)
