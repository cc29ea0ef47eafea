"""Each folder of configs says how to start it on several GPUs and with SLURM, and what that costs,
published or estimated."""

import re
from pathlib import Path

from helpers.cases import each

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


def costs(folder):
    """The section on several GPUs of a folder: its commands, and the text after them with the rows
    of its table."""
    section = (folder / "README.md").read_text().partition("\n## Several GPUs\n")[2]
    section = section.partition("\n## ")[0]
    commands, _, rest = section.partition("```sh\n")[2].partition("```")
    return (
        commands,
        rest,
        re.findall(r"^\| (?!config |---)(.+) \| (.+) \| (.+) \| (.+) \|$", rest, re.M),
    )


def configs_of(folder):
    """The configs of a folder, files and rows of tables."""
    return {path for path in (*folder.glob("*.py"), *recipes()) if path.parent == folder}


def named(path, cell):
    """Whether a cell of the table names a config."""
    patterns = re.findall(r"`([\w*{},.-]+)`", cell)
    names = [name for pattern in patterns for name in alternatives(pattern)]
    return any(path.match(name.removesuffix(".py") + ".py") or path.match(name) for name in names)


@each("folder", FOLDERS)
def test_every_training_on_several_gpus_has_its_cost(folder):
    """Those whose names say how many processes the batch is for."""
    rows = costs(folder)[2]
    large = [path for path in configs_of(folder) if re.search(r"_\d+xb\d+", path.stem)]
    missing = [path.stem for path in large if not any(named(path, row[0]) for row in rows)]
    assert sorted(missing) == []


@each("folder", FOLDERS)
def test_a_folder_says_how_to_start_and_what_it_costs(folder):
    known = configs_of(folder)
    commands, rest, rows = costs(folder)
    several = ("--launcher pytorch", "--jobs")
    cluster = ("--launcher slurm", "--submit slurm")
    assert any(word in commands for word in several)
    assert any(word in commands for word in cluster)
    for name in re.findall(r"configs/\S+\.py", commands):
        assert CONFIGS.parent / name in known and f"configs/{folder.name}/" in name
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
