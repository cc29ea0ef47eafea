"""What holds for every command: a full disk and Ctrl-C end it in a sentence, keep what is finished,
and do no more."""

import importlib.util
import re
import shutil

import pytest

pytest.importorskip("mmengine")
from helpers import commands
from helpers.processes import Forks, forked

from hypvision.cli import COMMANDS

QUICK = (
    ["predict", "photos"],
    ["zoo", "card"],
    ["data", "make"],
    ["check", "good.py"],
)  # the others are slow tests
LINES = [
    pytest.param(
        words,
        id="-".join(words[: 3 if words[0] == "explain" else 2]),
        marks=[] if words[:2] in QUICK else [pytest.mark.slow],
    )
    for words in commands.lines()
    if words[:2] != ["lm", "eval"] or importlib.util.find_spec("lm_eval")
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return commands.write_inputs(tmp_path_factory.mktemp("commands") / "inputs")


@pytest.fixture(scope="module")
def forks():
    forks = Forks("helpers.commands")
    yield forks
    forks.close()


@pytest.fixture
def call(request, words):
    """Runs a line in a fork: of this process, or for those that train of one that has not
    trained."""
    if words[:2] in QUICK:
        return lambda *arguments, **options: forked(lambda: commands.call(*arguments, **options))
    forks = request.getfixturevalue("forks")
    return lambda words, place, longest=None, after=None: forks(
        "call", words, str(place), longest, after
    )


@pytest.fixture
def place(inputs, tmp_path):
    return shutil.copytree(inputs, tmp_path / "place")


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def results(folder, inputs):
    """The files that are no inputs, no logs of mmengine, which are written as they grow, and no
    lock files, which are always empty."""
    found = {
        name: content for name, content in files(folder).items() if not (inputs / name).is_file()
    }
    none = re.compile(r"\d{8}_\d{6}|\.lock$")
    return {name: content for name, content in found.items() if not none.search(name)}


def test_the_lines_are_of_every_command():
    # app serves until Ctrl-C: tests/app; tests/tasks train a cell that can be explained, and
    # publish a classifier into a zoo of its own
    assert set(commands.LINES) == set(COMMANDS) - {"app", "fewshot explain", "zoo familiar"}


@pytest.mark.quick("data-make", "check-good.py")
@pytest.mark.parametrize("words", LINES)
def test_a_full_disk(words, place, inputs, call):
    """At the first byte and later, also over earlier results. What is there is whole, and is taken
    up."""

    def fails_or_is_done(longest):
        done = call(words, place, longest=longest)
        assert done.returncode in (0, 2), done.output
        assert done.output.count("hypvision: error:") == done.returncode / 2, done.output
        assert "Traceback" not in done.output
        if done.returncode == 2:
            said = "not written|Cannot write|file system refused|No usable temporary|is not empty"
            assert re.search(said, done.output), done.output
        assert {
            name: content for name, content in files(place).items() if (inputs / name).is_file()
        } == files(inputs)
        assert not [name for name in files(place) if ".hyp-" in name]
        return done.returncode

    statuses = []
    for longest in (0, 2000, 100_000):
        statuses.append(fails_or_is_done(longest))
        cut = [name for name, content in results(place, inputs).items() if len(content) == longest]
        assert not cut, cut
    if statuses[-1] == 2:
        assert call(words, place).returncode == 0
    before = results(place, inputs)
    assert bool(before) == (2 in statuses)
    fails_or_is_done(0)
    assert {
        name: content for name, content in results(place, inputs).items() if name in before
    } == before


@pytest.mark.quick("data-make", "zoo-card")
@pytest.mark.parametrize("words", LINES)
def test_ctrl_c(words, place, inputs, call):
    """Again and again, in ever later calls; the line then does its work, and Ctrl-C leaves what it
    has done."""
    shutil.copytree(inputs, place.with_name("other"))
    done = call(words, place.with_name("other"), after=0)
    assert done.returncode == 0, done.output
    count = int(done.output.split()[-1])

    def is_interrupted(after):
        done = call(words, place, after=after)
        said, _, calls = done.output.rstrip().rpartition("\n")
        reached = int(calls) >= after  # a line that is taken up has less to do
        assert done.returncode == 130 if reached else done.returncode in (0, 2), done.output
        assert said.rstrip().endswith("\nInterrupted.") == reached and "Traceback" not in said, said
        assert not [name for name in files(place) if ".hyp-" in name]

    for share in (0.05, 0.35, 0.65, 0.95):
        is_interrupted(int(share * count) + 1)
    done = call(words, place)
    assert done.returncode == 0 or "is not empty" in done.output, done.output
    before = results(place, inputs)
    is_interrupted(count // 2 + 1)
    after = results(place, inputs)
    assert all(after.get(name) for name, content in before.items() if content), (
        before.keys() - after.keys()
    )
