"""The attack itself: a broken promise is never taken for a kept one."""

import os
import signal
import time
from pathlib import Path

import pytest
from helpers.cases import each
from hostile import table
from hostile.table import Case, Skipped


def kept(folder: Path) -> str:
    (folder / "file").touch()
    assert [path.name for path in folder.iterdir()] == ["file"], "the folder was not empty"
    return "fine"


def breaks(folder: Path) -> str:
    assert folder is None, "the promise"
    return "never"


def fails(folder: Path) -> str:
    raise KeyError("a bug")


def waits(folder: Path) -> str:
    if os.fork() == 0:
        time.sleep(60)  # what a case has started ends with it
    time.sleep(60)
    return "never"


def eats(folder: Path) -> str:
    held = [bytearray(2**20) for _ in range(3000)]
    time.sleep(0.5)
    return str(len(held))


def is_killed(folder: Path) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def leaves(folder: Path) -> str:
    os._exit(0)


def skips(folder: Path) -> str:
    raise Skipped("no such machine")


def resident() -> int:
    return int(table.base())


@each(
    "run, verdict, said",
    [
        (kept, "kept", "fine"),
        (breaks, "broken", "the promise"),
        (fails, "broken", "a bug"),
        (waits, "broken", "not done after"),
        (eats, "broken", "MB"),
        (is_killed, "broken", "SIGKILL"),
        (leaves, "broken", "no answer"),
        (skips, "skipped", "no such machine"),
    ],
)
def test_what_becomes_of_a_case(run, verdict, said):
    seconds = 0.3 if run is waits else 60
    case = Case("group", run.__name__, run, seconds=seconds, megabytes=resident() + 200)
    begun = time.monotonic()
    [outcome] = table.run_all([case], jobs=1, quiet=True)
    assert outcome.verdict == verdict and said in outcome.said, outcome.said
    assert time.monotonic() - begun < 50
    text = table.render([outcome], {"group": "trying"})
    assert (
        f"| group | trying | {'0 (1 skipped)' if verdict == 'skipped' else 1} | "
        f"{int(verdict == 'broken')} |" in text
    )


def test_several_cases_keep_their_order_and_share_what_one_makes():
    def make(folder: Path) -> None:
        (folder / "once").touch()

    def work(folder: Path) -> str:
        place = table.shared("made", make)
        os.rename(place / "once", place / "twice") if (place / "once").exists() else None
        return "|".join(path.name for path in place.iterdir())

    cases = [Case("group", str(number), work) for number in range(4)]
    outcomes = table.run_all(cases, jobs=2, quiet=True)
    assert [outcome.case.name for outcome in outcomes] == ["0", "1", "2", "3"]
    assert {outcome.said for outcome in outcomes} == {"twice"}


def test_every_module_has_cases_and_every_case_a_name_of_its_own():
    found = table.modules("hostile")
    cases = table.all_cases(found)
    groups = {case.group for case in cases}
    assert {module.__name__.rpartition(".")[2] for module in found} >= {
        "servers",
        "metadata",
        "disk",
        "endurance",
        "scale",
    }
    assert all(table.tried(found)[group] for group in groups)
    assert all(case.name and case.seconds > 0 and "|" not in case.name for case in cases)


def test_two_cases_of_one_name_are_an_error():
    class Module:
        @staticmethod
        def cases() -> list[Case]:
            return [Case("group", "name", kept), Case("group", "name", kept)]

    with pytest.raises(AssertionError, match="name"):
        table.all_cases([Module])
