"""What importing costs, and what is pinned."""

import re
import subprocess
import sys
from pathlib import Path

import hypvision

FRESH = """
import contextlib, importlib.util, sys

def loaded(*names):
    return [name for name in names if name in sys.modules]

heavy = ("mmengine", "mmcv", "mmdet", "mmseg", "open_clip", "transformers")
import torch, hypvision, hypvision.optim, timm
assert timm.is_model("hcformer_tiny") and not loaded(*heavy), loaded(*heavy)

from hypvision.cli import main
with contextlib.suppress(SystemExit):
    main(["--help"])
assert not loaded(*heavy), loaded(*heavy)

# PyTorch's global hooks are set by the first manifold parameter and the first learned curvature: others pay nothing.
from hypvision.geometry import Lorentz, ManifoldParameter
from torch.nn.modules import module
from torch.optim import optimizer
hooks = [module._global_parameter_registration_hooks, module._global_module_registration_hooks,
         optimizer._global_optimizer_pre_hooks]
assert not any(hooks), hooks
for _ in range(2):
    ManifoldParameter(torch.zeros(3), Lorentz(1.0, learnable=True))
assert [len(h) for h in hooks] == [1, 1, 1], hooks

if importlib.util.find_spec("mmcv"):
    import hypvision.openmmlab
    assert not loaded("mmdet", "mmseg", "mmcv.ops", "matplotlib.pyplot")
    import mmcv.ops, mmdet, mmseg
"""


def test_imports_are_light_and_set_no_hooks_and_warn_of_nothing():
    """In one process, as importing PyTorch is what takes the time."""
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", FRESH], check=True)


def test_data_takes_registries_of_mmengine_and_nothing_else():
    for path in (Path(hypvision.__file__).parent / "data").rglob("*.py"):
        taken = set(re.findall(r"^\s*(?:from|import) (mmengine[\w.]*)", path.read_text(), re.M))
        assert taken <= {"mmengine.registry", "mmengine.dist"}, path


def test_constraints_are_names_and_versions_only():
    lines = (Path(__file__).parents[1] / "constraints.txt").read_text().splitlines()
    pins = [pin for line in lines if (pin := line.partition("#")[0].rstrip())]
    assert "torch==2.11.0" in pins
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+(==|<|>=[0-9.]+,<)[0-9.]+", pin) for pin in pins)
