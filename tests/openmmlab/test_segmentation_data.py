"""Images and label maps on disk, faults in them, and what every reader of them says: one table for
all readers."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.cases import each
from PIL import Image

pytest.importorskip("mmseg")
from mmengine.registry import DefaultScope

import hypvision.openmmlab  # noqa: F401 - before mmseg, which needs mmcv's operations

# isort: split
from mmseg.datasets import ADE20KDataset, BaseSegDataset, CityscapesDataset, PascalVOCDataset
from mmseg.registry import DATASETS as MMSEG

from hypvision.data.prepare import prepare
from hypvision.data.tag_captions import TagCaptions
from hypvision.data.usage import usages
from hypvision.io.errors import HypvisionError
from hypvision.openmmlab.datasets.segmentation import CamVidDataset, LoadLabelMap
from hypvision.openmmlab.open_vocabulary.segmentation import OpenVocabSegDataset
from hypvision.openmmlab.sample_checks import check_label_maps, watch_samples

NAMES = ("ground", "cat", "dog")
PALETTE = [(0, 0, 0), (200, 0, 0), (0, 200, 0)]
LABELS = np.array(
    [[1, 1, 2, 2], [1, 1, 2, 2], [0, 255, 2, 2]], dtype=np.uint8
)  # right with and without zero


def write(root, name, labels=LABELS, suffix=(".jpg", ".png"), folders=("images", "masks")):
    """An image of grey noise and its label map, an array or an image."""
    for folder in folders:
        (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
    size = labels.size if isinstance(labels, Image.Image) else labels.shape[1::-1]
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(root / folders[0] / f"{name}{suffix[0]}")
    if suffix[1]:
        image = labels if isinstance(labels, Image.Image) else Image.fromarray(labels)
        image.save(root / folders[1] / f"{name}{suffix[1]}")


def written(folder):
    """A folder with three images and their label maps."""
    for name in "abc":
        write(folder, name)
    return folder


@pytest.fixture
def root(tmp_path):
    return written(tmp_path)


def mmseg(cls, loader="LoadAnnotations", **fixed):
    """A function that opens a folder with a data set and reads all of it, as a run does."""

    def reader(root, **options):
        pipeline = [dict(type="LoadImageFromFile"), dict(type=loader), dict(type="PackSegInputs")]
        place = dict(
            serialize_data=False,
            data_root=str(root),
            data_prefix=dict(img_path="images", seg_map_path="masks"),
        )
        with DefaultScope.overwrite_default_scope("mmseg"):
            dataset = cls(**{**place, "pipeline": pipeline, **fixed, **options})
        check_label_maps(dataset)
        watch_samples(dataset)
        samples = [dataset[i]["data_samples"] for i in range(len(dataset))]
        maps = [sample.gt_sem_seg.data[0].numpy() for sample in samples]
        return SimpleNamespace(
            dataset=dataset, labels=maps, names=[os.path.basename(s.img_path) for s in samples]
        )

    return reader


def tags(root, **options):
    dataset = TagCaptions(
        root, dict(img_path="images", seg_map_path="masks"), NAMES, size=4, **options
    )
    for i in range(20):
        dataset[i]
    return SimpleNamespace(
        dataset=dataset,
        labels=dataset._labels,
        names=[os.path.basename(i) for i, _ in dataset.files],
    )


def prepared(name):
    """``hypvision data prepare`` of the same files in VOC's layout."""

    def reader(root, **_):
        (root / "ImageSets/Segmentation").mkdir(parents=True)
        images = sorted(path for path in (root / "images").iterdir())
        (root / "ImageSets/Segmentation/val.txt").write_text(
            "\n".join(path.stem for path in images)
        )
        for ours, theirs in (("images", "JPEGImages"), ("masks", "SegmentationClassAug")):
            (root / ours).rename(root / theirs)
        prepare(name, root, root / "out")

    return reader


base = mmseg(BaseSegDataset, metainfo=dict(classes=NAMES))
words = mmseg(OpenVocabSegDataset, "Load16BitAnnotations", classes=NAMES)
DATASETS = dict(
    base=base, words=words, ade=mmseg(ADE20KDataset), camvid=mmseg(CamVidDataset), tags=tags
)
READERS = dict(DATASETS, voc20=prepared("voc20"), voc20b=prepared("voc20b"))


def spoil(labels, suffix=".png"):
    """One label map becomes another."""

    def change(root):
        (root / "masks/b.png").unlink()
        image = labels if isinstance(labels, Image.Image) else Image.fromarray(labels)
        image.save(root / f"masks/b{suffix}")

    return change


def turn(root):
    image = Image.open(root / "images/b.jpg")
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(root / "images/b.jpg", exif=exif)


# Without those that read no folder of masks or fix their suffixes; DATASETS has the reader of
# OpenVocabSegDataset
OTHERS = {
    "ColourShapeDataset",
    "DSDLSegDataset",
    "DecathlonDataset",
    "NYUDataset",
    "REFUGEDataset",
    "OpenVocabSegDataset",
}
ALL_OF_MMSEG = sorted(
    {name for name, kind in MMSEG.module_dict.items() if issubclass(kind, BaseSegDataset)} - OTHERS
)


@each("name", ALL_OF_MMSEG)
def test_every_data_set_names_the_option_that_reads_coloured_masks(tmp_path, name):
    root = written(tmp_path)
    kind = MMSEG.get(name)
    (root / "names.txt").write_text("a\nb\nc\n")
    options = dict(ann_file="names.txt", img_suffix=".jpg", seg_map_suffix=".png")
    options |= {} if kind.METAINFO.get("classes") else dict(metainfo=dict(classes=NAMES))
    for folder in ("images", "masks"):
        for path in (root / folder).iterdir():
            image = Image.open(path).convert("RGB")
            if folder == "masks":
                image.putpixel((0, 0), (9, 8, 7))
            image.save(path)
    with pytest.raises(
        HypvisionError, match=r"is a coloured image.*rgb_masks=True and their palette"
    ):
        mmseg(kind)(root, **options)


FAULTS = {  # and what the error mentions beside the file
    "colours": (spoil(np.dstack([LABELS, LABELS, LABELS * 2])), "coloured.*rgb_masks"),
    "equal channels": (spoil(np.dstack([LABELS] * 3)), "coloured.*equal"),
    "transparent": (spoil(np.dstack([LABELS, LABELS])), "coloured"),
    "fractions": (spoil(np.full((3, 4), 0.5, np.float32), ".tif"), r"\[0\.5\]"),
    "another size": (spoil(LABELS.repeat(2, 0)), r"4 x 6 .*b\.jpg.* 4 x 3"),
    "16 bits": (spoil(np.full((3, 4), 300, np.uint16)), "300"),
    "damaged": (lambda root: (root / "masks/b.png").write_bytes(b"no"), "cannot be read"),
    "turned photo": (turn, r"4 x 3 .*b\.jpg.* 3 x 4.*EXIF"),
}


@each("fault", FAULTS)
@each("reader", READERS)
def test_faults_are_told_by_every_reader(tmp_path, reader, fault):
    root = written(tmp_path)
    if fault == "fractions" and reader.startswith("voc"):
        pytest.skip("VOC's maps are PNG files, which have no fractions")
    change, message = FAULTS[fault]
    change(root)
    with pytest.raises(HypvisionError, match=rf"b\.(png|tif)'.* {message}") as caught:
        READERS[reader](root)
    assert "config" not in str(caught.value)


@each("reader", READERS)
def test_what_is_right_is_read(tmp_path, reader):
    """Also in 16 bits, as a palette PNG, as whole floats and with alpha that hides nothing."""
    root = written(tmp_path)
    write(root, "d", LABELS.astype(np.uint16))
    image = Image.fromarray(LABELS)
    image.putpalette([0, 0, 9] * 256)
    write(root, "e", image)
    write(root, "f", np.dstack([LABELS, np.full_like(LABELS, 255)]))
    if not reader.startswith("voc"):
        write(root, "g", Image.fromarray(LABELS.astype(np.float32)), suffix=(".png", ".tif"))
    found = READERS[reader](root)
    if found is not None:
        assert len(found.labels) == 7
        assert all(np.array_equal(labels, found.labels[0]) for labels in found.labels)
        zero = reader == "ade"
        assert np.array_equal(
            found.labels[0], np.where(LABELS == 0, 255, LABELS - (LABELS < 255)) if zero else LABELS
        )


@each("reader", DATASETS)
def test_what_is_left_out_is_counted(tmp_path, reader):
    """Suffixes in any case and of any format, hidden folders, links in a circle, images and label
    maps alone."""
    root = written(tmp_path)
    write(root, "B2", suffix=(".JPG", ".PNG"))
    write(root, "deep/d", suffix=(".webp", ".tif"))
    write(root, "e", suffix=(".bmp", ""))
    write(root, "f")
    (root / "images/f.jpg").unlink()
    write(root, ".ipynb_checkpoints/a", folders=("images", "masks"))
    (root / "images/note.xcf").touch()
    (root / "images/deep/up").symlink_to(root / "images")
    Image.new("RGB", (4, 3)).save(root / "images/a.png")
    found = DATASETS[reader](root)
    assert found.names == ["B2.JPG", "a.jpg", "b.jpg", "c.jpg", "d.webp"]
    (usage,) = usages(found.dataset)
    images, masks = root / "images", root / "masks"
    assert usage.rows() == [
        ("images", 5, "used", ""),
        ("images", 1, "hidden", str(images / ".ipynb_checkpoints")),
        ("folders", 1, "a link to a folder that is read already", str(images / "deep/up")),
        ("label maps", 1, "hidden", str(masks / ".ipynb_checkpoints")),
        ("images", 1, "no label map", str(images / "e.bmp")),
        ("images", 1, "'a.jpg' has its name", str(images / "a.png")),
        ("images", 1, "suffix .xcf", str(images / "note.xcf")),
        ("label maps", 1, "no image", str(masks / "f.png")),
    ]


def test_suffixes_that_are_given_choose(root):
    write(root, "a", suffix=(".png", ""))
    write(root, "Z", suffix=(".PNG", ".png"))
    found = base(root, img_suffix=".png")
    assert found.names == ["Z.PNG", "a.png"]
    assert [row[1:3] for row in found.dataset.usage.rows()[:2]] == [(2, "used"), (3, "suffix .jpg")]
    city = dict(suffix=("_leftImg8bit.png", "_gtFine_labelTrainIds.png"))
    for name in ("x/one", "x/two"):
        write(root / "city", name, **city)
        write(root / "city", name, suffix=("_depth.png", "_gtFine_color.png"))
    found = mmseg(CityscapesDataset)(root / "city")
    assert found.names == ["one_leftImg8bit.png", "two_leftImg8bit.png"]
    assert [row[1:3] for row in found.dataset.usage.rows()] == [
        (2, "used"),
        (2, "not *_leftImg8bit.png"),
    ]


def test_images_and_label_maps_in_one_folder(root):
    for name in "ab":
        write(root, name, folders=("flat", "flat"))
        write(root, name, folders=("tails", "tails"), suffix=(".png", "_mask.png"))
    prefix = dict(img_path="flat", seg_map_path="flat")
    assert base(root, data_prefix=prefix).names == ["a.jpg", "b.jpg"]
    prefix = dict(img_path="tails", seg_map_path="tails")
    assert base(root, data_prefix=prefix, seg_map_suffix="_mask.png").names == ["a.png", "b.png"]
    alone = BaseSegDataset(
        data_root=str(root), data_prefix=dict(img_path="images"), metainfo=dict(classes=NAMES)
    )
    assert len(alone) == 3 and "seg_map_path" not in alone.get_data_info(0)


def test_a_list_selects_and_orders_the_images(root):
    write(root, "d", suffix=(".JPG", ".png"))
    voc = mmseg(PascalVOCDataset, ann_file="list.txt")
    (root / "list.txt").write_text("d\n\na.jpg\n")
    found = voc(root)
    assert found.names == ["d.JPG", "a.jpg"] and "used 2 of 2 images." in str(found.dataset.usage)
    (root / "list.txt").write_text("d\nz\n")
    with pytest.raises(HypvisionError, match=r"'z'.*images/z\.jpg'"):
        voc(root)


def fill(root, labels, suffix=".png"):
    for name in "abc":
        (root / f"masks/{name}.png").unlink()
        image = (
            labels
            if isinstance(labels, Image.Image)
            else Image.fromarray(np.asarray(labels, np.uint8))
        )
        image.save(root / f"masks/{name}{suffix}")


BINARY = np.array([[0, 0, 0, 255]] * 3)


@each("labels, options, message", [
        (BINARY, {}, r"masks.*'ground'.*True.*rgb_masks=True"),
        (LABELS * 0, {}, r"masks.*'ground'.*False.*rgb_masks=True"),
        (LABELS * 0 + 255, {}, "masks.*no label that counts"),
        (LABELS * 0, dict(reduce_zero_label=True), "masks.*no label that counts.*zero_label=True"),
        (BINARY * 0 + [0, 1, 1, 0], dict(metainfo=dict(classes=("cat",)), reduce_zero_label=True),
         "masks.*'cat'.*'background'"),
        (BINARY, dict(metainfo=dict(classes=("cat",))), "masks.*'cat'.*'background'"),
        (LABELS + (LABELS < 3), {}, r"a\.png' has the label 3.*reduce_zero_label"),
        (LABELS, dict(metainfo=dict(classes="cat")), r"'cat'.*classes=\(\"cat\",\)"),
        (LABELS, dict(metainfo=dict(classes=("cat", "dog", "cat"))), "'cat' more than once"),
        (LABELS, dict(rgb_masks=True), "3 classes.*palette"),
        (LABELS, dict(rgb_masks="yes"), "rgb_masks.*'ignore'"),
        (LABELS, dict(seg_map_suffix=".tif"), r"a\.jpg'.*a\.tif'.*a\.png'"),
        (LABELS, dict(img_suffix=".webp"), r"used 0 of 3 images.*suffix \.jpg"),
        (LABELS, dict(data_prefix=dict(img_path="images")), r"a\.jpg'.*seg_map_path="),
        (LABELS, dict(data_root="none"), "none/images.*data_root"),
    ])  # fmt: skip
def test_what_no_file_alone_shows_is_told(tmp_path, labels, options, message):
    root = written(tmp_path)
    fill(root, labels)
    with pytest.raises(HypvisionError, match=message):
        base(root, **options)


def test_other_mistakes_of_whole_data_sets(root):
    with pytest.raises(HypvisionError, match=r"no class 'Skyy'. Did you mean .*Sky"):
        mmseg(CamVidDataset)(root, metainfo=dict(classes=("Skyy", "Road")))
    fill(root, LABELS * 0, ".jpg")
    with pytest.raises(HypvisionError, match=r"There is 'a\.jpg'.* JPEG"):
        base(root)


def test_colours_are_read_by_a_palette_of_the_config(root):
    """RGB, with alpha, grey, black and white, and palette PNGs in whatever order; 255 where nothing
    counts."""
    picture = Image.fromarray(np.array([*PALETTE, (9, 9, 9)], np.uint8)[np.minimum(LABELS, 3)])
    meta = dict(classes=NAMES, palette=PALETTE)
    fill(root, picture)
    picture.convert("RGBA").save(root / "masks/b.png")
    picture.convert("P", palette=Image.Palette.ADAPTIVE).save(root / "masks/c.png")
    with pytest.raises(
        HypvisionError,
        match=r"a\.png' has the colour \(9, 9, 9\), first in row 2, column 1 \(1 pix.*'ignore'",
    ):
        base(root, metainfo=meta, rgb_masks=True)
    for reader, options in (
        (base, dict(metainfo=meta)),
        (words, dict(palette=PALETTE)),
        (
            mmseg(CamVidDataset),
            dict(metainfo=dict(classes=("Sky", "Pole", "Tree"), palette=PALETTE)),
        ),
    ):
        found = reader(root, rgb_masks="ignore", **options)
        assert all(np.array_equal(labels, LABELS) for labels in found.labels)
    subset = words(root, palette=PALETTE, rgb_masks="ignore", ignore_classes=["cat"])
    assert np.array_equal(subset.labels[0], np.array([0, 255, 1, 255])[np.minimum(LABELS, 3)])
    reduced = base(
        root,
        metainfo=dict(classes=NAMES[1:], palette=PALETTE[1:]),
        rgb_masks="ignore",
        reduce_zero_label=True,
    )
    assert np.array_equal(reduced.labels[0], np.array([255, 0, 1, 255])[np.minimum(LABELS, 3)])
    own = np.array(CamVidDataset.METAINFO["palette"], np.uint8)
    fill(root, Image.fromarray(own[np.array([[0, 5], [10, 11]])].repeat(2, 1).repeat(2, 0)[:3]))
    assert mmseg(CamVidDataset)(root, rgb_masks=True).labels[0].tolist() == [[0, 0, 5, 5]] * 2 + [
        [10, 10, 255, 255]
    ]
    binary = dict(
        metainfo=dict(classes=("a", "b"), palette=[(0, 0, 0), (255, 255, 255)]), rgb_masks=True
    )
    for mode in ("L", "1"):
        fill(root, Image.fromarray(BINARY.astype(np.uint8)).convert(mode))
        assert base(root, **binary).labels[0].tolist() == [[0, 0, 0, 1]] * 3
    fill(root, Image.fromarray(LABELS.astype(np.uint16)))
    with pytest.raises(HypvisionError, match=r"mode I;16, which has no colours"):
        base(root, metainfo=meta, rgb_masks=True)


def test_the_palette_in_the_files_is_compared_with_that_of_the_config(root):
    def with_palette(colours):
        image = Image.fromarray(LABELS)
        image.putpalette([value for colour in [*colours, *[(7, 7, 7)] * 253] for value in colour])
        return image

    meta = dict(classes=NAMES, palette=PALETTE)
    swapped = [PALETTE[0], PALETTE[2], PALETTE[1]]
    fill(root, with_palette(PALETTE))
    assert np.array_equal(base(root, metainfo=meta).labels[0], LABELS)
    fill(root, with_palette([(1, 2, 3), *swapped[1:]]))  # other colours say nothing
    base(root, metainfo=meta)
    fill(root, with_palette(swapped))
    base(root)  # nothing to compare with
    with pytest.raises(
        HypvisionError, match=r"colour \(0, 200, 0\) for its label 1, .*label 2: its classes"
    ):
        base(root, metainfo=meta)
    found = base(root, metainfo=meta, rgb_masks="ignore")
    assert np.array_equal(found.labels[0], np.array([0, 2, 1, 255])[np.minimum(LABELS, 3)])


def test_the_reader_is_the_one_that_configs_name():
    from mmengine.registry import TRANSFORMS

    with DefaultScope.overwrite_default_scope("mmseg"):
        assert type(TRANSFORMS.build(dict(type="LoadAnnotations"))) is LoadLabelMap


def test_the_images_at_the_indices_are_counted(root):
    found = mmseg(BaseSegDataset, metainfo=dict(classes=NAMES))(root, indices=[0, 2])
    assert found.names == ["a.jpg", "c.jpg"]
    assert found.dataset.usage.used["images"] == 2
