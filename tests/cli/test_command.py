"""What all commands share: help without PyTorch, "did you mean", outputs that are never written."""

import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

from helpers.cases import each
from PIL import Image

from hypvision.cli import COMMANDS, main, parser_of

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "PIL",
    "mmengine",
    "safetensors",
    "yaml",
    "tqdm",
    "matplotlib",
)

BLOCKED = f"""
import contextlib, io, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ImportError(f"{{name}} is imported")

sys.meta_path.insert(0, Block())
from hypvision_cli import main

def call(*words):
    out = io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    return status, out.getvalue()
"""


def run(code):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, env=env
    )


def test_help_version_and_mistakes_need_no_pytorch():
    done = run(f"""
for name in {list(COMMANDS)}:
    status, text = call(*name.split(), "--help")
    assert status == 0 and text.startswith(f"usage: hypvision {{name}}"), (name, status, text)
    status, text = call(*name.split(), "--hlep")
    assert status == 2 and "Did you mean --help?" in text, (name, status, text)
status, text = call("--help")
assert status == 0 and all(name in text for name in {list(COMMANDS)})
version = __import__("hypvision.version").version.__version__
assert call("--version") == (0, "hypvision " + version + "\\n")
status, text = call("configs", "camvid")
assert status == 0 and "semantic-fpn_hcformer-nano_600i_camvid" in text, text
status, text = call("tarin", "x.py")
assert status == 2 and "no command 'tarin'. Did you mean train?" in text, text
status, text = call("zoo")
assert status == 0 and "zoo get" in text and "train" not in text.replace("trained", ""), text
status, text = call("zoo", "lisst")
assert status == 2 and "no command 'lisst'. Did you mean list?" in text, text
status, text = call(*["segment", "a.png"])
assert status == 2 and "no command 'segment'. Did you mean clip segment?" in text, text
status, text = call()
assert status == 2, text
""")
    assert done.returncode == 0, done.stderr


@each("shell", ["bash", "zsh", "fish"])
def test_completions_need_no_pytorch(shell):
    done = run(
        f"status, text = call('--completion', {shell!r})\nassert status in (0, None), "
        "text\nprint(text)"
    )
    assert done.returncode == 0, done.stderr
    assert all(
        word in done.stdout for word in ("make-chains", "prepare", "--cfg-options", "--gallery")
    )
    if shell == "bash":  # the script is one: bash reads it, and completes a word of a group
        asked = (
            "COMP_WORDS=(hypvision zoo ve); COMP_CWORD=2; _shtab_hypvision; echo ${COMPREPLY[@]}"
        )
        found = subprocess.run(["bash", "-c", done.stdout + asked], capture_output=True, text=True)
        assert found.stdout.strip() == "verify", found.stderr


def test_a_user_without_name_and_home(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HYPVISION_HOME", str(tmp_path))
    assert main(["zoo", "list", "--json"]) == main(["zoo", "clean", "--list"]) == 0
    monkeypatch.delenv("HYPVISION_HOME")
    assert main(["zoo", "clean", "--list"]) == 2
    assert "This user has no home directory. Set HYPVISION_HOME" in capsys.readouterr().err


def test_the_tables_in_help_are_those_of_the_rooms():
    import hypvision.checkpoints.records
    import hypvision.checkpoints.storage
    import hypvision.cli.clip
    import hypvision.cli.data
    import hypvision.cli.export
    import hypvision.cli.predict
    import hypvision.cli.zoo
    import hypvision.data.classes
    import hypvision.data.emoji_export
    import hypvision.data.prepare
    import hypvision.data.zero_shot
    import hypvision.inference.results
    import hypvision.zoo.convert
    import hypvision.zoo.export

    cli = hypvision.cli
    assert set(cli.zoo.FAMILIES) == set(hypvision.zoo.convert.CONVERTERS)
    assert set(hypvision.data.prepare.NAMES) == set(cli.data.PREPARED)
    assert cli.data.LAYOUTS == hypvision.data.emoji_export.EMOJI_LAYOUTS
    assert cli.export.FORMATS == hypvision.zoo.export.FORMATS
    assert cli.export.PARTS == hypvision.zoo.export.PARTS
    assert cli.zoo.STORAGES == hypvision.checkpoints.storage.STORAGES
    assert cli.predict.WRITES == hypvision.inference.results.KINDS
    assert tuple(hypvision.data.zero_shot.PUBLISHED) == cli.clip.SUITES
    assert hypvision.data.classes.CLASS_LISTS == cli.clip.CLASS_LISTS
    assert cli.zoo.TASKS == hypvision.checkpoints.records.TASKS


@each("words, said", [
        (["metric", "search", "a.png", "--galery", "d"], "There is no option '--galery'. Did you "
                                                         "mean --gallery"),
        (["export", "x", "--format", "onxn"], "no --format 'onxn'. Did you mean onnx?"),
        (["export", "x", "--format", "torchscript"], "There are: onnx, torchexport"),
        (["metric", "embed", "a.png", "--batch", "many"], "--batch: takes a whole number, got "
                                                          "'many'"),
        (["metric", "embed", "a.png", "--batch", "9" * 5000], "--batch"),
        (["clip", "segment", "a.png", "--classes", "a", "--device", "gpu"], "takes cpu, cuda or "
                                                                            "cuda:N"),
        (["explain", "a.png", "--model", "m", "--mean", "nan"], "takes a finite number"),
        (["train"], "required: CONFIG"),
        (["data", "prepare", "voc2O", "a", "b"], "Did you mean voc20"),
    ])  # fmt: skip
def test_mistakes_say_what_was_meant(capsys, words, said):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error and error.count("hypvision: error:") == 1


HIMAPPER = (
    "--model himapper --size 32 --model-args backbone=vit_tiny_patch16_224 patch_size=8 "
    "embed_dim=48 depth=1 num_heads=2 img_size=32"
)
#: Lines with an option that their model or data leave without effect, and what their error says;
#: tests/cli/test_options.py has those that the parser refuses.
WITHOUT_EFFECT = [
    *((f"{command} --every 2", "is for the frames of videos, and no video is given")
      for command in ("predict in.png --model hcformer_nano",
                      "explain in.png --model hcformer_nano",
                      "clip segment in.png --classes a",
                      "metric embed in.png --model hcformer_nano",
                      "metric embed --texts a --clip emoji-t8.scenes",
                      "metric search in.png --gallery . --model hcformer_nano")),
    *((f"explain in.png {given} {HIMAPPER}",
       "is for the clusters of an HCFormer, but 'himapper' has none")
      for given in ("--stage 0", "--block 0", "--head 0", "--level both", "--regions 0")),
]  # fmt: skip


def test_options_without_effect_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32), "red").save("in.png")
    before = identities(tmp_path)
    for line, said in WITHOUT_EFFECT:
        assert main(line.split()) == 2, line
        error = capsys.readouterr().err
        assert (
            said in error and error.count("hypvision: error:") == 1 and "Traceback" not in error
        ), (line, error)
    assert identities(tmp_path) == before


# Every argument that is an output, of every command, with what else the command needs. The inputs
# exist.
NEEDED = {
    "train": ["in.py"],
    "test": ["in.py", "in.pth"],
    "plot": ["in.json"],
    "predict": ["in.png", "--model", "m"],
    "explain": ["in.png", "--model", "m"],
    "clip evaluate": ["--clip", "m", "--suite", "uncha"],
    "clip segment": ["in.png", "--classes", "a"],
    "fewshot base2new": [],
    "fewshot shots": [],
    "fewshot cross": [],
    "fewshot dg": [],
    "fewshot table": ["folder"],
    "fewshot explain": ["folder"],
    "clip radius": ["--images", "in.png"],
    "clip chains": ["in.csv"],
    "clip make-chains": ["emoji"],
    "metric embed": ["in.png", "--model", "m"],
    "metric search": ["in.png", "--gallery", "folder", "--model", "m"],
    "metric hierarchy": ["--config", "in.py", "--weights", "in.pth"],
    "disk": ["a > b"],
    "metric closure": ["in.csv"],
    "data prepare": ["voc20", "folder"],
    "data make": ["--emoji", "folder", "--photos", "folder"],
    "data convert": ["folder"],
    "data shard": ["folder"],
    "check": ["in.py"],
    "browse": ["in.py"],
    "summary": ["in.py"],
    "zoo list": [],
    "zoo get": ["zoo:none"],
    "zoo card": ["none"],
    "zoo push": ["none"],
    "export": ["in.pth", "--format", "onnx", "--model", "m"],
    "zoo convert": ["--from", "hcformer", "in.pth"],
    "lm save": ["in.py", "in.pth"],
    "zoo familiar": ["a.b"],
    "zoo publish": ["in.py", "in.pth", "--name", "a.b"],
    "scaling run": [],
    "scaling heads": ["paper"],
    "scaling tokens": ["in.npy"],
    "scaling fit": ["in.csv"],
}
OUTPUTS = [
    (name, action.option_strings[:1], what)
    for name in COMMANDS
    for parser in [parser_of(name)]
    for action in parser._actions
    for what in [parser._outputs.get(action.dest)]
    if what
]


def test_every_command_that_writes_declares_it():
    assert {name for name, _, _ in OUTPUTS} == set(NEEDED)


def identities(folder):
    """Which files a folder has, and when each was written."""
    return {
        path.name: (path.lstat().st_ino, path.lstat().st_mode, path.lstat().st_mtime_ns)
        for path in folder.iterdir()
    }


@each("name, option, what", OUTPUTS)
def test_outputs_are_new_or_regular(tmp_path, monkeypatch, capsys, name, option, what):
    monkeypatch.chdir(tmp_path)
    for file in ("in.py", "in.pth", "in.png", "in.csv", "in.json", "target"):
        Path(file).write_text("x")
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("link").symlink_to("target")
    Path("dangling").symlink_to("nowhere")
    wrong = ["pipe", "dangling", "target/deep", ""]
    wrong += (
        []
        if what == "folder"
        else ["link", *(word for word in NEEDED[name] if word.startswith("in."))]
    )
    wrong += ["target"] if what == "folder" else ["folder"] if what == "file" else []
    before = identities(tmp_path)
    for place in wrong:
        assert main([*name.split(), *NEEDED[name], *option, place]) == 2, place
        error = capsys.readouterr().err
        assert any(
            word in error for word in ("is a", "is no", "is empty", "was not written", "an input")
        ), (place, error)
    assert identities(tmp_path) == before
    assert stat.S_ISFIFO(os.lstat("pipe").st_mode) and Path("target").read_text() == "x"


def test_inputs_in_folders_are_kept(tmp_path, monkeypatch, capsys):
    """`clip segment` would write a_labels.png, which is one of the images."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "a_overlay.png"):
        Image.new("RGB", (96, 96), "red").save(name)
    before = Path("a_overlay.png").read_bytes()
    assert (
        main(
            [
                "clip",
                "segment",
                "*.png",
                "--classes",
                "fruit, bird",
                "--clip",
                "emoji-t8",
                "--out",
                ".",
            ]
        )
        == 2
    )
    assert "a_overlay.png' would be overwritten, but it is an input" in capsys.readouterr().err
    assert Path("a_overlay.png").read_bytes() == before


def test_ctrl_c_while_python_imports_the_package(tmp_path):
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    line = [sys.executable, "-m", "hypvision.cli", "configs"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 130 and done.stderr == "\nInterrupted.\n"
