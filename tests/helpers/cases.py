"""One test of many cases: it takes less to collect and to begin, and its failure names every case
that fails."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize``, but one test goes through all cases, each with the random
    numbers of a new test.

    Each case has a ``tmp_path`` and a ``monkeypatch`` of its own, and reads with ``capsys`` and
    ``caplog`` what was written since it began. Other fixtures are those of the whole test. A case
    that is skipped is no failure; the test is skipped if all are.

    Args:
        names: of the arguments, separated by commas.
        cases: the values; tuples of them if there are several names.
    """
    arguments, rows = names.replace(" ", "").split(","), list(cases)
    assert rows

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        def test(**fixtures: Any) -> None:
            failed = {}
            skipped = []
            for number, row in enumerate(rows):
                torch.manual_seed(0)
                values = dict(zip(arguments, [row] if len(arguments) == 1 else row))
                try:
                    with pytest.MonkeyPatch.context() as patch:
                        check(**values, **of_one_case(fixtures, number, patch))
                except pytest.skip.Exception as reason:
                    skipped.append(str(reason))
                except (Exception, pytest.fail.Exception) as problem:
                    failed[str(row)] = problem
            if failed:
                said = "\n".join(f"{row}: {problem}" for row, problem in failed.items())
                raise AssertionError(f"{len(failed)} of {len(rows)} cases fail:\n{said}") from next(
                    iter(failed.values())
                )
            if len(skipped) == len(rows):
                pytest.skip(skipped[0])

        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(test, attribute, getattr(check, attribute))
        test.pytestmark = list(getattr(check, "pytestmark", ()))  # type: ignore[attr-defined]
        signature = inspect.signature(check)
        left = [p for p in signature.parameters.values() if p.name not in arguments]
        test.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return test

    return decorate


def of_one_case(fixtures: dict[str, Any], number: int, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The fixtures of a test as one of its cases finds them."""
    found = dict(fixtures)
    if "tmp_path" in found:
        found["tmp_path"] = found["tmp_path"] / str(number)
        found["tmp_path"].mkdir()
    if "monkeypatch" in found:
        found["monkeypatch"] = patch
    if "capsys" in found:
        found["capsys"].readouterr()
    if "caplog" in found:
        found["caplog"].clear()
    return found
