"""``hypvision app``: the models in a page of the browser; see :mod:`hypvision.app`."""

from __future__ import annotations

from argparse import Namespace

from hypvision.cli.arguments import Parser, add_device_argument, device_of, whole


def add_app_arguments(parser: Parser) -> None:
    text = "folder of images that the tab Find searches, with its sub-folders"
    parser.add_argument("--gallery", metavar="DIR", help=text)
    text = "network address to listen at (default: 127.0.0.1, which this machine alone reaches; 0.0.0.0: all)"
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=text)
    parser.add_argument("--port", type=whole(1, 65535), metavar="N", help="default: the first free one from 7860")
    text = "largest file to upload, in megabytes (default: 20)"
    parser.add_argument("--max-upload", type=whole(1, 10_000), default=20, metavar="MB", help=text)
    add_device_argument(parser)


def run_app(args: Namespace) -> None:
    """``app`` from parsed arguments; serves the page until it is interrupted."""
    from hypvision.errors import require

    require("gradio", "app")
    from hypvision.app import Answers, serve

    serve(Answers(args.gallery, device_of(args)), args.host, args.port, args.max_upload)
