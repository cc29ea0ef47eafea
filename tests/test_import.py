"""What importing costs, and what is pinned."""

import re
import subprocess
import sys
from pathlib import Path

import hypvision

HEAVY = ("mmengine", "mmcv", "mmdet", "mmseg", "open_clip", "transformers")


CODE = f"""
import contextlib, sys
def heavy():
    return [name for name in {HEAVY} if name in sys.modules]
import hypvision, timm
assert timm.is_model("hcformer_tiny")
assert not heavy(), heavy()
from hypvision.cli import main
with contextlib.suppress(SystemExit):
    main(["--help"])
assert not heavy(), heavy()
"""


def test_package_and_command_are_light_and_register_the_models():
    subprocess.run([sys.executable, "-c", CODE], check=True)


def test_data_takes_registries_of_mmengine_and_nothing_else():
    for path in (Path(hypvision.__file__).parent / "data").rglob("*.py"):
        taken = set(re.findall(r"^\s*(?:from|import) (mmengine[\w.]*)", path.read_text(), re.M))
        assert taken <= {"mmengine.registry", "mmengine.dist"}, path


def test_constraints_are_names_and_versions_only():
    lines = (Path(__file__).parents[1] / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.11.0" in pins
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+(==|<|>=[0-9.]+,<)[0-9.]+", pin) for pin in pins)
