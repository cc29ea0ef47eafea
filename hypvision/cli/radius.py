"""``hypvision clip radius``: how far from the origin CLIP's embeddings lie on the ball, before and after tuning."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path

from hypvision.cli.arguments import Parser, add_clip_argument, add_device_argument, clip_of, number


def add_clip_radius_arguments(parser: Parser) -> None:
    add_clip_argument(parser, "the CLIP before tuning (default: ViT-B-16:openai)", "ViT-B-16:openai")
    parser.add_argument("--adapter", metavar="FILE", help="a saved HyperCLIP adapter: the CLIP after tuning")
    text = 'known lists, files, or "cat, dog"'
    parser.add_argument("--classes", nargs="+", default=["coco171"], metavar="LIST", help=text)
    parser.add_argument("--images", nargs="+", default=[], metavar="IMAGE", help="images, whose patches are measured")
    parser.add_argument("--convention", choices=["metric2", "half"], default="metric2", help="with the factor 2 or not")
    parser.add_argument("--sweep", nargs="+", type=number, default=[], metavar="S", help="scale the adapter by these")
    add_device_argument(parser)
    text = "folder of radius.json and radius.png (default: radius)"
    parser.add_output("--out", what="folder", default="radius", metavar="DIR", help=text)


def run_clip_radius(args: Namespace) -> None:
    """``clip radius`` from parsed arguments: prints statistics, writes them and a drawing."""
    from hypvision.clip import adapters
    from hypvision.clip.classes import load_classes
    from hypvision.clip.radius import measure_radii, radius_statistics, scale_sweep
    from hypvision.clip.segmentation.segment import parse_classes
    from hypvision.clip.towers import find_towers
    from hypvision.files import protecting, write_json
    from hypvision.images import find_images, require_all
    from hypvision.viz.radii import draw_radii

    clip = clip_of(args)
    lists = {str(source): load_classes(parse_classes(source)) for source in args.classes}
    images = find_images(args.images)
    how = dict(convention=args.convention)
    failed: list[str] = []
    before = measure_radii(clip, lists, images, failed, **how)
    radii = {f"{name} before": value for name, value in before.items()}
    if args.adapter:
        adapters.load(clip.model, args.adapter)
        radii |= {f"{name} after": value for name, value in measure_radii(clip, lists, images, [], **how).items()}
    sweep: dict[float, float] = {}
    if args.sweep:
        if not args.adapter:
            adapters.inject(clip.model, block=math.gcd(128, *(tower.width for tower in find_towers(clip.model))))
        sweep = scale_sweep(clip, next(iter(lists.values())), args.sweep, **how)
    statistics = {name: radius_statistics(value) for name, value in radii.items()}
    for name, numbers in statistics.items():
        print(f"{name}: " + ", ".join(f"{label} {value:.3f}" for label, value in numbers.items()))
    for factor, value in sweep.items():
        print(f"S x {factor:g}: mean text radius {value:.3f}")
    out = Path(args.out)
    report = dict(statistics=statistics, sweep={str(factor): value for factor, value in sweep.items()})
    with protecting(*images):
        write_json(out / "radius.json", report)
        draw_radii(radii, sweep, out / "radius.png")
    print(out / "radius.json")
    print(out / "radius.png")
    require_all(failed, len(images) - len(failed))
