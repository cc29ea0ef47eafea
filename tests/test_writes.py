"""Everything that the package writes gets a temporary name first, and is moved into place when it
is complete: a kill leaves the old file or the new one."""

import ast
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers.cases import each
from helpers.syntax import syntax_tree, tree_of_file

import hypvision
from hypvision.engine.config import Run

OWN = Path(hypvision.__file__).parent
# Calls that write a file under the name that they get, of Python, PyTorch, NumPy, Pillow, ...
WRITERS = {
    *("VideoWriter", "copy2", "copyfile", "copyfileobj", "copytree", "dump", "extract"),
    *("extractall", "hardlink_to", "imwrite", "link", "memmap", "move", "open_memmap", "rename"),
    *("renames", "save", "save_file", "save_model", "save_pretrained", "savefig", "savetxt"),
    *("savez", "savez_compressed", "symlink", "symlink_to", "to_csv", "to_json", "to_parquet"),
    *("tofile", "touch", "truncate", "write_bytes", "write_image", "write_text"),
}
# hypvision.io.files has functions of these names, which write as they should; called without a dot
OWN_NAMES = {"write_text"}
# Blocks whose files have temporary names.
BLOCKS = {"replacing", "replacing_folder", "TemporaryDirectory"}
# Functions that write outside of such a block, and why that is no harm.
ALLOWED = {
    "checkpoints/index.py: dump_index": "gives text",
    "data/archives.py: Files.copy": "gets a temporary name",
    "data/archives.py: _write_ids": "gets a temporary name",
    "data/archives.py: _write_stream": "gets a temporary name",
    "data/archives.py: _write_stuff": "gets a temporary name",
    "data/emoji_export.py: _write_instances": "into a temporary folder",
    "data/emoji_export.py: _write_masks": "into a temporary folder",
    "data/emoji_scenes.py: EmojiScenes._rows": "a row counts when its last field says so",
    "data/write_shards.py: _Captioned.__getitem__": "into memory",
    "data/write_shards.py: _encoded": "into memory",
    "data/write_shards.py: _write": "into a temporary folder",
    "engine/hooks/repeat.py: AccumulationHook.before_train.save_all": "calls what it wraps",
    "engine/config.py: Run.dump": "gives text",
    "engine/hooks/repeat.py: _set_aside": "into a folder that is new",
    "inference/sources.py: _stream": "into a temporary folder",
    "inference/sources.py: _with_suffix": "in a temporary folder",
    "io/images.py: write_image": "gets a temporary name",
    "scaling/sweep.py: _run": "calls a method of ours",
    "scaling/sweep.py: train": "calls a method of ours",
    "tasks/publishing.py: _staged": "in a temporary folder",
    "viz/disk_page.py: _data_url": "into memory",
    "viz/evaluation.py: to_image": "into memory",
    "viz/video.py: writing_video.append": "called inside of a block",
    "zoo/export.py: _write_onnx": "gets a temporary name",
    "zoo/export.py: _write_torchexport": "gets a temporary name",
    # what all others call
    "checkpoints/download.py: _transfer": "into the part of a download, which is verified first",
    "checkpoints/download.py: download": "moves what is complete and verified",
    "io/files.py: replacing": "moves what is complete",
    "io/files.py: replacing_folder": "moves what is complete",
}


def called(node):
    """The name of what a call calls, and what stands before its dot."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr, getattr(node.func.value, "id", "?")
    return getattr(node.func, "id", ""), ""


def opens_for_writing(call):
    given = [*call.args, *(key.value for key in call.keywords if key.arg == "mode")]
    modes = [one.value for one in given if isinstance(one, ast.Constant)]
    return any(
        isinstance(mode, str) and 0 < len(mode) < 4 and set(mode) <= set("wax+btr")
        and set(mode) & set("wax+") for mode in modes
    )  # fmt: skip


def writes(call):
    name, before = called(call)
    if name in ("replace", "open"):
        return before == "os" if name == "replace" else opens_for_writing(call)
    return name in WRITERS and not (name in OWN_NAMES and not before)


def is_block(node):
    inside = (call for item in node.items for call in ast.walk(item.context_expr))
    return any(isinstance(call, ast.Call) and called(call)[0] in BLOCKS for call in inside)


def outside(node, names=()):
    """Functions that write outside of a block of temporary names, by their dotted names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.With) and is_block(child):
            continue
        named = isinstance(child, (ast.FunctionDef, ast.ClassDef))
        inner = (*names, child.name) if named else names
        if isinstance(child, ast.Call) and writes(child):
            yield ".".join(inner)
        yield from outside(child, inner)


def test_functions_that_write_under_a_final_name_are_listed():
    found = set()
    for path in OWN.rglob("*.py"):
        where = path.relative_to(OWN).as_posix()
        found |= {f"{where}: {name}" for name in outside(tree_of_file(path))}
    assert found == set(ALLOWED)


@each(
    "line, wrong",
    [
        ("open(path, 'w')", True),
        ("path.open(mode='ab')", True),
        ("gzip.open(path, 'xt')", True),
        ("open(path, 'r+b')", True),
        ("open(path)", False),
        ("open(path, 'rb')", False),
        ("path.open('rb')", False),
        ("open('out.txt')", False),
        ("path.write_text(text)", True),
        ("write_text(path, text)", False),
        ("torch.save(weights, path)", True),
        ("with replacing(path) as temporary: torch.save(weights, temporary)", False),
        ("with lock, replacing(path) as temporary: torch.save(weights, temporary)", False),
        ("with torch.no_grad(): torch.save(weights, path)", True),
        ("os.replace(old, new)", True),
        ("text.replace('a', 'b')", False),
        ("np.savez(path, a=1)", True),
        ("json.dump(content, file)", True),
        ("json.dumps(content)", False),
        ("figure.savefig(path)", True),
    ],
)
def test_what_counts_as_writing(line, wrong):
    assert list(outside(syntax_tree(f"def f():\n    {line}"))) == ["f"] * wrong


@each("name", ["config.py", "config.yaml", "config.json"])
def test_the_record_of_a_training_is_replaced_when_it_is_complete(tmp_path, monkeypatch, name):
    file = tmp_path / name
    Run(dict(a=1)).dump(file)
    before = file.read_bytes()
    assert before
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.replace", Mock(side_effect=KeyboardInterrupt))
        Run(dict(a=2)).dump(file)
    assert file.read_bytes() == before
    Run(dict(a=2)).dump(file)
    assert file.read_bytes() != before and not list(tmp_path.glob(".*"))
