"""``hypvision segment IMAGE... --classes "cat, dog, grass"``: segment any images by any class names.

For each image ``NAME_labels.png`` (class numbers; 255, or 65535 with more than 255 classes, is never used) and
``NAME_overlay.png`` (colours and a legend); for a video ``NAME_overlay.mp4``.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hypvision.cli.arguments import Parser, add_device_argument, device_of, whole

__all__ = ["CLASS_LISTS", "add_segment_arguments", "run_segment"]

# Those of hypvision.clip.classes, whose import brings PyTorch.
CLASS_LISTS = (
    "coco171", "ade150", "ade847", "pc59", "pc459", "voc20", "voc20b", "coco48", "coco17", "coco65", "coco116",
    "coco133",
)  # fmt: skip


def add_segment_arguments(parser: Parser) -> None:
    """The arguments of ``segment``."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image, video, folder of images, or glob pattern")
    known = ", ".join(CLASS_LISTS)
    parser.add_argument("--classes", required=True, help=f'"cat, dog, grass", a .txt or .json file, or one of {known}')
    parser.add_argument("--weights", metavar="FILE", help="checkpoint of a segmenter; without: zero-shot CLIP")
    parser.add_argument("--config", metavar="FILE", help="the config that the weights were trained with")
    parser.add_argument("--clip", metavar="NAME[:TAG]", help="zero-shot with this CLIP (default ViT-B-16:openai)")
    add_device_argument(parser)
    parser.add_argument(
        "--every", type=whole(1), default=1, metavar="N", help="take every N-th frame of a video (default 1)"
    )
    text = "folder of the results (default: segmented)"
    parser.add_output("--out", what="folder", default="segmented", metavar="DIR", help=text)


def run_segment(args: Namespace) -> None:
    """``segment`` from parsed arguments; prints the names of the files written."""
    from tqdm import tqdm

    from hypvision.clip.classes import load_classes
    from hypvision.clip.segmentation.segment import load_segmenter, parse_classes, segment
    from hypvision.files import protecting
    from hypvision.images import find_images, output_names
    from hypvision.viz.segmentation import draw_segmentation
    from hypvision.viz.sheet import save_picture
    from hypvision.viz.video import separate_videos, transform_video

    device = device_of(args)
    classes = load_classes(parse_classes(args.classes))
    names, videos = separate_videos(args.images)
    images = find_images(names)
    config = None
    if args.config is not None:
        from hypvision.engine.config import load_config

        config = load_config(args.config).model.to_dict()
    model = load_segmenter(args.weights, config, args.clip).to(device)
    out = Path(args.out)

    def draw(frame):
        segmentation = segment(frame, classes, model)
        return draw_segmentation(segmentation.image, segmentation.labels, classes, legend=False)

    with protecting(*images, *videos):
        for path, name in zip(tqdm(images, unit="image", disable=len(images) < 2), output_names(images)):
            segmentation = segment(path, classes, model)
            overlay = draw_segmentation(segmentation.image, segmentation.labels, classes)
            for drawing, kind in ((overlay, "overlay"), (segmentation.label_image(), "labels")):
                tqdm.write(str(save_picture(drawing, out / f"{name}_{kind}.png")))
        for path, name in zip(videos, output_names(videos)):
            print(transform_video(path, out / f"{name}_overlay.mp4", draw, args.every))
