"""What is counted as tokens, branches, guards and packed lines."""

import ast

from count_code import ROOT, complexity, measure, rooms, table

CODE = '''"""A module."""

import math  # a comment


def area(r, name=None):
    """Of a circle."""
    if r < 0:
        raise ValueError(name)
    a, b = 1, 2
    a, b = b, a
    first, *rest = name
    while (left := r - 1) > 0:
        r = left
    return [math.pi for x in rest if x and a or b]
'''


def test_a_file_is_counted():
    size = measure(CODE)
    assert (size.lines, size.code) == (15, 10)
    # by hand, statement by statement
    assert size.tokens == 2 + 10 + 5 + 5 + 7 + 7 + 6 + 11 + 3 + 16
    assert size.guards == 2
    assert (size.walrus, size.packed) == (1, 1)
    # one more than: if, while, the comprehension, and, or
    assert (size.functions, size.complex, size.most) == (1, 0, 6)
    assert size.wide == 0 and measure(f"x = '{'y' * 100}'\n").wide == 1


def test_inner_functions_count_for_themselves():
    function = ast.parse(
        "def f():\n    def g(x):\n        return 1 if x else 2\n    return g"
    ).body[0]
    assert complexity(function) == 1


def test_every_room_of_the_package_is_in_the_table():
    sizes = rooms(ROOT / "hypvision")
    assert {"geometry", "nn", "optim", "engine"} < set(sizes)
    lines = table(sizes).splitlines()
    assert len(lines) == len(sizes) + 3
    tokens = [int(line.split("|")[4].replace(",", "")) for line in lines[2:]]
    assert sum(tokens[:-1]) == tokens[-1] > 100_000
