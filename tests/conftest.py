"""Shared by all tests, which import the packages `references` and `helpers` beside this file (see
`pythonpath`)."""

import gc
import os
import re
import subprocess
import sys
import tempfile
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

# One thread, here and in subprocesses: the models are tiny, and OpenMP waits badly for cores that
# others use.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from PIL import Image

os.fsync = lambda file: None  # a disk takes longer to write a small file than the rest of its test
# Imports leave millions of objects and no garbage: to look for it is a sixth of their time. See the
# end of collection.
gc.disable()


def pytest_configure(config):
    """Import yapf once before the workers start: see hypvision/engine/mmengine_import.py."""
    if not hasattr(config, "workerinput"):
        subprocess.run(
            [sys.executable, "-c", "import yapf"], stderr=subprocess.DEVNULL, check=False
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items, config):
    """Of a test with the marker ``quick`` all cases are slow but those that it names, each of which
    must be a case."""
    unknown = {}
    for item in items:
        quick = item.get_closest_marker("quick")
        if quick is None:
            continue
        unknown.setdefault(item.nodeid.partition("[")[0], set(quick.args)).discard(item.callspec.id)
        if item.callspec.id not in quick.args:
            item.add_marker("slow")
    wrong = {name: sorted(cases) for name, cases in unknown.items() if cases}
    if wrong and not any("::" in name for name in config.args):  # else not all cases are collected
        raise pytest.UsageError(f"The marker quick names what is no case: {wrong}")


def pytest_collection_finish():
    """What is imported by now stays: the garbage collector need not look at it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


DRAWN = []  # a test of drawings, while it runs
PARTS = (
    "config.config",
    "dataset.base_dataset",
    "runner.runner",
    "utils.version_utils",
    "visualization.visualizer",
)


def lay_out(text, **_):
    """Instead of yapf, which takes longer for the config of a run than a small training:
    ``NAME = VALUE`` in lines."""
    return re.sub(r"^(\w+)=", r"\1 = ", text, flags=re.M), True


def read_once(kind):
    """Tokenizers of open_clip share their tables, which no one changes: to read them takes longer
    than a small CLIP."""
    read, kept = kind.__init__, {}

    @wraps(read)
    def __init__(self, *arguments, **options):
        key = repr((arguments, options))
        if key not in kept:
            read(first := kind.__new__(kind), *arguments, **options)
            kept[key] = vars(first)
        vars(self).update(kept[key])

    kind.__init__ = __init__


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """mmengine without what each of its runs does, and no test is about: a third of a short
    training."""
    DRAWN[:] = [item] if "viz" in item.path.parts or item.get_closest_marker("drawn") else []
    tokenizer = sys.modules.get("open_clip.tokenizer")
    if tokenizer and not hasattr(tokenizer.SimpleTokenizer.__init__, "__wrapped__"):
        read_once(tokenizer.SimpleTokenizer)
    if "hypvision.engine.checkpoint" in sys.modules:
        modules = SimpleNamespace(
            **{name.rpartition(".")[2]: sys.modules[f"mmengine.{name}"] for name in PARTS}
        )
        modules.config.FormatCode = lay_out
        modules.base_dataset.gc = SimpleNamespace(
            collect=lambda: 0
        )  # it looks through all objects for each data set
        modules.version_utils._minimal_ext_cmd = lambda command: (
            b"0" * 40
        )  # Git, as a process, for each checkpoint
        modules.runner.collect_env = dict  # the compiler, as a process
        canvas = (None, SimpleNamespace(get_dpi=lambda: 100), None)  # it draws nothing of ours
        modules.visualizer.Visualizer._initialize_fig = lambda self, options: canvas


@pytest.fixture(scope="session", autouse=True)
def _temporary_files_in_memory(tmp_path_factory):
    """But for those of pytest: mmengine copies each config into folders of their own, and a disk
    takes longer for one than the rest of the reading."""
    tmp_path_factory.getbasetemp()
    if os.access("/dev/shm", os.W_OK):
        tempfile.tempdir = "/dev/shm"
    yield
    tempfile.tempdir = None


Image.preinit()
save_png = Image.SAVE["PNG"]


def fast_png(image, *arguments):
    """PNG files are compressed fast, and not well, unless a level is asked for: four times as
    fast."""
    image.encoderinfo.setdefault("compress_level", 1)
    save_png(image, *arguments)


Image.register_save("PNG", fast_png)


def blank(figure, target, *, format=None, dpi=100, **_):
    """Instead of ``Figure.savefig``: a white picture of its size, or the first bytes of another
    format."""
    if (format or Path(target).suffix[1:]) == "png":
        size = tuple(int(side * dpi) for side in figure.get_size_inches())
        Image.new("RGB", size, "white").save(target, "PNG", compress_level=1)
    else:
        Path(target).write_bytes(b"%PDF")


def unless_drawn(function, instead):
    """In tests of drawings the function, in all others ``instead``."""
    return wraps(function)(
        lambda *arguments, **options: (function if DRAWN else instead)(*arguments, **options)
    )


@pytest.fixture(scope="session", autouse=True)
def _blank_figures():
    """Figures are blank but for the tests of drawings: to lay out their text takes a third of a
    short training."""
    if find_spec("matplotlib"):
        from matplotlib.figure import Figure

        from hypvision.viz import sheet

        Figure.savefig = unless_drawn(Figure.savefig, blank)
        Figure.tight_layout = unless_drawn(Figure.tight_layout, lambda figure, **_: None)
        sheet.show_names = unless_drawn(sheet.show_names, lambda figure: None)


@pytest.fixture(scope="session", autouse=True)
def _cheap_seeds():
    """Without a GPU torch.manual_seed writes down its caller's stack, twice, for when there is one:
    milliseconds."""
    import torch

    if not torch.cuda.is_available():
        torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = torch.mtia.manual_seed_all = (
            lambda seed: None
        )


@pytest.fixture(autouse=True)
def _seed():
    # not above, or the process that only hands out tests would import it before the others begin
    import torch

    torch.manual_seed(0)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """mmengine's scope and logger are global: what one test leaves there must not decide what the
    next finds."""
    if "mmengine.registry" in sys.modules:
        sys.modules["mmengine.registry"].DefaultScope._instance_dict.clear()
    if (
        "mmengine.logging" in sys.modules
    ):  # its log file may be closed by then, which mmengine does not expect
        sys.modules["mmengine.logging"].MMLogger._instance_dict.clear()
