"""Closures: both forms of files, what lies between, circles."""

import gzip

import numpy as np
import pytest
from helpers.cases import each

from hypvision.data.closures import closure_of, read_closure
from hypvision.io.errors import HypvisionError

PAIRS = [
    ("dog", "mammal"),
    ("cat", "mammal"),
    ("dog", "canine"),
    ("canine", "mammal"),
    ("wolf", "canine"),
]


def write(path, rows):
    text = "\n".join(rows) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@each("name", ["pairs.csv", "pairs.csv.gz", "pairs.tsv"])
def test_both_forms(tmp_path, name):
    rows = (
        ["\t".join(pair) for pair in PAIRS]
        if "tsv" in name
        else ["id1,id2,weight", *(f"{a},{b},1" for a, b in PAIRS)]
    )
    closure = read_closure(write(tmp_path / name, [*rows, rows[-1], ""]))
    assert closure.names == ["canine", "cat", "dog", "mammal", "wolf"]
    assert [(closure.names[a], closure.names[b]) for a, b in closure.pairs] == sorted(PAIRS)


def test_ancestors_of_ancestors_and_parents_alone(tmp_path):
    closure = read_closure(
        write(tmp_path / "pairs.tsv", ["\t".join(pair) for pair in PAIRS]), transitive=True
    )
    found = {(closure.names[a], closure.names[b]) for a, b in closure.pairs}
    assert found == {*PAIRS, ("wolf", "mammal")}
    parents = {(closure.names[a], closure.names[b]) for a, b in closure.parents()}
    assert parents == {
        ("canine", "mammal"),
        ("cat", "mammal"),
        ("dog", "canine"),
        ("wolf", "canine"),
    }
    # as a search of all ways would find them
    count = len(closure.names)
    steps = np.zeros((count, count), dtype=int)
    steps[tuple(closure.parents().T)] = 1
    reached = sum(np.linalg.matrix_power(steps, n) for n in range(1, count))
    assert {tuple(pair) for pair in np.argwhere(reached)} == {tuple(pair) for pair in closure.pairs}


@each(
    "rows, message",
    [
        (
            ["a\tb", "b\tc", "c\ta", "x\ty"],
            "in a circle: [abc] > [abc] > [abc] > [abc]. A hierarchy",
        ),
        (["id1,id2", "a,a"], "has no pair"),
        (["id1,id2"], "has no pair"),
        (["child,parent", "a,b"], "begins with 'child,parent'"),
        (["a\tb", "c"], "Pair 2 .* lacks a name"),
        (["id1,id2,weight", "a,,1"], "Pair 1 .* lacks a name"),
        (["id1,id2", '"a,b'], "cannot be read|lacks a name"),
        ([""], "begins with ''"),
    ],
)
def test_other_files_are_refused(tmp_path, rows, message):
    with pytest.raises(HypvisionError, match=message):
        read_closure(write(tmp_path / "pairs", rows))


def test_no_text(tmp_path):
    (tmp_path / "pairs").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HypvisionError, match="UTF-8"):
        read_closure(tmp_path / "pairs")
    with pytest.raises(HypvisionError, match="missing"):
        read_closure(tmp_path / "missing")


def test_chains_make_a_closure():
    closure = closure_of([["animal", "mammal", "dog"], ["animal", "mammal", "cat"], ["mammal"], []])
    found = {(closure.names[a], closure.names[b]) for a, b in closure.pairs}
    assert found == {
        ("mammal", "animal"),
        *((name, above) for name in ("cat", "dog") for above in ("animal", "mammal")),
    }
    with pytest.raises(HypvisionError, match="no name below another"):
        closure_of([["animal"], ["animal", "animal"]])
    with pytest.raises(HypvisionError, match="The hierarchy makes names their own ancestors"):
        closure_of([["a", "b"], ["b", "a"]])


def test_files_and_hierarchies_are_limited(tmp_path):
    rows = [
        f"{number}\t{number + 1}" for number in range(200)
    ]  # 200 pairs, with ancestors of ancestors 20,100
    packed = write(tmp_path / "pairs.gz", rows)
    assert len(read_closure(packed, limit=2000, most=200).pairs) == 200
    assert len(read_closure(packed, True, most=20_100).pairs) == 20_100
    with pytest.raises(HypvisionError, match="pairs.gz.* more than 1,000 bytes"):
        read_closure(packed, limit=1000)
    with pytest.raises(HypvisionError, match="pairs.gz.* more than 20,099 pairs"):
        read_closure(packed, True, most=20_099)
    with pytest.raises(HypvisionError, match="more than 19,899 pairs"):
        closure_of([range(200)], 19_899)
