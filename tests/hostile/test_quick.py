"""Of each promise that the attack has shown to be broken once, the case; all of them are in `make
attack`."""

from dataclasses import replace

import pytest
from helpers.cases import each

pytest.importorskip("open_clip")
pytest.importorskip("mmengine")
pytest.importorskip("transformers")
from hostile import data, metadata, servers, table

import hypvision.data.language
import hypvision.helm.huggingface  # noqa: F401 - once, so that no case waits for it

ONCE_BROKEN = {
    servers: [
        "address: a part that was not asked for",
        "address: from https to http",
        "hub: a body without an end",
        "hub's metadata: an ETag that is a path",
        "mirror: an error page without an end",
        "mirror: the next one is asked",
        "picture: cut, then the next version's part",
        "shard: a redirect to file://",
        "shard: bytes that drip",
        "shard: cut, then bytes of another place",
        "shard: cut, then the next version",
        "shard: cut, then the next version's part",
        "shard: what is no HTTP",
        "address: 503",
    ],
    data: [
        "a pipe called .xml",
        "a shape of a list",
        "a zip with a password",
        "counts that lie",
        "key points of 5,000 digits",
    ],
    metadata: [
        "CLIP: a merges file that is code",
        "CLIP: a text tower outside",
        "CLIP: a tokenizer in the folder with auto_map",
        "CLIP: weights of timm outside",
        "tokenizer: a dtype that is code",
    ],
}


@each("module", ONCE_BROKEN)
def test_what_was_broken_once_is_kept(module):
    cases = {case.name: case for case in module.cases()}
    own = int(
        table.base()
    )  # a process that has run other tests begins with more than that of the command
    chosen = [
        replace(cases[name], megabytes=cases[name].megabytes + own) for name in ONCE_BROKEN[module]
    ]
    outcomes = table.run_all(chosen, jobs=2, quiet=True)
    broken = [table.line(outcome) for outcome in outcomes if outcome.verdict == "broken"]
    assert not broken, "\n".join(broken)
