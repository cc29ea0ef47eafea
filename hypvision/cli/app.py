"""``hypvision app`` serves a page on which models are used in a browser; see
:mod:`hypvision.app`."""

from __future__ import annotations

from argparse import Namespace

from hypvision.io import require

from .arguments import Parser, add_device_argument, device_of, whole


def add_app_arguments(parser: Parser) -> None:
    parser.add("--gallery DIR", "folder of images that the tab Find searches, with its sub-folders")
    parser.add(
        "--host ADDRESS",
        "network address to listen at: 127.0.0.1 for this machine only, 0.0.0.0 for all networks",
        default="127.0.0.1",
    )
    parser.add(
        "--port N", "port of the page (default: the first free one from 7860)", whole(1, 65535)
    )
    parser.add("--max-upload MB", "largest file to upload, in megabytes", whole(1, 10_000), 20)
    parser.add(
        "--max-pixels MILLIONS",
        "largest picture, in millions of pixels; a larger JPEG is read at 1/2 to 1/8 of its size",
        whole(1, 178),
        16,
    )
    parser.add(
        "--time-limit SECONDS",
        "longest time for a request, which is then ended",
        whole(1, 86_400),
        300,
    )
    add_device_argument(parser)


def run_app(args: Namespace) -> None:
    """Run ``app``: serve the page until it is interrupted."""

    require("gradio", "app")
    from hypvision.app import Answers, serve

    answers = Answers(args.gallery, device_of(args), args.max_pixels * 1_000_000)
    limits = dict(upload=args.max_upload, seconds=args.time_limit)
    serve(answers, host=args.host, port=args.port, **limits)
