"""Checkpoints of every format, hostile in every way that we could think of, through everything that
loads one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hypvision.io.errors import HypvisionError

from .files import proof, write_all
from .table import Case, shared

GROUP = "checkpoints"
_LONGEST = 20  # seconds of one core for one file
_MOST = 1200  # megabytes beyond those of the imports, for one file


# What loads a file: functions of (file, folder with inputs of commands). The last group of words
# are commands, whose {} is the file.


def read(path: Path, folder: Path) -> Any:
    from hypvision.checkpoints.read import network_weights, read

    return network_weights(read(path))


def read_mapped(path: Path, folder: Path) -> Any:
    from hypvision.checkpoints.read import read_file

    return read_file(path, mapped=True, single="w")


def read_header(path: Path, folder: Path) -> Any:
    from hypvision.checkpoints.storage import read_header

    return read_header(path)


def clip(path: Path, folder: Path) -> Any:
    from hypvision.clip.models import ARCHITECTURES, create_clip

    size = dict(layers=1, width=32)
    vision = dict(image_size=32, patch_size=16, head_width=16, **size)
    text = dict(context_length=77, vocab_size=49408, heads=2, **size)
    ARCHITECTURES["hostile-s"] = dict(embed_dim=32, vision_cfg=vision, text_cfg=text)
    return create_clip("hostile-s", path)


def clip_folder(path: Path, folder: Path) -> Any:
    from helpers import clip_repository

    from hypvision.clip.models import create_clip

    name = (
        "open_clip_model.safetensors"
        if path.suffix == ".safetensors"
        else "open_clip_pytorch_model.bin"
    )
    shutil.rmtree(folder / "repository", ignore_errors=True)
    place = clip_repository.folder(folder / "repository", name=None)
    shutil.copy(path, place / name)
    return create_clip(f"local-dir:{place}")


def timm_path(path: Path, folder: Path) -> Any:
    from hypvision.models.timm_models import create_model

    return create_model("test_vit", checkpoint_path=path)


def timm_overlay(path: Path, folder: Path) -> Any:
    import timm
    from helpers.zoo import MICRO

    arguments = {
        key: tuple(value) if isinstance(value, list) else value for key, value in MICRO.items()
    }
    return timm.create_model(
        "hcformer_nano", pretrained=True, pretrained_cfg_overlay=dict(file=str(path)), **arguments
    )


def load(path: Path, folder: Path) -> Any:
    import hypvision

    return hypvision.load(path, model="test_vit")


def tower(path: Path, folder: Path) -> Any:
    from hypvision.clip.radial.weights import merge_tower

    return merge_tower(torch.nn.Linear(2, 2), path)


def adapter(path: Path, folder: Path) -> Any:
    from hypvision.clip.adapters import load

    return load(torch.nn.Linear(2, 2), path)


def learned(path: Path, folder: Path) -> Any:
    from hypvision.clip.models import create_clip
    from hypvision.clip.prompting import build_host, load_learned

    return load_learned(build_host(create_clip("emoji-t8", None), "coop"), path)


def cache(path: Path, folder: Path) -> Any:
    from hypvision.clip.prompting.official import read_cache

    return read_cache(path)


def embeddings(path: Path, folder: Path) -> Any:
    from hypvision.clip.radial.measure import read_embeddings

    return read_embeddings(path)


def convert(family: str, path: Path, folder: Path) -> Any:
    from hypvision.zoo.convert import convert_file

    (folder / "converted.pth").unlink(missing_ok=True)
    return convert_file(family, path, folder / "converted.pth")


def helm_official(path: Path, folder: Path) -> Any:
    from hypvision.helm.huggingface import HelmForCausalLM

    return HelmForCausalLM.from_official(path)


def helm_folder(path: Path, folder: Path) -> Any:
    from hypvision.helm.huggingface import HelmForCausalLM

    shutil.rmtree(folder / "hub", ignore_errors=True)
    place = Path(
        shutil.copytree(folder / "lm", folder / "hub", ignore=lambda *_: ["model.safetensors"])
    )
    shutil.copy(
        path,
        place / ("model.safetensors" if path.suffix == ".safetensors" else "pytorch_model.bin"),
    )
    return HelmForCausalLM.from_pretrained(place)


def init_cfg(path: Path, folder: Path) -> Any:
    from hypvision.openmmlab import TimmBackbone

    backbone = TimmBackbone(
        "test_vit", out_indices=(0,), init_cfg=dict(type="Pretrained", checkpoint=str(path))
    )
    return backbone.init_weights()


def verify(path: Path, folder: Path) -> Any:
    """A record with the right sum for the file, as the owner of an index could write it: it is
    loaded."""
    from helpers.zoo import NAME, make_item

    import hypvision
    from hypvision.checkpoints.index import parse_record, write_index
    from hypvision.checkpoints.records import Index

    place = folder / "index"
    shutil.rmtree(place, ignore_errors=True)
    (place / "weights").mkdir(parents=True)
    shutil.copy(path, place / "weights/micro.safetensors")
    write_index(Index({NAME: parse_record(make_item(path))}), place / "index.yml")
    return hypvision.load(f"file://{place}#{NAME}")


def command(words: str, path: Path, folder: Path) -> Any:
    """A command; its status must be 2, or 0 if it could read the file."""
    from hypvision.cli import main

    for name in ("out", "work"):
        shutil.rmtree(folder / name, ignore_errors=True)
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        try:
            status = main([word.format(path) for word in words.split()])
        except SystemExit as ended:
            raise AssertionError(f"'{words}' is no command: {error.getvalue()[-300:]}") from ended
    if status == 2:
        raise HypvisionError(error.getvalue().strip())
    assert status == 0, f"status {status}"


COMMANDS = {
    "test": "test good.py {} --work-dir work",
    "load_from": "train good.py --work-dir work --cfg-options load_from={}",
    "train --resume": "train good.py --work-dir work --resume {}",
    "predict --weights": "predict photos --model good.py --weights {} --out out --device cpu",
    "export": "export {} --format onnx --model good.py --save out.onnx",
    "explain --weights": "explain photos/a.png --model himapper --weights {} --out out",
    "lm save": "lm save text.py {} out",
    "clip chains --tuned": "clip chains chains.csv --clip emoji-t8 --tuned {} --steps 3 --device "
    "cpu",
    "clip chains --embeddings": "clip chains chains.csv --embeddings {} --steps 3",
    "clip radius --adapter": "clip radius --clip emoji-t8 --classes words.txt --adapter {} "
    "--device cpu --out out",
    "clip segment --weights": "clip segment photos --classes words.txt --weights {} --device cpu "
    "--out out",
    "metric embed --weights": "metric embed photos --model test_vit --weights {} --device cpu "
    "--save out.npz",
    "metric hierarchy": "metric hierarchy --config learner.py --weights {} --per-class 2 --device "
    "cpu --out out",
    "zoo convert": "zoo convert --from hyperboliccv {} out.pth",
    "zoo publish": "zoo publish good.py {} --name test_vit.own --about about.yml --metrics top1 "
    "--out zoo",
    "scaling heads": "scaling heads {} --tensor w --out out",
    "fewshot --teacher": "fewshot base2new --method promptkd --datasets dtd --seeds 1 --shots 2 "
    "--root few --clip emoji-t8 --teacher {} --out out",
}
FUNCTIONS: dict[str, Callable[[Path, Path], Any]] = {
    "read": read, "read_file, mapped": read_mapped, "read_header": read_header,
    "hypvision.load": load, "create_clip(NAME, FILE)": clip,
    "create_clip(local-dir:FOLDER)": clip_folder, "timm: checkpoint_path": timm_path,
    "timm: pretrained_cfg": timm_overlay, "init_cfg": init_cfg, "text towers": tower,
    "adapters": adapter, "prompts": learned, "Tip-Adapter's cache": cache, "embeddings": embeddings,
    "HELM from_official": helm_official, "HELM from_pretrained": helm_folder,
    "a zoo's index": verify,
    **{f"convert from {family}": partial(convert, family) for family in ("hcformer", "meru",
    "hyperclip", "coop")},
}  # fmt: skip
LOADERS = {**FUNCTIONS, **{name: partial(command, words) for name, words in COMMANDS.items()}}
# Commands take a second before they read: they get one file of each kind of attack.
SAMPLE = (
    "torch.save: code", "torch.save: code in the state", "torch.save: 'state_dict' is a ",
    "torch.save: 'meta' is a ", "torch.save: 'optimizer' is a list", "zip: 1,000,000 empty tensors",
    "zip: 1,000,000 tuples", "zip: bytearray", "zip: bomb", "before 1.6: code",
    "TorchScript: calls", "safetensors: 1,000,000 empty", "safetensors: NaN",
    "safetensors: state_dict", "ours: zlib bomb of", "ours: table of words", "zip: codecs",
)  # fmt: skip

# Files that take a second of every loader, as all of them ask the same reader.
SLOW = ("lists", "1,000,000 empty tensors", "deep", "dicts in dicts", "200,000 parts", "of 50 MB")


def files() -> tuple[Path, dict[str, Path]]:
    """The folder of the hostile files, and each of them by its name."""
    folder = shared("hostile-checkpoints", write_all)
    return folder, {
        name: folder / path
        for name, path in json.loads((folder / "names.json").read_text()).items()
    }


def inputs(folder: Path) -> Path:
    """A folder of its own with what the commands read."""
    from helpers.commands import write_inputs

    def make(place: Path) -> None:
        before = os.getcwd()
        os.chdir(place)
        write_inputs(place)
        os.chdir(before)

    return Path(shutil.copytree(shared("hostile-inputs", make), folder / "inputs"))


def outcome(loader: Callable[[Path, Path], Any], path: Path, folder: Path) -> str:
    """How a loader answers a file: a sentence that refuses it, or what it read. Anything else
    breaks the promise."""
    try:
        found = loader(path, folder)
    except (
        RuntimeError,
        TypeError,
    ) as error:  # of timm and of PyTorch's load_state_dict, which we do not change
        assert loader in (timm_path, timm_overlay) and not isinstance(error, AssertionError), repr(
            error
        )[:300]
        return "refused by timm"
    except HypvisionError as error:
        assert 20 < len(str(error)) < 20_000, f"a message of {len(str(error))} letters"
        return "refused"
    return "read" if not isinstance(found, Mapping) or found else "read nothing"


def attack(name: str, every: bool, folder: Path) -> str:
    """Give hostile files to a loader, one after the other."""
    place, known = files()
    os.environ["HYPVISION_HOME"] = str(folder / "home")
    where = inputs(folder)
    os.chdir(where)
    warnings.simplefilter("ignore")
    worst = dict(seconds=(0.0, ""), megabytes=(0.0, ""))
    broken: list[str] = []
    said: dict[str, int] = {}
    for file, path in known.items():
        if not file.startswith(SAMPLE) and (not every or (file.endswith(SLOW) and name != "read")):
            continue
        print(file, flush=True)  # the last line of the output names the file that ended a process
        begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            found = outcome(LOADERS[name], path, where)
            said[found] = said.get(found, 0) + 1
        except Exception as error:
            broken.append(f"{file}: {type(error).__name__}: {str(error)[:120]}")
        seconds = time.process_time() - begun
        megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        worst = dict(
            seconds=max(worst["seconds"], (seconds, file)),
            megabytes=max(worst["megabytes"], (megabytes, file)),
        )
        if seconds > _LONGEST or megabytes > _MOST:
            broken.append(f"{file}: {seconds:.0f} s, {megabytes:.0f} MB")
    if proof(place).exists():
        broken.insert(0, "code was run")
    assert not broken, "; ".join(broken)
    answers = ", ".join(f"{count} {answer}" for answer, count in said.items())
    slowest, largest = worst["seconds"], worst["megabytes"]
    return (
        f"{answers}; at most {slowest[0]:.1f} s ({slowest[1]}) and {largest[0]:.0f} MB more "
        f"({largest[1]})"
    )


def cases() -> list[Case]:
    """One for each loader."""
    return [
        Case(
            GROUP,
            f"hostile files through {name}",
            partial(attack, name, name in FUNCTIONS),
            120,
            2000,
        )
        for name in LOADERS
    ]
