"""Files as trainings of others write them: keys, modules around names, shards, 8 bits, LoRA."""

import json

import pytest
import timm
import torch
from helpers.cases import each
from safetensors.torch import save_file

import hypvision
from hypvision.checkpoints.lora import merge_lora
from hypvision.checkpoints.match import load_into, load_trained, nonfinite_names
from hypvision.checkpoints.read import network_weights, read, stored_weights
from hypvision.checkpoints.wrappers import KEYS, common_prefix, without_prefix
from hypvision.io.errors import HypvisionError

NAME = "test_vit"


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(3)
    return timm.create_model(NAME, num_classes=3).state_dict()


def renamed(weights, change):
    return {change(name): value for name, value in weights.items()}


def inside(name, word):
    """A name with a wrapper around a block, as activation checkpoints and FSDP have it."""
    first, _, rest = name.partition(".")
    if first != "blocks":
        return name
    number, _, rest = rest.partition(".")
    return f"blocks.{number}.{word}.{rest}"


# What trainings save, from a state dict.
FILES = {
    **{key: lambda w, key=key: {key: w, "epoch": 3} for key in KEYS},
    "an average inside": lambda w: {"ema": {"module": w, "updates": 5}},
    "an unknown key": lambda w: {"weights_of_mine": w, "epoch": 3},
    "Lightning": lambda w: {
        "pytorch-lightning_version": "2.4", "state_dict": renamed(w, lambda n: f"model.{n}")
    },
    "Lightning, compiled": lambda w: {
        "state_dict": renamed(w, lambda n: f"net._orig_mod.{n}"), "hyper_parameters": {"lr": 0.1}
    },
    "Lightning, FSDP": lambda w: renamed(
        w, lambda n: f"_forward_module.model.{inside(n, '_fsdp_wrapped_module')}"
    ),
    "DataParallel": lambda w: {"state_dict": renamed(w, lambda n: f"module.{n}")},
    "compile in DDP": lambda w: renamed(w, lambda n: f"module._orig_mod.{n}"),
    "activation checkpoints": lambda w: renamed(
        w, lambda n: inside(n, "_checkpoint_wrapped_module")
    ),
    "FSDP and checkpoints": lambda w: renamed(
        w,
        lambda n: (
            "_fsdp_wrapped_module."
            + inside(n, "_fsdp_wrapped_module._checkpoint_wrapped_module")
        ),
    ),
    "compiled blocks": lambda w: renamed(w, lambda n: inside(n, "_orig_mod")),
    "AveragedModel": lambda w: {
        "n_averaged": torch.tensor(9), **renamed(w, lambda n: f"module.{n}")
    },
    "teacher and student": lambda w: {
        **renamed({n: v + 1 for n, v in w.items()}, lambda n: f"student.{n}"),
        **renamed(w, lambda n: f"teacher.{n}"),
    },
    "fp8": lambda w: {
        n: v.to(torch.float8_e4m3fn) if v.dim() > 1 else v for n, v in w.items()
    },
}  # fmt: skip


def by_load(path):
    return hypvision.load(path, model=NAME, num_classes=3)


def by_timm(path):
    from hypvision.models.timm_models import create_model

    return create_model(NAME, num_classes=3, checkpoint_path=path)


def by_start(path):
    pytest.importorskip("mmengine")
    from hypvision.tasks.classification import load_start

    model = timm.create_model(NAME, num_classes=3)
    load_start(model, str(path))
    return model


def by_engine(path):
    """As ``hypvision test`` and ``load_from`` of mmengine."""
    pytest.importorskip("mmengine")
    from hypvision.checkpoints.match import check_compatible, engine_names
    from hypvision.tasks import ImageClassifier

    model = ImageClassifier(dict(model_name=NAME, num_classes=3))
    load_trained(model, read(path), path)
    again = ImageClassifier(dict(model_name=NAME, num_classes=3))
    state = engine_names(again, read(path))["state_dict"]
    check_compatible(again, state, path)
    again.load_state_dict(state, strict=False)
    assert all(torch.equal(v, model.state_dict()[n]) for n, v in again.state_dict().items())
    return model.backbone


def by_init_cfg(path):
    pytest.importorskip("mmcv")
    from hypvision.openmmlab import TimmBackbone

    backbone = TimmBackbone(NAME, out_indices=(0, 1), checkpoint_path=str(path))
    return backbone.timm_model.model


# Every kind of file by one loader; by the others a key, a wrapper around names and around blocks,
# what is refused, and what is rounded: they share the reader.
LOADERS = [by_load, by_timm, by_start, by_engine, by_init_cfg]
SHARED = ["state_dict", "Lightning, FSDP", "teacher and student", "fp8"]


@each(
    "kind, load",
    [
        *((kind, by_load) for kind in FILES),
        *((kind, load) for load in LOADERS[1:] for kind in SHARED),
    ],
)
def test_every_loader_finds_the_weights(tmp_path, weights, kind, load):
    torch.save(FILES[kind](weights), tmp_path / "file.pth")
    if kind == "teacher and student" and load in (by_load, by_timm, by_engine):
        # the teacher is taken, but not without a word about the other
        with pytest.raises((HypvisionError, RuntimeError), match="student.cls_token"):
            load(tmp_path / "file.pth")
        return
    rounding = 0.07 if kind == "fp8" else 0  # 3 bits of mantissa
    for name, value in load(tmp_path / "file.pth").state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=rounding, atol=0.02 * rounding)


CLIPS = {
    "open_clip in Lightning": lambda w: {"state_dict": renamed(w, lambda n: f"clip_model.{n}")},
    "transformers in Lightning": lambda w: renamed(to_hugging_face(w), lambda n: f"net.{n}"),
    "compiled": lambda w: {"model": renamed(w, lambda n: f"_orig_mod.{n}")},
}


def to_hugging_face(weights):
    from hypvision.clip.hugging_face import to_hugging_face as convert

    return convert(weights)


@pytest.fixture
def clip(monkeypatch):
    pytest.importorskip("open_clip")
    from hypvision.clip.models import ARCHITECTURES, create_clip

    vision = dict(image_size=32, patch_size=8, head_width=16, layers=2, width=32)
    text = dict(context_length=77, vocab_size=49408, heads=2, layers=2, width=32)
    sizes = dict(embed_dim=32, vision_cfg=vision, text_cfg=text)
    monkeypatch.setitem(ARCHITECTURES, "wrapped-s8", sizes)
    torch.manual_seed(0)
    return create_clip("wrapped-s8").model


@pytest.mark.parametrize("kind", CLIPS)
def test_clips_behind_wrappers(tmp_path, clip, kind):
    from hypvision.clip.models import create_clip

    torch.save(CLIPS[kind](clip.state_dict()), tmp_path / "clip.pth")
    found = create_clip("wrapped-s8", tmp_path / "clip.pth").model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in clip.state_dict().items())


def test_clips_of_another_size_say_the_option(tmp_path, clip):
    from hypvision.clip.models import create_clip
    from hypvision.clip.names import clip_options

    larger = create_clip("wrapped-s8", force_image_size=48, force_context_length=20).model
    path = tmp_path / "clip.pth"
    torch.save(larger.state_dict(), path)
    with pytest.raises(
        HypvisionError,
        match="force_image_size=48 .as in the file. or 32 .resized. and force_context_length=20",
    ):
        create_clip("wrapped-s8", path)
    text = f"wrapped-s8:{path},force_image_size=48,force_context_length=20"
    same = create_clip(**clip_options(text))
    assert same.model.visual.image_size == (48, 48) and same.tokenizer(["a"]).shape == (1, 20)
    assert torch.equal(same.model.positional_embedding, larger.positional_embedding)
    resized = create_clip("wrapped-s8", path, force_image_size=32, force_context_length=77)
    assert len(resized.model.visual.positional_embedding) == 17


def test_files_without_one_set_of_weights_name_their_keys(weights):
    with pytest.raises(HypvisionError, match="several sets of weights, under the keys 'a', 'b'"):
        stored_weights({"a": weights, "b": weights})
    model = timm.create_model(NAME, num_classes=3)
    strange = {f"encoder_q.{name}x": value for name, value in weights.items()}
    for extra in (False, True):
        with pytest.raises(HypvisionError, match="unknown to the model: encoder_q.cls_tokenx"):
            load_into(model, strange, "FILE", "it", "Give another.", extra=extra)
    with pytest.raises(HypvisionError, match="FSDP has made from several"):
        stored_weights({"blocks.0._flat_param": torch.ones(3)})


def test_prefixes_are_taken_off_where_they_are_clear(weights):
    given = {f"net.{name}": value for name, value in weights.items()}
    few = dict(list(given.items())[:3])
    assert without_prefix(weights, few).keys() == few.keys()
    assert common_prefix(weights, given) == "net_" and common_prefix(weights, weights) == ""
    both = {**given, "criterion.weight": torch.ones(2)}
    assert without_prefix(weights, both).keys() == {*weights, "criterion.weight"}
    # a name that is there already is not replaced
    doubled = {**given, "cls_token": torch.ones(2)}
    assert without_prefix(weights, doubled).keys() == doubled.keys()


def shards(folder, weights):
    names = list(weights)
    places = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        save_file({name: weights[name].contiguous() for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index


@pytest.mark.parametrize("load", LOADERS)
def test_shards_with_an_index(tmp_path, weights, load):
    index = shards(tmp_path, weights)
    for path in (index, tmp_path):
        found = load(path).state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in found.items())


def test_shards_that_are_not_whole(tmp_path, weights):
    index = shards(tmp_path, weights)
    save_file({"cls_token": weights["cls_token"]}, tmp_path / "model-0.safetensors")
    with pytest.raises(HypvisionError, match="lack .* weights that it names"):
        read(index)
    (tmp_path / "model-0.safetensors").unlink()
    with pytest.raises(HypvisionError, match="model-0.safetensors"):
        read(index)
    index.write_text(json.dumps({"weight_map": {"a": "../../model.safetensors"}}))
    with pytest.raises(HypvisionError):
        read(index)
    with pytest.raises(HypvisionError, match="is a folder, which has none of"):
        read(tmp_path / "..")
    (tmp_path / "sharded").mkdir()
    (tmp_path / "sharded/.metadata").touch()
    with pytest.raises(HypvisionError, match="format_utils dcp_to_torch"):
        read(tmp_path / "sharded")


def test_numbers_of_eight_bits(tmp_path, weights):
    eight = {"a.weight": torch.randn(4, 4).to(torch.float8_e5m2)}
    assert nonfinite_names(eight) == []
    bad = {"a.weight": torch.full((4,), float("nan")).to(torch.float8_e4m3fn)}
    assert nonfinite_names(bad) == ["a.weight"]
    save_file(eight, tmp_path / "eight.safetensors")
    found = network_weights(read(tmp_path / "eight.safetensors"))
    assert torch.equal(found["a.weight"], eight["a.weight"].float())
    # numbers of 8 bits with scales beside them are another model without these
    scaled = {**weights, "blocks.0.attn.qkv.weight_scale": torch.ones(())}
    torch.save(scaled, tmp_path / "scaled.pth")
    with pytest.raises(HypvisionError, match="weight_scale"):
        by_load(tmp_path / "scaled.pth")


# LoRA of peft, against its own merge


def tuned(model, **options):
    peft = pytest.importorskip("peft")
    tuned = peft.get_peft_model(model, peft.LoraConfig(**options))
    torch.manual_seed(5)
    for name, parameter in tuned.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
        elif "modules_to_save" in name:
            parameter.data.add_(1)
    return tuned


LORAS = {
    "linear": dict(r=2, lora_alpha=6, target_modules=["qkv", "fc1"], modules_to_save=["head"]),
    "rslora": dict(r=4, lora_alpha=3, target_modules=["proj"], use_rslora=True),
    "patterns": dict(
        r=2, target_modules=["qkv"], rank_pattern={"blocks.0.attn.qkv": 3},
        alpha_pattern={"blocks.1.attn.qkv": 32},
    ),
    "convolution": dict(r=2, target_modules=["patch_embed.proj"]),
}  # fmt: skip


@each("kind", LORAS)
def test_lora_of_peft_is_merged_as_peft_does(tmp_path, kind):
    torch.manual_seed(1)
    model = timm.create_model(NAME, num_classes=3).eval()
    base = {name: value.clone() for name, value in model.state_dict().items()}
    adapted = tuned(model, **LORAS[kind])
    adapted.save_pretrained(tmp_path)
    expected = adapted.merge_and_unload().eval()
    again = timm.create_model(NAME, num_classes=3).eval()
    again.load_state_dict(base)
    merge_lora(again, tmp_path)
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=1e-5, atol=1e-6)
    assert any(not torch.equal(value, base[name]) for name, value in again.state_dict().items())
    with pytest.raises(HypvisionError, match=r"LoRA of peft, without .*merge_lora\(model"):
        read(tmp_path)
    with pytest.raises(HypvisionError, match="does not fit the model: it changes"):
        merge_lora(timm.create_model("test_resnet"), tmp_path)


def test_a_lora_beside_whole_weights_is_refused(tmp_path):
    adapted = tuned(timm.create_model(NAME, num_classes=3), **LORAS["linear"])
    torch.save(adapted.state_dict(), tmp_path / "whole.pth")
    for load in LOADERS:
        with pytest.raises((HypvisionError, RuntimeError), match="lora_A"):
            load(tmp_path / "whole.pth")


def test_other_methods_of_peft_are_refused(tmp_path):
    options = dict(r=2, target_modules=["qkv"])
    tuned(timm.create_model(NAME), use_dora=True, **options).save_pretrained(tmp_path)
    with pytest.raises(HypvisionError, match="is a DoRA, but only a LoRA can be merged here"):
        merge_lora(timm.create_model(NAME), tmp_path)


@pytest.mark.parametrize("names", ["open_clip", "transformers"])
def test_lora_of_a_clip(tmp_path, clip, names):
    """By the names of open_clip's modules, and by those of transformers' CLIPModel."""
    from hypvision.clip.models import create_clip
    from hypvision.clip.names import clip_options

    torch.save(clip.state_dict(), tmp_path / "clip.pth")
    module, weight = {
        "open_clip": ("visual.transformer.resblocks.0.mlp.c_fc", (128, 32)),
        "transformers": ("vision_model.encoder.layers.0.self_attn.k_proj", (32, 32)),
    }[names]
    a, b = torch.randn(2, weight[1]), torch.randn(weight[0], 2)
    start = f"base_model.model.{module}.lora_"
    save_file(
        {f"{start}A.weight": a, f"{start}B.weight": b}, tmp_path / "adapter_model.safetensors"
    )
    config = dict(peft_type="LORA", r=2, lora_alpha=6, target_modules=["k_proj"])
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    text = f"wrapped-s8:{tmp_path}/clip.pth,lora={tmp_path}"
    found = create_clip(**clip_options(text)).model.state_dict()
    change = 3 * b @ a
    expected = dict(clip.state_dict())
    if names == "open_clip":
        expected[f"{module}.weight"] = expected[f"{module}.weight"] + change
    else:
        name = "visual.transformer.resblocks.0.attn.in_proj_weight"
        q, k, v = expected[name].chunk(3)
        expected[name] = torch.cat([q, k + change, v])
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_a_dict_in_itself_ends():
    weights = {"a.weight": torch.ones(2)}
    weights["state_dict"] = weights
    assert list(network_weights(weights)) == ["a.weight"]
