"""What importing costs, and what is pinned."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hypvision

FRESH = """
import contextlib, importlib.util, os, pwd, sys

# In a container, a user may have a number without a name.
pwd.getpwuid = {}.__getitem__

# The package is complete although a command ran first.
import hypvision_cli
assert hypvision_cli.main(["zoo", "list", "--json"]) == 0
assert hypvision_cli.main(["zoo", "clean", "--list"]) == 0

def loaded(*names):
    return [name for name in names if name in sys.modules]

heavy = ("mmengine", "mmcv", "mmdet", "mmseg", "open_clip", "transformers")
import torch, hypvision, hypvision.optim, timm
assert timm.is_model("hcformer_tiny") and hypvision.load and hypvision.nn
assert not loaded(*heavy), loaded(*heavy)

# What ships is loaded without a network, by timm and by us.
import hypvision.cli.zoo, hypvision.zoo.export, hypvision.zoo.release
model = timm.create_model("hcformer_nano.cifar10", pretrained=True).eval()
x = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
timms, ours = model(x)[0], hypvision.load("hcformer_nano.cifar10")(x)[0]
assert torch.equal(timms, ours) and len(ours) == 10 and ours.max() - ours.min() > 0.5
assert not loaded(*heavy, "onnx"), loaded(*heavy, "onnx")
assert not os.listdir(), os.listdir()

from hypvision.cli import main
with contextlib.suppress(SystemExit):
    main(["--help"])
assert not loaded(*heavy), loaded(*heavy)

# PyTorch's global hooks are set by the first manifold parameter and the first learned curvature:
# others pay nothing.
from hypvision.geometry import Lorentz, ManifoldParameter
from torch.nn.modules import module
from torch.optim import optimizer
hooks = [module._global_parameter_registration_hooks, module._global_module_registration_hooks,
         optimizer._global_optimizer_pre_hooks]
assert not any(hooks), hooks
for _ in range(2):
    ManifoldParameter(torch.zeros(3), Lorentz(1.0, learnable=True))
# two of modules: for manifolds that one takes, and for averages of points
assert [len(h) for h in hooks] == [1, 2, 1], hooks

if importlib.util.find_spec("mmcv"):
    import hypvision.openmmlab
    assert not loaded("mmdet", "mmseg", "mmcv.ops", "matplotlib.pyplot")
    if sys.argv[1:]:
        import mmcv.ops, mmdet, mmseg
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "libraries", [[], pytest.param(["mmdet and mmseg"], marks=pytest.mark.slow)]
)
def test_a_fresh_process_without_a_network(tmp_path, libraries):
    """Imports are light, set no hooks and warn of nothing; what ships is loaded, and nothing is
    written.

    In one process, as importing PyTorch is what takes the time.
    """
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("HYPVISION", "HF_"))
    }
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        environment.pop(name, None)
    environment.update(HOME=str(tmp_path), HYPVISION_OFFLINE="1", HF_HUB_OFFLINE="1")
    command = [sys.executable, "-W", "error::UserWarning", "-c", FRESH, *libraries]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)


def test_data_takes_registries_of_mmengine_and_nothing_else():
    for path in (Path(hypvision.__file__).parent / "data").rglob("*.py"):
        taken = set(re.findall(r"^\s*(?:from|import) (mmengine[\w.]*)", path.read_text(), re.M))
        assert taken <= {"mmengine.registry", "mmengine.dist"}, path


def test_constraints_are_names_and_versions_only():
    lines = (Path(__file__).parents[1] / "constraints.txt").read_text().splitlines()
    pins = [pin for line in lines if (pin := line.partition("#")[0].rstrip())]
    assert "torch==2.11.0" in pins
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+(==|<|>=[0-9.]+,<)[0-9.]+", pin) for pin in pins)
