"""Compiled layers have no more loops than their budgets."""

import pytest
from bench import compiled


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in compiled.CASES.items() if case.most])
def test_layers_keep_to_their_budgets(name):
    case = compiled.CASES[name]
    found = compiled.made(case)
    assert 1 <= found.functions < found.loops <= case.most
