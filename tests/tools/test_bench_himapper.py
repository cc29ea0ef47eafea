"""The benchmark of Hi-Mapper writes what it says; the times themselves are not tested."""

import argparse

import pytest
from bench import himapper as bench

from hypvision.io.errors import HypvisionError


@pytest.fixture
def arguments(tmp_path):
    parser = argparse.ArgumentParser()
    parser.set_defaults(benchmark="himapper")
    bench.add_arguments(parser)
    options = (
        "--models deit_tiny_patch16_224 --batch 1 --size 32 --repeats 1 --write "
        f"{tmp_path / 'benchmarks.md'}"
    )
    return parser.parse_args(options.split())


def test_the_table_is_written_into_its_section(arguments):
    arguments.write.write_text("# Benchmarks\n\n## Another\nkept\n")
    bench.run(arguments)
    bench.run(arguments)
    page = arguments.write.read_text()
    assert "kept" in page and page.count("## Hi-Mapper") == 1
    (row,) = [line for line in page.splitlines() if line.startswith("| deit_tiny")]
    # position embeddings of 4 + 1 patches instead of 196 + 1
    assert f"| {5_717_416 - 192 * 192:,} | {7_225_257 - 192 * 192:,} |" in row and "<= 8 %" in row
    assert len({len(line.split("|")) for line in page.splitlines() if line.startswith("|")}) == 1


def test_mistakes_are_explained(arguments):
    for name, value, message in (("batch", 0, "at least 1"), ("size", 40, "multiple of 32")):
        with pytest.raises(
            HypvisionError, match=f"--{name} must be .*{message}|--{name} must be a {message}"
        ):
            bench.run(argparse.Namespace(**{**vars(arguments), name: value}))
