"""Folders and repositories of models whose configs, tokenizers, processors and adapters ask for
code or other places.

Nothing in them is run, even if a user would answer "y" to every question; no file outside of the
folder is read, and nothing is downloaded.
"""

from __future__ import annotations

import builtins
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .table import Case, shared

GROUP = "metadata"

CODE = """
open({proof!r}, "w").close()
import transformers
class C(transformers.PretrainedConfig):
    model_type = "own"
class M(transformers.PreTrainedModel):
    config_class = C
class T(transformers.PreTrainedTokenizer):
    pass
class P(transformers.ProcessorMixin):
    pass
def generate(*args, **options):
    pass
"""


class Evil:
    """A pickle that leaves a file behind."""

    def __init__(self, proof: Path):
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.proof}'",)


class Watch:
    """What a call opens, runs and connects to."""

    def __init__(self, folder: Path, outside: Path):
        self.proof, self.outside = folder / "ran", str(outside)
        self.found: list[str] = []
        self.asked: list[str] = []
        builtins.input = self._answer
        sys.addaudithook(self._hook)

    def _answer(self, *question: Any) -> str:
        self.asked.append(" ".join(map(str, question)))
        return "y"

    def _hook(self, event: str, arguments: tuple) -> None:
        if event == "open" and str(arguments[0]).startswith(self.outside):
            self.found.append(f"it opened {arguments[0]}")
        elif event in ("socket.connect", "socket.getaddrinfo"):
            place = arguments[1] if event == "socket.connect" else arguments[0]
            self.found.append(f"it connected to {place}")
        elif event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"):
            self.found.append(f"it started {arguments[0]}")
        elif event == "exec" and "transformers_modules" in getattr(arguments[0], "co_filename", ""):
            self.found.append(f"it ran {arguments[0].co_filename}")

    def check(self) -> None:
        assert not self.proof.exists(), "code was run"
        assert not self.asked, f"it asked: {self.asked[0]}"
        assert not self.found, "; ".join(dict.fromkeys(self.found))


def _environment(folder: Path) -> None:
    from huggingface_hub import constants

    for name in [
        name
        for name in os.environ
        if name.lower().endswith("_proxy") or name.startswith("HF_HUB_OFFLINE")
    ]:
        os.environ.pop(name)
    os.environ.update(HYPVISION_HOME=str(folder / "home"), HYPVISION_DEADLINE="5")
    constants.HF_HUB_CACHE = str(folder / "hub")
    constants.HF_HUB_ETAG_TIMEOUT = 1


def _language_model(folder: Path) -> None:
    import transformers

    from hypvision.helm.huggingface import HelmConfig, HelmForCausalLM

    config = HelmConfig.of("helm_d_tiny", bos_token_id=1, eos_token_id=1, pad_token_id=0)
    HelmForCausalLM(config).save_pretrained(folder)
    transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(folder)


def _clip(folder: Path) -> None:
    from helpers import clip_repository

    clip_repository.folder(folder)


def _timm(folder: Path) -> None:
    import timm
    from safetensors.torch import save_file

    model = timm.create_model("test_vit")
    save_file(model.state_dict(), folder / "model.safetensors")
    about = dict(
        architecture="test_vit",
        num_classes=1000,
        pretrained_cfg=dict(tag="own", input_size=[3, 160, 160]),
    )
    (folder / "config.json").write_text(json.dumps(about))


def _adapter(folder: Path) -> None:
    from helpers import clip_models

    from hypvision.clip import adapters

    model = adapters.inject(clip_models.openai_clip(), dict(type="hyperclip", block=16))
    adapters.save(model, folder / "adapter.safetensors")


def _change(path: Path, **values: Any) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, **values}))


# What a folder of a language model may say besides: name -> function of (folder, a folder outside
# of it)
Change = Callable[[Path, Path], None]


def _both(file: str, **values: Any) -> Change:
    return lambda folder, outside: _change(folder / file, **values)


def _index(folder: Path, outside: Path) -> None:
    (folder / "model.safetensors").unlink()
    table = dict(
        metadata={},
        weight_map={"model.embed.weight": os.path.relpath(outside / "model.safetensors", folder)},
    )
    (folder / "model.safetensors.index.json").write_text(json.dumps(table))


def _pickled(folder: Path, outside: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Evil(folder.parent / "ran")}))


def _pickled_adapter(folder: Path, outside: Path) -> None:
    _change(
        folder / "adapter_config.json",
        base_model_name_or_path=str(folder),
        peft_type="LORA",
        task_type="CAUSAL_LM",
    )
    (folder / "adapter_model.bin").write_bytes(pickle.dumps({"w": Evil(folder.parent / "ran")}))


def _adapter_of(place: Callable[[Path], str], **values: Any) -> Change:
    def change(folder: Path, outside: Path) -> None:
        about = dict(peft_type="LORA", task_type="CAUSAL_LM", r=2, target_modules=["qkv"])
        _change(
            folder / "adapter_config.json",
            **about,
            base_model_name_or_path=place(outside),
            **values,
        )

    return change


def _generation(folder: Path, outside: Path) -> None:
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "own.py", folder / "custom_generate/generate.py")
    _change(folder / "generation_config.json", custom_generate=str(folder))


def _renamed(folder: Path, outside: Path) -> None:
    _change(folder / "config.json", model_type="own", auto_map=ALL)


def _outside(file: str, key: str, name: str) -> Change:
    return lambda folder, outside: _change(folder / file, **{key: str(outside / name)})


ALL = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M", "AutoModel": "own.M",
       "AutoTokenizer": ["own.T", "own.T"], "AutoProcessor": "own.P"}  # fmt: skip
THERE = {key: [f"evil/code--{each}" for each in value] if isinstance(value,
list) else f"evil/code--{value}"
         for key, value in ALL.items()}  # fmt: skip
LANGUAGE: dict[str, Change] = {
    "nothing odd": lambda folder, outside: None,
    "auto_map in config.json": _both("config.json", auto_map=ALL),
    "auto_map in config.json, of an own type": _renamed,
    "auto_map to another repository": _both("config.json", auto_map=THERE),
    "auto_map to another repository, of an own type": _both(
        "config.json", auto_map=THERE, model_type="own"
    ),
    "trust_remote_code in config.json": _both("config.json", auto_map=ALL, trust_remote_code=True),
    "auto_map in tokenizer_config.json": _both(
        "tokenizer_config.json", auto_map=ALL, tokenizer_class="T"
    ),
    "auto_map of a tokenizer elsewhere": _both(
        "tokenizer_config.json", auto_map=THERE, tokenizer_class="T"
    ),
    "trust_remote_code in tokenizer_config.json": _both(
        "tokenizer_config.json", auto_map=ALL, tokenizer_class="T", trust_remote_code=True
    ),
    "a tokenizer class with dots": _both("tokenizer_config.json", tokenizer_class="own.T"),
    "auto_map in processor_config.json": _both(
        "processor_config.json", auto_map=ALL, processor_class="P"
    ),
    "auto_map in preprocessor_config.json": _both(
        "preprocessor_config.json", auto_map=ALL, processor_class="P"
    ),
    "code for generate()": _generation,
    "attention from the hub": _both(
        "config.json", _attn_implementation="evil/kernel", attn_implementation="evil/kernel"
    ),
    "experts from the hub": _both("config.json", _experts_implementation="evil/kernel"),
    "a dtype that is code": _both("config.json", dtype="__import__('os').system('true')"),
    "a quantisation": _both(
        "config.json", quantization_config=dict(quant_method="own", modules_to_not_convert=["a"])
    ),
    "a template that is code": _both(
        "tokenizer_config.json", chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}"
    ),
    "a vocabulary outside": _outside("tokenizer_config.json", "vocab_file", "secret.txt"),
    "a tokenizer's file outside": _outside(
        "tokenizer_config.json", "tokenizer_file", "tokenizer.json"
    ),
    "a name that is a path": _outside("config.json", "_name_or_path", "secret.txt"),
    "an index of weights outside": _index,
    "pickled weights": _pickled,
    "an adapter of a model outside": _adapter_of(str),
    "an adapter of a model on the hub": _adapter_of(lambda outside: "evil/model"),
    "an adapter with an own class": _adapter_of(
        lambda outside: "evil/model", auto_mapping=dict(base_model_class="M", parent_library="own")
    ),
    "a pickled adapter": _pickled_adapter,
}


def _generate(folder: Path) -> object:
    from hypvision.tasks.language_models import generate

    return generate(folder, ["a"], tokens=2)


def _helm(folder: Path) -> object:
    from hypvision.helm.huggingface import HelmForCausalLM

    return HelmForCausalLM.from_pretrained(folder)


def _tokenizer(folder: Path) -> object:
    from hypvision.data.language import load_tokenizer

    return load_tokenizer(str(folder)).encode("a")


# What the config of a CLIP may say


def _clip_config(**text: Any) -> Callable[[Path, Path], None]:
    def change(folder: Path, outside: Path) -> None:
        path = folder / "open_clip_config.json"
        found = json.loads(path.read_text())
        for key, value in text.items():
            found["model_cfg"][key] = {**found["model_cfg"].get(key, {}), **_placed(value, outside)}
        path.write_text(json.dumps(found))

    return change


def _placed(value: Any, outside: Path) -> Any:
    if isinstance(value, dict):
        return {key: _placed(each, outside) for key, each in value.items()}
    return value.replace("OUTSIDE", str(outside)) if isinstance(value, str) else value


CLIP: dict[str, Change] = {
    "nothing odd": lambda folder, outside: None,
    "a text tower outside": _clip_config(text_cfg=dict(hf_model_name="OUTSIDE")),
    "a tokenizer outside": _clip_config(text_cfg=dict(hf_tokenizer_name="OUTSIDE")),
    "a text tower and its tokenizer outside": _clip_config(
        text_cfg=dict(
            hf_model_name="OUTSIDE", hf_tokenizer_name="OUTSIDE", hf_model_pretrained=True
        )
    ),
    "trust_remote_code for the tokenizer": _clip_config(
        text_cfg=dict(hf_tokenizer_name="OUTSIDE", tokenizer_kwargs=dict(trust_remote_code=True))
    ),
    "trust_remote_code anywhere": _clip_config(
        vision_cfg=dict(a=dict(b=dict(trust_remote_code=1)))
    ),
    "weights of timm outside": _clip_config(
        vision_cfg=dict(timm_model_name="local-dir:OUTSIDE", timm_model_pretrained=True)
    ),
    "a tokenizer in the folder with auto_map": lambda folder, outside: (
        _change(folder / "tokenizer_config.json", auto_map=ALL, tokenizer_class="T"),
        _clip_config(text_cfg=dict(hf_tokenizer_name="me/words"))(folder, outside),
    ),  # type: ignore[func-returns-value, return-value]
    "a tokenizer that is this folder": lambda folder, outside: (
        _change(folder / "tokenizer_config.json", auto_map=ALL, tokenizer_class="T"),
        _clip_config(text_cfg=dict(hf_tokenizer_name=str(folder)))(folder, outside),
    ),  # type: ignore[func-returns-value, return-value]
    "a merges file that is code": _clip_config(
        text_cfg=dict(tokenizer_kwargs=dict(bpe_path="OUTSIDE/secret.txt"))
    ),
}


def _create_clip(folder: Path) -> object:
    from hypvision.clip.models import create_clip

    return create_clip(f"local-dir:{folder}").tokenizer(["a cat"])


# What the config of a model of timm may say

TIMM: dict[str, Change] = {
    "nothing odd": lambda folder, outside: None,
    "a file outside": lambda folder, outside: _change(
        folder / "config.json", pretrained_cfg=dict(file=str(outside / "pytorch_model.bin"))
    ),
    "an address": _both("config.json", pretrained_cfg=dict(url="http://127.0.0.1:9/net.pth")),
    "a repository": _both(
        "config.json", pretrained_cfg=dict(hf_hub_id="evil/model", source="hf-hub")
    ),
    "a loader of its own": _both("config.json", pretrained_cfg=dict(custom_load="hf")),
    "an architecture elsewhere": _both("config.json", architecture="hf-hub:evil/model"),
    "pickled weights": _pickled,
    "arguments that are places": _both(
        "config.json", model_args=dict(checkpoint_path="/etc/passwd")
    ),
}


def _create_timm(folder: Path) -> object:
    from hypvision.models.timm_models import create_model

    return create_model(f"local-dir:{folder}", pretrained=True)


# What the header of an adapter may say


def _header(change: Callable[[dict], object]) -> Change:
    def write(folder: Path, outside: Path) -> None:
        from safetensors import safe_open
        from safetensors.torch import load_file, save_file

        path = folder / "adapter.safetensors"
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["adapter"])
        weights = load_file(path)
        change(about)
        save_file(weights, path, {"adapter": json.dumps(about)})

    return write


def _raw(make: Callable[[Path], bytes]) -> Change:
    return lambda folder, outside: (
        (folder / "adapter.safetensors").write_bytes(make(folder.parent / "ran")) and None
    )


ADAPTERS: dict[str, Change] = {
    "nothing odd": lambda folder, outside: None,
    "a method that is a module": _header(lambda about: about.update(type="os.system")),
    "a config of another class": _header(
        lambda about: about["config"].update(__class__="os.system", type="os.system")
    ),
    "a block of 1e12": _header(lambda about: about["config"].update(block=10**12)),
    "a base of 1e9 numbers": _header(
        lambda about: about["base"]["text"].update(depth=10**9, width=10**9)
    ),
    "nested deeply": _header(lambda about: about.update(config=json.loads("[" * 900 + "]" * 900))),
    "a pickle": _raw(lambda proof: pickle.dumps({"w": Evil(proof)})),
    "a header of 2**60 bytes": _raw(lambda proof: (2**60).to_bytes(8, "little") + b"{}"),
}


def _load_adapter(folder: Path) -> object:
    from helpers import clip_models

    from hypvision.clip import adapters

    return adapters.load(clip_models.openai_clip(), folder / "adapter.safetensors", strict=False)


LOADERS: dict[
    str, tuple[str, Callable[[Path], object], Callable[[Path], object], dict[str, Change]]
] = {
    "lm generate": ("lm", _language_model, _generate, LANGUAGE),
    "HelmForCausalLM": ("lm", _language_model, _helm, LANGUAGE),
    "tokenizer": ("lm", _language_model, _tokenizer, LANGUAGE),
    "CLIP": ("clip", _clip, _create_clip, CLIP),
    "timm": ("timm", _timm, _create_timm, TIMM),
    "adapter": ("adapter", _adapter, _load_adapter, ADAPTERS),
}


def _attack(loader: str, name: str) -> Callable[[Path], str]:
    def run(place: Path) -> str:
        kind, make, load, changes = LOADERS[loader]
        _environment(place)
        folder = Path(shutil.copytree(shared(kind, make), place / "model"))
        outside = Path(shutil.copytree(shared("lm", _language_model), place / "outside"))
        code = CODE.format(proof=str(place / "ran"))
        for where in (folder, outside):
            (where / "own.py").write_text(code)
        (outside / "secret.txt").write_text("the secret of this machine\n" * 100)
        (outside / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Evil(place / "ran")}))
        _change(outside / "config.json", auto_map=ALL, model_type="own")
        _change(outside / "tokenizer_config.json", auto_map=ALL, tokenizer_class="T")
        changes[name](folder, outside)
        return _watched(
            lambda: load(folder), Watch(place, outside), name, loader in ("HelmForCausalLM", "timm")
        )

    return run


def _watched(load: Callable[[], object], watch: Watch, name: str, errors: bool) -> str:
    from hypvision.io.errors import HypvisionError

    try:
        load()
        said = "it loads, and ignores what is odd"
    except HypvisionError as error:
        said = " ".join(str(error).split())[:300]
        assert name != "nothing odd", said
    except (
        Exception
    ) as error:  # functions that promise the errors of the library that they stand for
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:250]}"
        assert errors, said
    watch.check()
    return said


def cases() -> list[Case]:
    return [
        Case(GROUP, f"{loader}: {name}", _attack(loader, name), seconds=60, megabytes=1500)
        for loader, (_, _, _, changes) in LOADERS.items()
        for name in changes
    ]
