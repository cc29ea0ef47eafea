#!/usr/bin/env python
"""Draw the picture of the app on its page, docs/images/app/disk.png, by a browser:
``python studies/draw_app.py``. Needs the extra ``full`` and Chromium, on the path or named in the
environment variable CHROMIUM.
"""

from __future__ import annotations

import os
import shutil
import sys
from argparse import ArgumentParser, Namespace
from io import BytesIO
from pathlib import Path

from PIL import Image

from hypvision.app.answers import Answers
from hypvision.app.server import serving
from hypvision.io.checks import ensure
from hypvision.io.errors import guard
from hypvision.io.files import replacing

DISK = Path(__file__).parents[1] / "docs/images/app/disk.png"
MINUTES = 5
WINDOW = dict(width=1280, height=940)
BOX = (562, 203, 1213, 854)  # of the disk alone, so that its names are legible at 420 pixels


def draw(args: Namespace) -> None:
    """Embed the hierarchy that the app begins with and save the disk that its page shows."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    ensure(chromium, "There is no Chromium. Install one, or name it in CHROMIUM.")
    with serving(Answers()) as address, sync_playwright() as driver:
        # as root, as in containers, Chromium runs without its sandbox only
        options = ["--no-sandbox"] * (os.geteuid() == 0)
        browser = driver.chromium.launch(executable_path=chromium, args=options)
        page = browser.new_page(viewport=WINDOW)
        page.set_default_timeout(60_000 * MINUTES)
        page.goto(address)
        page.get_by_role("tab", name="Hierarchy in the disk", exact=True).click()
        page.get_by_role("button", name="Embed").click()
        page.locator("#disk .gtitle").wait_for()
        picture = Image.open(BytesIO(page.screenshot())).crop(BOX)
        browser.close()
    # 64 colours are enough for a page and keep the file small.
    with replacing(args.out) as temporary:
        picture.convert("RGB").quantize(64).save(temporary, "PNG", optimize=True)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    parser = ArgumentParser(description="Draw the picture of the app on its page.")
    parser.add_argument("--out", default=str(DISK), metavar="FILE", help=f"(default: {DISK})")
    sys.exit(guard(draw, parser.parse_args()))
