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

    Fixtures are those of the whole test: a case undoes what it patches by
    ``monkeypatch.context()``.

    Args:
        names: of the arguments, separated by commas.
        cases: the values; tuples of them if there are several names.
    """
    arguments, rows = names.replace(" ", "").split(","), list(cases)
    assert rows

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        def test(**fixtures: Any) -> None:
            failed = {}
            for row in rows:
                torch.manual_seed(0)
                values = dict(zip(arguments, [row] if len(arguments) == 1 else row))
                try:
                    check(**values, **fixtures)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as problem:
                    failed[str(row)] = problem
            if failed:
                said = "\n".join(f"{row}: {problem}" for row, problem in failed.items())
                raise AssertionError(f"{len(failed)} of {len(rows)} cases fail:\n{said}") from next(
                    iter(failed.values())
                )

        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(test, attribute, getattr(check, attribute))
        signature = inspect.signature(check)
        left = [p for p in signature.parameters.values() if p.name not in arguments]
        test.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return test

    return decorate
