"""Each folder of configs says how to start it on several GPUs and with SLURM, and what that costs,
published or estimated."""

import re
from pathlib import Path

import pytest

from hypvision.io.shipped import recipes

CONFIGS = Path(__file__).parents[1] / "configs"
# methods and parts of a command, of which a row tells the cost
NOT_CONFIGS = ("tip-adapter", "clip-adapter", "linear-probe", "fig4", "--tiny")
FOLDERS = sorted(path.parent for path in CONFIGS.glob("*/README.md"))


def test_all_folders_are_walked_over():
    with_configs = {path.parent for path in CONFIGS.glob("*/*.py")} - {CONFIGS / "_base_"}
    assert with_configs <= set(FOLDERS) and len(FOLDERS) > 10


def alternatives(pattern):
    """``a-{b,c}`` as ``a-b`` and ``a-c``."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    start, end = pattern[: found.start()], pattern[found.end() :]
    return [name for part in found[1].split(",") for name in alternatives(start + part + end)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_says_how_to_start_and_what_it_costs(folder):
    known = {path for path in (*folder.glob("*.py"), *recipes()) if path.parent == folder}
    section = (folder / "README.md").read_text().partition("\n## Several GPUs\n")[2]
    section = section.partition("\n## ")[0]
    commands, _, rest = section.partition("```sh\n")[2].partition("```")
    several = ("--launcher pytorch", "--jobs")
    cluster = ("--launcher slurm", "--submit slurm")
    assert any(word in commands for word in several)
    assert any(word in commands for word in cluster)
    for name in re.findall(r"configs/\S+\.py", commands):
        assert CONFIGS.parent / name in known and f"configs/{folder.name}/" in name
    rows = re.findall(r"^\| (?!config |---)(.+) \| (.+) \| (.+) \| (.+) \|$", rest, re.M)
    assert "| GPU-hours | memory a GPU |" in rest and rows
    for configs, hours, memory, origin in rows:
        assert re.search(r"published|estimated|measured", origin), configs
        assert re.search(r"\d|none|those above", hours), configs
        assert re.search(r"GiB|those above", memory), configs
        for pattern in re.findall(r"`([\w*{},.-]+)`", configs):
            for name in alternatives(pattern):
                wanted = name.removesuffix(".py") + ".py"
                matching = any(path.match(wanted) or path.match(name) for path in known)
                assert matching or pattern in NOT_CONFIGS, name
