"""Reading configs."""

import importlib

import pytest

pytest.importorskip("mmengine")
pytest.importorskip("mmdet")

from hypvision.engine.config import MOVED, load_config


def test_configs_dumped_by_earlier_versions_find_the_modules_that_moved(tmp_path):
    path = tmp_path / "old.py"
    names = [*MOVED, "hypvision.tasks"]
    path.write_text(f"custom_imports = dict(imports={names!r})\nmodel = dict(type='ImageClassifier')\n")
    imports = load_config(path).custom_imports["imports"]
    assert imports == [*MOVED.values(), "hypvision.tasks"]
    assert all(importlib.import_module(name) for name in imports)
