"""Random bad invocations of every command end in a sentence, never in a traceback, and leave what
is not theirs.

The arguments are drawn from the parsers themselves, so a new command is covered as soon as it is in
``COMMANDS``. All paths are relative to a scratch folder, where devices of its own stand for those
of the machine.
"""

import io
import os
import pickle
import random
import signal
import struct
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import commands
from helpers.bad_images import BAD_IMAGES
from helpers.engine import make_images, write_config
from PIL import Image

from hypvision.cli import COMMANDS, main, parser_of

SECONDS = 120  # after which an invocation counts as hanging


class Call:
    """A pickle that runs code."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


CONFIGS = {
    "syntax.py": "model = dict(",
    "raises.py": "raise ValueError('at the top')",
    "empty.py": "",
    "wrong.py": "model = 3\ntrain_dataloader = 'x'\ntest_dataloader = []\n",
    "nothing.py": "model = dict(type='NoSuchModel')\ntrain_dataloader = dict()\ntest_dataloader = "
    "dict()\n",
    "learner.py": "model = dict(type='MetricLearner', backbone=dict(model_name='no_such'), "
    "num_classes=2)\n",
    "segmentor.py": "model = dict(type='HyperCLIPSegmentor', clip=dict(name='emoji-t8'))\n",
    "circle.py": "_base_ = ['circle.py']\n",
    "base.py": "_base_ = ['no_such.py']\n",
    "config.yaml": "model: !!python/object/apply:os.mkdir [executed]\n",
    "config.json": '{"model": {"type": "ImageClassifier"}}',
    "broken.json": "{",
}
# Files of data, right and wrong, of the commands that read some.
TEXTS = {
    "chains.csv": "id,captions\n1,animal=>dog=>a small dog\n2,thing=>cup=>a red cup\n",
    "ragged.csv": "id,captions\n1,animal=>dog\n2,thing\n",
    "losses.csv": "family,dataset,m,loss\na,c4,64,3.5\na,c4,128,3.1\na,c4,x,\n",
    "empty.csv": "",
    "about.yml": "description: [1, 2\n",
    "classes.txt": "cat\ndog\ncat\n",
    "text.safetensors": "no tensors",
    "lm/config.json": '{"model_type": "helm", "vocab_size": -1}',
    "data/dtd/split_zhou_DescribableTextures.json": '{"train": [["a.jpg", 0]], "val": [], "test": '
    "3}",
    "results/settings.json": '{"steps": "many"}',
    "closure.csv": "id1,id2\ndog,animal\ncat,animal\ncat,pet\n",
    "pairs.tsv": "dog\tanimal\nanimal\tthing\n",
    "circle.csv": "id1,id2\ndog,dog\n",
    "run/vis_data/scalars.json": '{"loss": 1.5, "iter": 1, "step": 1}\n{"loss": 1.2, "iter": 2, '
    '"step": 2}\n{"top1": 5',
    "run/scalars.json": '{"loss": "NaN", "step": -1}\n[]\n',
    "pairs/captions.csv": "image,caption,left,top,right,bottom,words\na.png,a "
    "dog,0,0,9,9,dog\nb.png,a cat,,,,,\n",
    "lines/captions.jsonl": '{"image": "a.png", "caption": "a dog", "boxes": [{"box": [0, 0, 4, '
    '4], "words": "a"}]}\n',
}


def write_scratch(folder):
    """Files that commands may be given, by mistake or on purpose."""
    inner = folder / "inner"
    (inner / "folder/deep").mkdir(parents=True)
    (inner / "empty").mkdir()
    (inner / "bad").mkdir()
    (folder / "outside.txt").write_text("untouched")
    for name, text in CONFIGS.items():
        (inner / name).write_text(text)
    for name, text in TEXTS.items():
        (inner / name).parent.mkdir(parents=True, exist_ok=True)
        (inner / name).write_text(text)
    for name, content in BAD_IMAGES.items():
        (inner / "bad" / name).write_bytes(content)
        (inner / name).write_bytes(content)
    for name in ("pairs/images", "lines/images"):
        (inner / name).mkdir()
    good = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8))
    for name in (
        "good.png",
        "folder/good.jpg",
        "folder/deep/good.png",
        "pairs/images/a.png",
        "pairs/images/b.png",
        "lines/images/a.png",
        "grinning \U0001f600 face.png",
    ):
        good.save(inner / name)
    Image.new("RGB", (1, 1)).save(inner / "pixel.png")
    torch.save({"state_dict": {"weight": torch.zeros(2)}}, inner / "other.pth")
    torch.save(torch.zeros(3), inner / "tensor.pth")
    np.savez(inner / "arrays.npz", texts=np.zeros((2, 3)), images=np.array(["a"]))
    np.save(inner / "ids.npy", np.array([-1, 2**40]))
    torch.save({}, inner / "nothing.pth")
    (inner / "code.pth").write_bytes(pickle.dumps(Call()))
    (inner / "cut.pth").write_bytes((inner / "other.pth").read_bytes()[:200])
    (inner / "header.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    (inner / "latin.txt").write_bytes(b"gar\xe7on\n")
    (inner / "link.png").symlink_to("good.png")
    (inner / "dangling").symlink_to("nowhere")
    (inner / "loop").symlink_to("loop")
    os.mkfifo(inner / "pipe")
    write_config(inner / "good.py", make_images(inner / "images", per_class=1))
    (folder / "home").mkdir()
    return inner


WORDS = [
    "", " ", ".", "..", "-", "--", "-1", "0", "1", "2", "7", "1.5", "nan", "inf", "-inf", "1e400",
    "0x10", "9" * 40, "\u0663", "no_such", "None", "x" * 300, "x" * 5000, "~nobody_here/x",
    "a/b/c.png", "../new.png", "new/../../new", "*.png", "**", "[", "{a,b}", "a\0b", "\udcff", "%s",
    "%(prog)s", "$HOME", "zoo:", "zoo:no_such", "hf-hub:no/such", "https://",
    "https://127.0.0.1:9/a.pth", "http://127.0.0.1:9/a.pth#sha256=00", "file:///no/such", "file://",
    "#", "a#b", "KEY=VALUE", "=", "=1", "a=", "a.b=3", "model=3", "img_size=((((", "num_classes=-1",
    "img_size=0", "drop_rate=5", "no_such=1", "cat, dog", ",,", "cat,cat", "voc20", "emoji-t8",
    "emoji-t8:", "emoji-t8:no_such", "ViT-B-16", ":", "test_vit", "hcformer_nano", "himapper",
    "resnet10t.", "a:b:c", "new.png", "new.npz", "new.pth", "new.safetensors", "new.json", "new",
    "NEW.PNG", "new.tiff", "cpu", "cuda", "cuda:99", "32x32", "x32", "auto",
]  # fmt: skip


# What gets past the first checks, by the name of the argument, so that the work itself is reached
# with the rest wrong.
PLAUSIBLE = {
    "config": [*CONFIGS, *["good.py"] * len(CONFIGS)],
    "weights": ["other.pth", "tensor.pth", "nothing.pth", "code.pth", "cut.pth",
    "header.safetensors", "pipe"],
    "checkpoint": ["other.pth", "tensor.pth", "nothing.pth", "code.pth", "cut.pth", "pipe"],
    "source": ["a > b", "other.pth", "tensor.pth", "code.pth", "header.safetensors", "folder",
    "pipe"],
    "adapter": ["other.pth", "header.safetensors", "text.safetensors", "pipe"],
    "model": ["hcformer_nano", "test_vit", "himapper", "hcnn_resnet18", "resnet10t", "no_such"],
    "images": ["good.png", "folder", "*.png", "bad/*", "pixel.png", "folder/**/*.png", "pipe",
    "link.png"],
    "image": ["good.png", "pixel.png", "link.png", "bad/truncated.png", "folder", "pipe"],
    "gallery": ["folder", "bad", "empty", "good.png"],
    "classes": ["cat, dog", "classes.txt", "latin.txt", "broken.json", "voc20", "cat", ", ,",
    "folder", "config.json"],
    "clip": ["emoji-t8", "emoji-t8:other.pth", "emoji-t8:code.pth", "emoji-t8:no_such",
    "ViT-B-16"],
    "model_args": ["patch_size=2", "img_size=32", "img_size=0", "layers=(1,1,1,1)", "no_such=1",
    "num_classes=-1", "a"],
    "cfg_options": [
        "model.type=x", "data_root=folder", "a.b=3", "train_dataloader=3", "model=3", "=", "x",
        "log_level=x", "randomness.seed=x", "env_cfg.dist_cfg=3", "env_cfg.mp_cfg=3",
        "train_dataloader.dataset.transform=3", "train_dataloader.dataset=3",
        "train_dataloader.dataset.root=3", "train_dataloader.dataset.indices=3",
        "train_dataloader.sampler=3", "train_dataloader.collate_fn=3",
        "train_dataloader.num_workers=x", "train_dataloader.batch_size=x", "train_cfg.max_epochs=x",
        "train_cfg.val_interval=x", "model.backbone=3", "model.backbone.model_name=3",
        "model.backbone.img_size=x", "model.backbone.drop_rate=x", "model.mixup=3",
        "model.data_preprocessor=3", "model.label_smoothing=x", "model.type=os.mkdir",
        "log_processor.window_size=x", "val_evaluator.type=3", "val_evaluator.topk=x",
        "visualizer.type=3", "optim_wrapper.optimizer=3", "optim_wrapper.optimizer.lr=x",
        "optim_wrapper.constructor=3", "default_hooks.logger=3",
        "default_hooks.checkpoint.interval=x", "load_from=mmcls://nosuch",
        "load_from=torchvision://nosuch", "load_from=open-mmlab://nosuch", "custom_imports=nosuch",
        "custom_imports.imports=nosuch",
    ],
    "name": ["zoo:no_such", "a.b", "emoji-t8.scenes", "#", "file:///no/such#a", "voc20", "pc59",
    "ade847"],
    "names": ["zoo:no_such", "emoji-t8.scenes", "hcformer_nano.cifar10", "file://x#a", "#"],
    "about": ["about.yml", "config.yaml", "classes.txt", "latin.txt", "good.png"],
    "out": ["new", "new/deep", "new.png", "new.npz", "empty", "folder", "pipe", "good.png",
    "link.png", "dangling"],
    "chains": ["chains.csv", "ragged.csv", "empty.csv", "broken.json", "pipe"],
    "candidates": ["chains.csv", "ragged.csv", "empty.csv"],
    "captions": ["chains.csv", "classes.txt", "latin.txt"],
    "terms": ["classes.txt", "empty.csv", "good.png"],
    "embeddings": ["arrays.npz", "ids.npy", "other.pth", "pipe"],
    "tuned": ["other.pth", "header.safetensors", "pipe"],
    "hyperlex": ["classes.txt", "chains.csv", "good.png"],
    "tree": ["broken.json", "config.json", "chains.csv"], "tree_images": ["folder", "empty", "bad"],
    "show": ["good.png", "bad/truncated.png", "pipe"], "levels": ["1", "2", "3", "0"],
    "length": ["0", "1", "3"],
    "method": ["zeroshot", "maple", "coop+lath", "promptkd", "tip-adapter", "linear-probe",
    "no_such"],
    "datasets": ["dtd", "eurosat", "imagenet", "no_such"],
    "root": ["data", "folder", "empty", "pipe"], "results": ["results", "folder", "empty", "pipe"],
    "pretrained": ["other.pth", "zoo:emoji-t8.scenes", "no_such"],
    "teacher": ["other.pth", "code.pth", "no_such"], "host": ["depth=3", "n_ctx=-1", "x"],
    "pickles": ["folder", "new"],
    "folder": ["lm", "images", "pairs", "lines", "folder", "empty", "new", "pipe"],
    "include": ["folder", "no_such"], "tasks": ["no_such", "a,b"],
    "prompts": ["a", "", "\u0663", "x" * 5000],
    "subjects": ["quick", "fig1", "fig8", "losses.csv", "ids.npy", "code.pth"],
    "losses": ["losses.csv", "empty.csv", "chains.csv"],
    "tokenizer": ["broken.json", "config.json", "good.png"], "widths": ["2", "4", "0"],
    "densities": ["0.1", "2", "nan"], "write": ["overlay", "labels", "json", "no_such"],
    "things": ["cat", "dog", "no_such"], "score": ["0", "0.5", "2"],
    "submit_options": ["timeout_min=1", "x", "a=b"], "mean": ["0", "0.5", "1e30"],
    "std": ["0.5", "1", "-1", "1e-30"], "sweep": ["0", "1", "-1", "1e30"],
    "runs": ["run", "run/vis_data", "run/scalars.json", "run/vis_data/scalars.json", "folder",
    "config.json", "pipe"],
    "keys": ["loss", "lr", "loss*", "[", "no_such"],
    "gif": ["new.gif", "pipe", "good.png"],
    "closure": ["closure.csv", "pairs.tsv", "circle.csv", "pipe"],
    "dim": ["1", "2", "5", "0", "9" * 40], "rate": ["0.1", "0", "-1", "1e30"],
    "temperature": ["1", "0", "-1", "1e-30"],
    "texts": ["a dog", "classes.txt", "latin.txt", "", "no_such.txt"],
    "resume": ["other.pth", "code.pth", "no_such"],
    "work_dir": ["new", "folder", "pipe", "good.png"], "show_dir": ["new", "pipe"],
    "samples": ["1", "2", "0"],
    "save": ["new.png", "new.svg", "new.json", "new.npz", "new.csv", "pipe", "good.png", "folder"],
    "emoji": ["folder", "emoji", "pipe"], "photos": ["folder", "empty"], "every": ["1", "2", "0"],
    "workers": ["0", "-1", "x"], "data_root": ["folder", "data", "pipe"], "port": ["-1", "x"],
    "size": ["32", "64", "33", "0", "8193"], "stage": ["0", "3", "4", "-1"], "head": ["0", "99"],
    "block": ["0", "99"],
}  # fmt: skip


def draw(random_, action, files):
    """A value for an argument: one that fits its kind now and then, else anything."""
    if action.choices is not None and random_.random() < 0.9:
        return str(random_.choice(list(action.choices)))
    if action.dest in PLAUSIBLE and random_.random() < 0.7:
        return random_.choice(PLAUSIBLE[action.dest])
    if action.metavar in ("N", "K", "X", "S", "S|HxW") and random_.random() < 0.8:
        return random_.choice(["1", "2", "3", "33", "-1", "0", "0.5", "1e400", "nan", "9" * 40, ""])
    return random_.choice(files if random_.random() < 0.6 else WORDS)


# Commands that train at once: as little as they can.
SHORT = {
    "scaling run": ["--batch", "4", "--features", "40", "--replicates", "1"],
    **{f"fewshot {protocol}": [] for protocol in ("base2new", "shots", "cross", "dg")},
}
NO_SCRIPTS = [
    "",
    "no_such.py",
    "folder",
    "pipe",
    "good.png",
    "latin.txt",
    "dangling",
    "loop",
    "--",
    "-x",
    "\udcff",
]


def invocation(random_, files):
    """A random command line."""
    name = random_.choice(list(COMMANDS))
    words = name.split()
    actions = [action for action in parser_of(name)._actions if action.dest != "help"]
    if name == "data make":  # a number that is right would draw as many images
        actions = [action for action in actions if action.dest not in ("train", "val", "size")]
        small = ["-1", "0", "1", "2", "x", "", "9" * 40]
        words += ["--train", random_.choice(small), "--val", random_.choice(small), "--size", "32"]
    if name in SHORT:
        actions = [action for action in actions if action.dest not in ("steps", "jobs", "submit")]
        words += [*SHORT[name], "--steps", random_.choice(["0", "1", "1", "1", "x"])]
    if name == "app":  # it would serve its page; without a folder to search it does not begin
        actions = [action for action in actions if action.dest != "gallery"]
        words += ["--gallery", random_.choice(["no_such", "pipe", "good.png", "dangling", "loop"])]
    if name == "exec":  # a script may do what it likes: these can be none
        return ["exec", *random_.choices(NO_SCRIPTS, k=random_.choice([0, 1, 1, 1, 2]))]
    for action in actions:
        if action.option_strings and not action.required and random_.random() < 0.75:
            continue
        if random_.random() < 0.01:
            continue  # forgotten
        count = 1
        if action.nargs == 0:
            count = 0
        elif action.nargs in ("+", "*"):
            count = random_.choice([0, 1, 1, 1, 1, 1, 2, 2, 3])
        elif isinstance(action.nargs, int):
            count = random_.choice([action.nargs, action.nargs, action.nargs + 1])
        if action.option_strings:
            flag = random_.choice(action.option_strings)
            words.append(flag[:-1] if random_.random() < 0.01 else flag)
        words += [draw(random_, action, files) for _ in range(count)]
    if random_.random() < 0.03:
        words.insert(
            random_.randrange(1, len(words) + 1), random_.choice(["--no-such", "-z", "--", "extra"])
        )
    return words


def state(folder):
    """What must stay as it is: links, pipes, and what lies outside the working folder."""
    special = {
        name: os.lstat(folder / "inner" / name).st_ino
        for name in ("pipe", "dangling", "loop", "link.png")
    }
    return (folder / "outside.txt").read_text(), special


def attempt(words):
    """What is wrong with how an invocation ends; None if nothing."""

    def hangs(*args):
        raise TimeoutError(f"more than {SECONDS} s")

    out = io.TextIOWrapper(
        io.BytesIO(), "utf-8", "strict", write_through=True
    )  # as the streams of a process
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            status = main(words)
    except SystemExit as end:
        status = end.code
    except BaseException as error:  # whatever it is, it is a traceback for users
        return f"{type(error).__module__}.{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said, complained = (stream.buffer.getvalue().decode() for stream in (out, err))
    if status not in (
        (0, 1, 2) if words[:1] == ["check"] else (0, 2)
    ):  # 1: there are faults in the data
        return f"status {status}"
    if status == 2 and complained.count("hypvision: error:") != 1:
        return f"no sentence: {complained[-300:]}"
    if "Traceback" in complained + said:
        return f"traceback in the output: {(complained + said)[-300:]}"
    return None


def enter(inner, monkeypatch):
    """Work in a folder, offline, with a home beside it."""
    monkeypatch.chdir(inner)
    home = inner.parent / "home"
    for name, value in dict(
        HOME=home, HYPVISION_HOME=home / "hypvision", HYPVISION_OFFLINE="1", HF_HUB_OFFLINE="1",
        HF_HOME=home / "hf", TORCH_HOME=home / "torch",
    ).items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(
        "huggingface_hub.constants.HF_HUB_OFFLINE", True
    )  # the variable is read at its import


def fuzz(folder, monkeypatch, seed, count):
    assert threading.current_thread() is threading.main_thread()
    inner = write_scratch(folder)
    enter(inner, monkeypatch)
    files = sorted(str(path.relative_to(inner)) for path in inner.rglob("*"))
    expected = state(folder)
    random_ = random.Random(seed)
    failures = []
    for _ in range(count):
        words = invocation(random_, files)
        wrong = attempt(words)
        if wrong is None and state(folder) != expected:
            wrong = f"something outside was changed: {state(folder)}"
            expected = state(folder)
        if wrong is None and (inner / "executed").exists():
            wrong = "code of a file was run"
            (inner / "executed").rmdir()
        if wrong is not None:
            failures.append((words, wrong))
    text = "\n".join(
        f"hypvision {' '.join(map(repr, (word[:60] for word in words)))}\n    {wrong}"
        for words, wrong in failures
    )
    assert not failures, f"{len(failures)} of {count}:\n{text}"


@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_bad_invocations(tmp_path, monkeypatch):
    fuzz(tmp_path, monkeypatch, seed=0, count=60)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(1, 6))
def test_bad_invocations(tmp_path, monkeypatch, seed):
    fuzz(tmp_path, monkeypatch, seed, count=200)


WRONG = ["", "no_such", "pipe", "empty", "\udcff", "a\0b", "-1", "0", "nan", "9" * 40, "x" * 5000,
"loop", "[", "=",
         "photos/b.png", "words.txt", "head.safetensors"]  # fmt: skip


def damaged(content, random_):
    """What may have become of a file: None stands for nothing, a path for a folder."""
    found = [None, Path("folder"), b"", content[: len(content) // 2], content * 2, b"[" * 100_000]
    for count in (2, 20):
        noise = bytearray(content)
        for place in random_.sample(range(len(noise)), min(count, len(noise))):
            noise[place] = random_.randrange(256)
        found.append(bytes(noise))
    pairs = [
        (b"0", b"-1"),
        (b"1", b"nan"),
        (b"a", b"\xe9"),
        (b",", b";"),
        (b'"', b""),
        (b"e", b"["),
    ]
    return found + [content.replace(*pair) for pair in pairs if b"\0" not in content[:1000]]


def single_faults(words, random_):
    """A line with one fault each: a word that is missing or another one, or a file that is damaged
    for its time."""
    first = next(
        len(name.split()) for name in COMMANDS if name.split() == words[: len(name.split())]
    )
    for place in range(first, len(words)):
        for wrong in ([], *([word] for word in WRONG)):
            yield [*words[:place], *wrong, *words[place + 1 :]]
    named = [Path(word) for word in words[first:] if os.path.exists(word) and words[0] != "exec"]
    folders = [
        {path.suffix: path for path in sorted(folder.rglob("*")) if path.is_file()}
        for folder in named
    ]
    for path in [
        *filter(Path.is_file, named),
        *(path for folder in folders for path in folder.values()),
    ]:
        whole = path.read_bytes()
        for content in damaged(whole, random_):
            path.unlink()
            if content is not None:
                path.mkdir() if isinstance(content, Path) else path.write_bytes(content)
            yield words
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
            path.write_bytes(whole)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "words", [line for line in commands.lines() if line[0] != "export"], ids=" ".join
)
def test_single_faults(tmp_path, monkeypatch, words):
    """In lines that work but for it, so that it is met deep inside. An export takes too long for
    hundreds."""
    inner = commands.write_inputs(tmp_path / "inner")
    os.mkfifo(inner / "pipe")
    (inner / "loop").symlink_to("loop")
    (inner / "empty").mkdir()
    enter(inner, monkeypatch)
    commands.tiny(monkeypatch.setattr)
    tried = [(line, attempt(line)) for line in single_faults(words, random.Random(0))]
    assert len(tried) > 10 and not [(line, wrong) for line, wrong in tried if wrong]
