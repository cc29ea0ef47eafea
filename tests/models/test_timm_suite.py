"""timm's own model tests, unchanged, over the models registered here. They come with timm's source
distribution."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import timm

FAMILIES = "hcformer or hcnn or hecnn or lvit or hexformer"
CACHE = Path(__file__).parents[2] / ".cache" / f"timm-{timm.__version__}"
LAUNCHER = """
import sys
import pytest
import hypvision
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def suite():
    """timm's tests/test_models.py, downloaded once with pip."""
    path = CACHE / f"timm-{timm.__version__}" / "tests" / "test_models.py"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary"]
        command += ["timm", f"timm=={timm.__version__}", "-d", str(CACHE)]
        done = subprocess.run(command, capture_output=True, text=True)
        archives = list(CACHE.glob("timm-*.tar.gz"))
        if not archives:
            pytest.skip(
                f"timm's source distribution could not be downloaded: {done.stderr.strip()[-200:]}"
            )
        with tarfile.open(archives[0]) as archive:
            members = [member for member in archive.getmembers() if "/tests/" in member.name]
            archive.extractall(CACHE, members=members, filter="data")
    return path


def run(suite, expression):
    options = [
        "-q",
        "-k",
        expression,
        "-c",
        "/dev/null",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:warnings",
        str(suite),
    ]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *options], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    return done.stdout


# PyTorch has deprecated TorchScript, and the layers here have no form for it. timm knows networks
# of tokens by their names: others are to have a last map of two dimensions.
NO_SCRIPT = "({}) and not torchscript and not (hexformer and default_cfgs)"


@pytest.mark.slow
def test_all_models_pass_timms_tests(suite):
    # six for each of 15 architectures (of HexFormer's three, five), three for each of 2 sets of
    # trained weights
    assert "93 passed" in run(suite, NO_SCRIPT.format(FAMILIES))


# Names as timm names DeiT: it tests networks of that name as those without a map of two dimensions.
@pytest.mark.slow
def test_all_hi_mappers_pass_timms_tests(suite):
    names = (
        "himapper_swin or himapper_resnet50 or himapper_efficientnet_b4 or (deit_ and _himapper)"
    )
    assert "39 passed" in run(suite, NO_SCRIPT.format(names))
