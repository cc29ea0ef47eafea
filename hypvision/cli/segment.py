"""``hypvision clip segment IMAGE... --classes "cat, dog, grass"``: segment any images by any class names.

For each image ``NAME_labels.png`` (class numbers; 255, or 65535 with more than 255 classes, is never used) and
``NAME_overlay.png`` (colours and a legend); for a video ``NAME_overlay.mp4``.
"""

from __future__ import annotations

from argparse import Namespace

from hypvision.cli.arguments import Parser, add_clip_argument, add_device_argument, device_of
from hypvision.cli.predict import add_sources_arguments

# Copied from hypvision.clip.classes, because importing it imports PyTorch.
CLASS_LISTS = (
    "coco171", "ade150", "ade847", "pc59", "pc459", "voc20", "voc20b", "coco48", "coco17", "coco65", "coco116",
    "coco133",
)  # fmt: skip


def add_clip_segment_arguments(parser: Parser) -> None:
    add_sources_arguments(parser, "IMAGE")
    known = ", ".join(CLASS_LISTS)
    parser.add_argument("--classes", required=True, help=f'"cat, dog, grass", a .txt or .json file, or one of {known}')
    parser.add_argument("--weights", metavar="FILE", help="checkpoint of a segmenter; without: zero-shot CLIP")
    parser.add_argument("--config", metavar="FILE", help="the config that the weights were trained with")
    add_clip_argument(parser, "zero-shot with this CLIP (default: ViT-B-16:openai)")
    add_device_argument(parser)
    text = "folder of the results (default: segmented)"
    parser.add_output("--out", what="folder", default="segmented", metavar="DIR", help=text)


def run_clip_segment(args: Namespace) -> None:
    """``clip segment`` from parsed arguments; prints the names of the files written."""
    from hypvision.clip.classes import load_classes
    from hypvision.clip.open_vocabulary import check_words
    from hypvision.clip.segmentation.segment import load_segmenter, parse_classes, segment
    from hypvision.files import protecting
    from hypvision.images import leaving_out, require_all
    from hypvision.inference.progress import progress
    from hypvision.inference.results import Labels
    from hypvision.inference.sources import find_sources
    from hypvision.inference.writers import Writer

    device = device_of(args)
    classes = load_classes(parse_classes(args.classes))
    sources = find_sources(args.images, args.every)
    config = None
    if args.config is not None:
        from hypvision.engine.config import load_config

        config = load_config(args.config).model.to_dict()
    model = load_segmenter(args.weights, config, args.clip).to(device)
    check_words(model, classes)
    model.set_classes(classes)
    count = 0
    failed: list[str] = []
    with protecting(*sources.files), Writer(args.out, ("overlay", "labels"), every=args.every) as writer:
        for frame in progress(sources.frames(failed), len(sources), "image"):
            with leaving_out(frame.file, failed):
                found = segment(frame.source, classes, model)
                writer.add(frame, found.image, Labels(found.labels, classes))
                count += 1
    for path in writer.written:
        print(path)
    require_all(failed, count)
