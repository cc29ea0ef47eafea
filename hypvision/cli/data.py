"""``hypvision data prepare``, ``convert``, ``make`` and ``shard``: data sets that are written to
disk."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hypvision.io.files import read_lines

from .arguments import Parser, number, whole

# Copied from hypvision.data, because importing it imports PyTorch.
PREPARED = (
    "ade847", "pc59", "pc459", "voc20", "voc20b", "cifar10", "cifar100", "tiny-imagenet",
    "imagenet", "ade20k", "ade-panoptic", "coco-stuff",
)  # fmt: skip
LAYOUTS = ("masks", "coco")
LEVELS = ("name", "class", "group")


def add_data_prepare_arguments(parser: Parser) -> None:
    parser.add("name NAME", f"the data set: {', '.join(PREPARED)}", choices=PREPARED)
    parser.add(
        "source SOURCE",
        "folder of the published data, unpacked or as archives, whose checksums are verified",
    )
    parser.add("out OUT", "folder to write to, e.g. data/ade847", output="folder")


def run_data_prepare(args: Namespace) -> None:
    from hypvision.data.prepare import prepare

    print(f"{args.name}: {prepare(args.name, args.source, args.out)} images in {args.out}")


def add_data_convert_arguments(parser: Parser) -> None:
    parser.add(
        "source FROM",
        "folder of YOLO (data.yaml with labels/*.txt: boxes or outlines), VOC (*.xml), LabelMe "
        "(*.json: polygons, rectangles, circles, masks), CreateML (*.json: boxes) or tables of "
        "boxes (*.csv of TensorFlow, Roboflow and OpenImages)",
    )
    parser.add(
        "out TO",
        "folder for instances_train.json, instances_val.json ... of COCO's format (for data "
        "without parts instances_default.json), e.g. FROM/annotations, where hypvision train FROM "
        "finds them; images stay where they are",
        output="folder",
    )


def run_data_convert(args: Namespace) -> None:
    """Run ``data convert``: print the written files, and what was left out."""
    from hypvision.data.convert import convert
    from hypvision.data.usage import Usage

    usage = Usage(args.source)
    for written in convert(args.source, args.out, usage):
        print(
            f"{written.file}: {written.images:,} images, {written.objects:,} objects, "
            f"{written.classes:,} classes"
        )
    for kind, count, reason, examples in usage.rows():
        print(f"left out: {count} {kind} ({reason}): {examples}")
    for note in usage.notes:
        print(f"note: {note}")


def add_data_make_arguments(parser: Parser) -> None:
    parser.add(
        "out OUT",
        "folder to write to; with --layout all each layout gets its own folder in it",
        output="folder",
    )
    text = "folder of emoji, such as tools/demo_data/emoji of the repository"
    parser.add("--emoji DIR", text, required=True)
    parser.add("--photos DIR", "folder of photos, with folders train and test", required=True)
    parser.add(
        "--layout",
        "layout of the files (default: all)",
        default="all",
        choices=[*LAYOUTS, "all"],
    )
    parser.add("--train N", "number of training images", whole(1), 1000)
    parser.add("--val N", "number of validation images", whole(1), 200)
    parser.add("--size S", "side of the images in pixels", whole(1, 2**15), 128)
    parser.add("--seed", "seed: each number is another data set", whole(0), 0)
    parser.add("--level", "what the classes are", default="group", choices=LEVELS)
    parser.add(
        "--pale X", "share of white mixed into the photos, so that emoji stand out", number, 0.0
    )
    parser.add(
        "--styles NAME...", "vendors of the emoji pictures (default: noto)", default=["noto"]
    )
    parser.add(
        "--val-emoji SPLIT",
        "the split whose emoji the validation scenes show; train: the emoji of the training scenes",
        default="val",
    )
    parser.add("--overwrite", "replace a data set in OUT that has other parameters")


def run_data_make(args: Namespace) -> None:
    from hypvision.data.emoji_export import export_emoji

    for layout in LAYOUTS if args.layout == "all" else (args.layout,):
        out = Path(args.out, layout) if args.layout == "all" else Path(args.out)
        export_emoji(
            out, args.emoji, args.photos, layout, args.train, args.val, args.size, args.seed,
            args.level, args.pale, args.styles, args.val_emoji, args.overwrite,
        )  # fmt: skip
        print(f"{layout}: {out}")


def add_data_shard_arguments(parser: Parser) -> None:
    parser.add(
        "folder FOLDER",
        "folder of images/ with captions.csv or captions.jsonl beside it, or of one folder a class",
    )
    parser.add("out OUT", "new folder of the shards", output="folder")
    parser.add("--samples N", "number of samples in each shard", whole(1), 1000)
    parser.add(
        "--classes FILE",
        "class names in the order of the labels, a .txt file with one a line (default: the "
        "folders, sorted)",
    )
    parser.add("--seed", "seed of the order of the images", whole(0), 0)
    parser.add("--workers N", "processes that read images (default: 0, this one)", whole(0, 256), 0)


def run_data_shard(args: Namespace) -> None:
    from hypvision.data.write_shards import write_shards

    classes = None if args.classes is None else read_lines(args.classes, "the list of classes")
    written = write_shards(args.folder, args.out, args.samples, classes, args.seed, args.workers)
    print(
        f"{written.samples:,} images with {written.kind} in {written.shards:,} shards: {args.out}"
    )
