"""What importing costs, and what is pinned."""

import re
import subprocess
import sys
from pathlib import Path

import hypvision

HEAVY = ("mmengine", "mmcv", "mmdet", "mmseg", "open_clip", "transformers")


def loaded_by(code):
    code += f"\nimport sys; print([name for name in {HEAVY} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_is_light_and_registers_the_models():
    assert loaded_by("import hypvision, timm; assert timm.is_model('hcformer_tiny')").endswith("[]")


def test_the_command_is_light():
    code = (
        "import contextlib\nfrom hypvision.cli import main\nwith contextlib.suppress(SystemExit):\n    main(['--help'])"
    )
    assert loaded_by(code).endswith("[]")


def test_data_takes_registries_of_mmengine_and_nothing_else():
    for path in (Path(hypvision.__file__).parent / "data").rglob("*.py"):
        taken = set(re.findall(r"^\s*(?:from|import) (mmengine[\w.]*)", path.read_text(), re.M))
        assert taken <= {"mmengine.registry", "mmengine.dist"}, path


def test_constraints_are_names_and_versions_only():
    lines = (Path(__file__).parents[1] / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.11.0" in pins
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+(==|<|>=[0-9.]+,<)[0-9.]+", pin) for pin in pins)
