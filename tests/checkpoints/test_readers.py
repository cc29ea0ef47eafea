"""Every entry point that loads checkpoints: good files of each family load by the same names,
hostile ones by none."""

import copy
import importlib
import logging
import re
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import timm
import torch
from helpers.cases import each
from helpers.hostile_checkpoints import DAMAGED, hidden_method, write_damaged
from helpers.zoo import MICRO, NAME
from references.hcformer import ReferenceHCFormer
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import hypvision
from hypvision.checkpoints.match import check_compatible
from hypvision.checkpoints.read import network_weights, read, read_file
from hypvision.checkpoints.storage import write_weights
from hypvision.clip.models import ARCHITECTURES
from hypvision.clip.prompting.official import FEW_SHOT
from hypvision.io.errors import HypvisionError
from hypvision.models.hcformer_checkpoint import hcformer_to_official
from hypvision.models.himapper_checkpoint import himapper_to_official
from hypvision.models.lorentz_resnet_checkpoint import hyperboliccv_to_official
from hypvision.models.timm_models import create_model
from hypvision.zoo.backbones import load_weights
from hypvision.zoo.convert import CONVERTERS, convert_file

ARGUMENTS = {
    key: tuple(value) if isinstance(value, list) else value for key, value in MICRO.items()
}
FAMILIES = {
    "hcformer": ("hcformer_nano", ARGUMENTS, hcformer_to_official),
    "hyperboliccv": (
        "hcnn_resnet18",
        dict(layers=(1, 1, 1, 1), widths=(4, 4, 8, 8)),
        hyperboliccv_to_official,
    ),
    "himapper": (
        "himapper",
        dict(
            backbone="test_resnet",
            leaves=4,
            levels=2,
            width=16,
            preset="official",
            eval_noise="mean",
        ),
        himapper_to_official,
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """A small trained network with its name, arguments and official names."""
    name, arguments, to_official = FAMILIES[request.param]
    torch.manual_seed(1)
    model = timm.create_model(name, num_classes=3, **arguments).eval()
    for value in model.state_dict().values():
        if value.is_floating_point() and value.dim() < 2:
            value.add_(0.01 * torch.rand_like(value))
    return SimpleNamespace(
        family=request.param, name=name, arguments=arguments, model=model, to_official=to_official
    )


def write(kind, family, folder):
    """A file with the weights of a network as each origin writes it."""
    weights = family.model.state_dict()
    path = folder / f"{kind}.pth"
    if kind == "zoo":
        write_weights(weights, path.with_suffix(".safetensors"), "float32")
        return path.with_suffix(".safetensors")
    if kind == "official":
        torch.save({"model": family.to_official(weights), "epoch": 3}, path)
    elif kind == "timm":
        torch.save(
            {"state_dict": {f"module.{name}": value for name, value in weights.items()}}, path
        )
    elif kind == "training":
        torch.save(
            {
                "state_dict": {f"backbone.{name}": value for name, value in weights.items()},
                "meta": {"epoch": 1, "best": np.float64(0.5), "seen": np.arange(3)},
            },
            path,
        )
    return path


def by_path(family, path):
    return timm.create_model(
        family.name, num_classes=3, checkpoint_path=str(path), **family.arguments
    )


def by_overlay(family, path):
    overlay = dict(file=str(path), num_classes=3)
    return timm.create_model(
        family.name,
        num_classes=3,
        pretrained=True,
        pretrained_cfg_overlay=overlay,
        **family.arguments,
    )


def by_config(family, path):
    """As the backbone of a config is made."""
    return create_model(family.name, num_classes=3, checkpoint_path=path, **family.arguments)


def by_load(family, path):
    return hypvision.load(path, model=family.name, **{"num_classes": 3, **family.arguments})


def by_weights_option(family, path):
    model = timm.create_model(family.name, num_classes=3, **family.arguments)
    load_weights(model, path)
    with torch.no_grad():  # of the classifier, which these commands do not load
        for name, value in model.state_dict().items():
            if name.startswith(("head.", "trunk.fc.", "trunk.head.", "head_manifold")):
                value.copy_(family.model.state_dict()[name])
    return model


def by_state_dict(family, path):
    model = timm.create_model(family.name, num_classes=3, **family.arguments)
    model.load_state_dict(read(path))
    return model


def by_load_from(family, path):
    """As mmengine's Runner loads ``load_from``, for a classifier of the engine."""
    pytest.importorskip("mmengine")
    from mmengine.runner import CheckpointLoader
    from mmengine.runner.checkpoint import load_state_dict

    from hypvision.engine.checkpoint import EngineNamesHook, install
    from hypvision.tasks import ImageClassifier

    install()
    model = ImageClassifier({"model_name": family.name, "num_classes": 3, **family.arguments})
    checkpoint = CheckpointLoader.load_checkpoint(str(path))
    EngineNamesHook().after_load_checkpoint(SimpleNamespace(model=model), checkpoint)
    check_compatible(model, checkpoint["state_dict"], path)
    load_state_dict(model, checkpoint["state_dict"], strict=True)
    return model.backbone


def by_init_cfg(family, path):
    """As the backbone of a segmenter or detector; the classifier, which it has not, is put back for
    the comparison."""
    pytest.importorskip("mmcv")
    from hypvision.openmmlab import TimmBackbone

    init_cfg = dict(type="Pretrained", checkpoint=str(path))
    backbone = TimmBackbone(family.name, out_indices=(0, 1), init_cfg=init_cfg, **family.arguments)
    backbone.init_weights()
    expected = family.model.state_dict()
    found = {
        name.removeprefix("model."): value
        for name, value in backbone.timm_model.state_dict().items()
    }
    return SimpleNamespace(
        state_dict=lambda: {**expected, **{n: v for n, v in found.items() if n in expected}}
    )


ENTRY_POINTS = {
    "checkpoint_path": by_path,
    "pretrained_cfg_overlay": by_overlay,
    "hypvision.load": by_load,
    "a config's checkpoint_path": by_config,
    "--weights": by_weights_option,
    "load_state_dict": by_state_dict,
    "load_from": by_load_from,
    "init_cfg": by_init_cfg,
}


# Every file of one family; of the others, which differ in their official names, that with these
# names.
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("hcformer", "timm"),
        ("hcformer", "training"),
        ("hcformer", "zoo"),
        *((name, "official") for name in FAMILIES),
    ],
    indirect=["family"],
)
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_every_file_loads_by_every_entry_point(tmp_path, family, kind, entry_point):
    path = write(kind, family, tmp_path)
    model = ENTRY_POINTS[entry_point](family, path)
    expected = family.model.state_dict()
    assert model.state_dict().keys() == expected.keys()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-6, msg=name)


def test_a_trained_file_converts_to_the_official_names(tmp_path, family):
    path = write("training", family, tmp_path)
    convert_file(family.family, path, tmp_path / "official.safetensors", to_official=True)
    again = by_path(family, tmp_path / "official.safetensors")
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(x), family.model(x), rtol=1e-4, atol=1e-5)


# Families whose models are not timm models: CLIP and everything built on it, language models


class Whole(NamedTuple):
    """A model of the engine and the part of it that its official files hold.

    Attributes:
        model: its config.
        module: what registers it.
        part: the name that it keeps that network by; empty for the whole.
        official: weights of the part by the official names.
        load: a function of ours, beside those of all families, that loads a file of the part; gives
            a state dict.
    """

    model: dict[str, Any]
    module: str
    part: str
    official: Callable[[dict[str, Any]], dict[str, Any]]
    load: Callable[[Any, Any], dict[str, Any]]


CLIP = dict(name="readers-s8")
SEGMENTATION = "hypvision.openmmlab.open_vocabulary.segmentation"
SEGMENTER = dict(
    type="HyperCLIPSegmentor", clip=CLIP, upsample=(8, 8), resolution=64, crop=64, slide=96,
    head=dict(
        hidden=8, heads=2, layers=1, guidance=8, text_guidance=8, decoder=(8, 8),
        decoder_guidance=(4, 4), pad_len=4
    ),
)  # fmt: skip


def load_into_segmenter(whole, path):
    from hypvision.clip.segmentation.segment import load_segmenter

    return load_segmenter(path, config=whole.model).state_dict()


def load_clip(whole, path):
    from hypvision.clip.models import create_clip

    return create_clip(CLIP["name"], path).model.state_dict()


def load_meru(whole, path):
    from hypvision.clip.models import create_clip

    return create_clip("meru-vit-s-16", path).model.state_dict()


def load_language_model(whole, path):
    pytest.importorskip("transformers")
    from hypvision.helm.huggingface import HelmForCausalLM

    return HelmForCausalLM.from_official(path).model.state_dict()


def load_host(whole, path):
    from hypvision.clip.models import create_clip
    from hypvision.clip.prompting import build_host, load_learned

    options = dict(whole.model["host"])
    host = build_host(create_clip(CLIP["name"]), options.pop("name"), **options)
    load_learned(host, path)
    return {f"host.{name}": value for name, value in host.state_dict().items()}


def few_shot(method):
    options = {
        "maple": dict(depth=2),
        "promptsrc": dict(depth=2, templates=2),
        "promptkd": dict(depth=2),
    }
    options["tip-adapter"] = dict(keys=6, classes=3, alpha=2.0)
    if method == "promptkd":
        options["promptkd"]["teacher"] = dict(clip=CLIP, host=dict(name="zeroshot"))
    host = dict(name=method, **options.get(method, {}))
    model = dict(type="FewShotCLIP", clip=CLIP, host=host)
    return Whole(model, "hypvision.tasks.few_shot", "", CONVERTERS[method].to_official, load_host)


def with_frozen(weights):
    """An official file of a few-shot training, which has the frozen CLIP beside what was
    learned."""
    return {
        **weights,
        "image_encoder.ln_post.weight": torch.ones(32),
        "logit_scale": torch.tensor(1 / 0.07).log(),
    }


WHOLES = {
    "helm": Whole(
        dict(type="LanguageModel", preset="helm_d_tiny", n_layers=1),
        "hypvision.tasks.language", "decoder", CONVERTERS["helm"].to_official, load_language_model,
    ),
    "hyperclip": Whole(
        dict(SEGMENTER, adapter=dict(block=32)),
        SEGMENTATION, "", CONVERTERS["hyperclip"].to_official, load_into_segmenter,
    ),
    "catseg": Whole(
        dict(SEGMENTER, tune="attention"), SEGMENTATION, "", CONVERTERS["catseg"].to_official,
        load_into_segmenter
    ),
    "hf-clip": Whole(
        dict(type="CLIPContrast", clip=CLIP),
        "hypvision.tasks.contrastive", "clip", CONVERTERS["hf-clip"].to_official, load_clip,
    ),
    "meru": Whole(
        dict(type="CLIPContrast", clip=dict(name="meru-vit-s-16")),
        "hypvision.tasks.contrastive", "clip", CONVERTERS["meru"].to_official, load_meru,
    ),
    **{method: few_shot(method) for method in FEW_SHOT},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def small_clip():
    """A CLIP model that takes no second to make and write."""
    size = dict(layers=3, width=32)
    vision = dict(image_size=32, patch_size=8, head_width=16, **size)
    text = dict(context_length=77, vocab_size=49408, heads=2, **size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            ARCHITECTURES, CLIP["name"], dict(embed_dim=32, vision_cfg=vision, text_cfg=text)
        )
        vision = dict(
            image_size=32, timm_model_name="test_vit", timm_pool="token", timm_proj="linear"
        )
        small = dict(
            embed_dim=32, vision_cfg=vision, text_cfg=text, geometry="lorentz", vision_heads=2
        )
        patch.setitem(ARCHITECTURES, "meru-vit-s-16", small)
        yield


def build_whole(whole):
    """The model of the engine with weights that no other has."""
    pytest.importorskip("mmengine")
    pytest.importorskip("open_clip")
    from mmengine.registry import MODELS, DefaultScope

    if whole.module == SEGMENTATION:
        pytest.importorskip("mmseg")
    importlib.import_module(whole.module)
    with DefaultScope.overwrite_default_scope(scope_of(whole)):
        return MODELS.build(copy.deepcopy(whole.model))


def scope_of(whole):
    return "mmseg" if whole.module == SEGMENTATION else "mmengine"


@pytest.fixture(scope="module", params=WHOLES)
def whole(request, tmp_path_factory):
    """A family, a trained model of it, and the files of it that each origin writes."""
    family, folder = WHOLES[request.param], tmp_path_factory.mktemp(request.param)
    torch.manual_seed(1)
    state = build_whole(family).state_dict()
    part = {name.removeprefix(f"{family.part}."): value for name, value in state.items()}
    official = family.official(part)
    torch.save(
        {"model": with_frozen(official) if request.param in FEW_SHOT else official},
        folder / "official.pth",
    )
    save_file(CONVERTERS[request.param].from_official(official), folder / "converted.safetensors")
    torch.save({"state_dict": state, "meta": {"epoch": 1}}, folder / "training.pth")
    return SimpleNamespace(family=family, state=state, part=part, folder=folder, official=official)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6, msg=name)


def file_of(whole, kind):
    return next(whole.folder.glob(f"{kind}.*"))


def test_models_of_the_engine_load_every_file(whole):
    """By ``load_from``, as :func:`by_load_from`, and as ``test`` and ``predict`` do."""
    from mmengine.runner import CheckpointLoader
    from mmengine.runner.checkpoint import load_state_dict

    from hypvision.engine.checkpoint import EngineNamesHook, install

    install()
    model = build_whole(whole.family)
    for kind in ("official", "converted", "training"):
        with torch.no_grad():
            for value in model.state_dict().values():
                value.zero_()
        path = file_of(whole, kind)
        checkpoint = CheckpointLoader.load_checkpoint(str(path))
        EngineNamesHook().after_load_checkpoint(SimpleNamespace(model=model), checkpoint)
        weights = checkpoint.get("state_dict", checkpoint)
        check_compatible(model, weights, path)
        load_state_dict(model, weights, strict=True)
        same(model.state_dict(), whole.state)


@pytest.mark.parametrize("kind", ["official", "converted", "training"])
def test_functions_of_a_family_load_every_file(whole, kind):
    expected = (
        whole.part
        if whole.family.load in (load_clip, load_meru, load_language_model)
        else whole.state
    )
    found = whole.family.load(whole.family, file_of(whole, kind))
    same({name: found[name] for name in expected}, expected)


@pytest.mark.parametrize("whole", ["helm", "hyperclip", "coop"], indirect=True)
def test_load_takes_a_config(whole):
    config = whole.folder / "config.py"
    imports = dict(imports=[whole.family.module])
    config.write_text(
        f"default_scope = {scope_of(whole.family)!r}\nmodel = "
        f"{whole.family.model!r}\ncustom_imports = {imports!r}\n"
    )
    model = hypvision.load(file_of(whole, "official"), model=str(config))
    assert not model.training
    same(model.state_dict(), whole.state)


# Entries of official files beside those that our converters write.
BESIDE = {
    "catseg": {
        "clip_pixel_mean": torch.tensor([122.7709383, 116.7460125, 104.09373615]).reshape(3, 1, 1)
    },
    "helm": {
        "attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1),
        "freqs_complex": torch.polar(
            torch.ones(5, 16), torch.outer(torch.arange(5), 1e4 ** (-torch.arange(16) / 16))
        ),
    },
    "hf-clip": {"text_model.embeddings.position_ids": torch.arange(77)[None]},
    "himapper": {"last_l.Llinear.bias": torch.zeros(128)},
    "hyperclip": {
        "clip_pixel_std": torch.tensor([68.5005327, 66.6321579, 70.3231630]).reshape(3, 1, 1)
    },
}
# Entries of official files that the official code itself never uses.
UNUSED = {
    "helm": r".*\.add_pos\.\w+",
    "himapper": r"last_l\.Llinear\.bias",
    "hyperboliccv": r".*linearized_kernel\.scale",
}


@pytest.mark.quick(*sorted({*CONVERTERS} - {"helm", "hyperclip"}))
@pytest.mark.parametrize("name", CONVERTERS)
def test_no_entry_of_an_official_file_is_dropped(name):
    """Another number in any entry gives another model, or an error that names the entry."""
    torch.manual_seed(1)
    if name in FAMILIES:
        network, arguments, to_official = FAMILIES[name]
        official = to_official(timm.create_model(network, num_classes=3, **arguments).state_dict())
    else:
        state = build_whole(WHOLES[name]).state_dict()
        part = f"{WHOLES[name].part}."
        official = WHOLES[name].official(
            {key.removeprefix(part): value for key, value in state.items()}
        )
    official = {**official, **BESIDE.get(name, {})}
    converter = CONVERTERS[name]

    def read_as_ours(weights):
        return {
            **converter.from_official(weights),
            **{key: [value] for key, value in converter.arguments(weights).items()},
        }

    expected = read_as_ours(official)
    kinds = {
        re.sub(r"\d+", "N", entry): entry
        for entry in official
        if not re.fullmatch(UNUSED.get(name, "$"), entry)
    }
    for entry in kinds.values():  # of equal layers the last
        value = official[entry]
        other = (
            ~value
            if value.dtype == torch.bool
            else value + 1
            if not value.is_floating_point()
            else 1.5 * value + 0.25
        )
        try:
            found = read_as_ours({**official, entry: other})
        except HypvisionError as error:
            assert entry.split("token_mixer.")[-1] in str(error)
            continue
        changed = [key for key in expected if not same_values(found[key], expected[key])]
        assert changed or found.keys() != expected.keys(), entry


def same_values(found, expected):
    return torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected


def test_every_converter_is_tested():
    assert CONVERTERS.keys() == FAMILIES.keys() | WHOLES.keys()


def test_load_takes_the_name_of_a_clip_model(tmp_path):
    pytest.importorskip("open_clip")
    from hypvision.clip.models import create_clip

    torch.manual_seed(1)
    weights = create_clip(CLIP["name"]).model.state_dict()
    torch.save(CONVERTERS["hf-clip"].to_official(weights), tmp_path / "clip.pth")
    model = hypvision.load(tmp_path / "clip.pth", model=CLIP["name"])
    same(model.state_dict(), weights)
    assert model.tokenizer(["a"]).shape == (1, 77)
    with pytest.raises(HypvisionError, match="There is no model 'readers-s9'"):
        hypvision.load(tmp_path / "clip.pth", model="readers-s9")
    with pytest.raises(HypvisionError, match="contains the arguments of its model: leave out"):
        hypvision.load(tmp_path / "clip.pth", model="hcformer-nano_cifar10", num_classes=3)


def test_feature_maps_take_files_of_classifiers(tmp_path):
    family = SimpleNamespace(
        model=timm.create_model("hcnn_resnet18", num_classes=3, **FAMILIES["hyperboliccv"][1])
    )
    path = write("training", family, tmp_path)
    maps = timm.create_model(
        "hcnn_resnet18", features_only=True, out_indices=(1, 2), checkpoint_path=str(path),
        **FAMILIES["hyperboliccv"][1],
    )  # fmt: skip
    for name, value in maps.model.state_dict().items():
        assert torch.equal(value, family.model.state_dict()[name]), name


def test_names_of_the_zoo_stand_for_files(zoo, micro):
    """Also where timm itself opens files only; and the config of the model does not keep the
    weights."""
    family = SimpleNamespace(name="hcformer_nano", arguments=ARGUMENTS)
    for load in (by_overlay, by_config):
        for address in (f"zoo:{NAME}", f"file://{zoo}#{NAME}"):
            model = load(family, address)
            assert all(
                torch.equal(value, micro[0].state_dict()[name])
                for name, value in model.state_dict().items()
            )
            assert "state_dict" not in model.pretrained_cfg
    by_url = dict(url=f"zoo:{NAME}", num_classes=3)
    create_model("hcformer_nano", True, pretrained_cfg_overlay=by_url, num_classes=3, **ARGUMENTS)
    with pytest.raises(HypvisionError, match="There is no checkpoint 'none.pth'"):
        by_overlay(family, "none.pth")


# Weights that only the file has


def named(load, path, name, caplog):
    """Whether a loader names a weight that its model lacks, by an error or a warning."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        try:
            load(path)
        except (HypvisionError, RuntimeError) as error:
            return name in str(error)
    return name in caplog.text


def by_start(family, path):
    """As ``model.checkpoint`` of a config, from which a training starts."""
    pytest.importorskip("mmengine")
    from hypvision.tasks.classification import load_start

    load_start(timm.create_model(family.name, num_classes=3, **family.arguments), str(path))


# (the weight, whether it is an adapter's): beside the network, and inside of its parts
TOO_MANY = {
    "a LoRA": ("{part}.lora_A.weight", True),
    "AdaptFormer": ("{part}.adaptmlp.scale", True),
    "prompts": ("prompt_embeddings", True),
    "context words": ("prompt_learner.ctx", True),
    "CLIP-Adapter": ("image_adapter.fc.0.weight", True),
    "a scale": ("{part}.gamma_of_others", False),
    "a head": ("other_head.weight", False),
}
BY_KIND = ("hypvision.load", "model.checkpoint")  # take every kind
OTHERS = [name for name in ENTRY_POINTS if name not in BY_KIND]


# By the others an adapter's weight inside of the network and beside it, and one of no adapter.
@pytest.mark.parametrize("family", ["hcformer"], indirect=True)
@each(
    "kind, entry_point",
    [
        *((kind, name) for name in BY_KIND for kind in TOO_MANY),
        *((kind, name) for name in OTHERS for kind in ("a LoRA", "prompts", "a scale")),
    ],
)
def test_every_loader_names_a_weight_too_many(tmp_path, family, kind, entry_point, caplog):
    name = TOO_MANY[kind][0].format(part="stages.0.blocks.0")
    weights = {**family.model.state_dict(), name: torch.ones(2, 2)}
    torch.save(
        {"state_dict": {f"backbone.{key}": value for key, value in weights.items()}},
        tmp_path / "many.pth",
    )
    load = {**ENTRY_POINTS, "model.checkpoint": by_start}[entry_point]
    assert named(lambda path: load(family, path), tmp_path / "many.pth", name, caplog)
    if TOO_MANY[kind][1]:
        with pytest.raises((HypvisionError, RuntimeError)):
            load(family, tmp_path / "many.pth")


def by_engine(whole):
    """As ``hypvision test`` and ``predict``, and as a published model is built."""
    from hypvision.checkpoints.match import load_trained

    model = build_whole(whole.family)
    return lambda path: load_trained(model, read(path), path)


@pytest.mark.parametrize("kind", ["a LoRA", "a scale"])
def test_loaders_of_a_family_name_a_weight_too_many(tmp_path, whole, kind, caplog):
    """The function of the family, the engine, and the converter."""
    training = read(file_of(whole, "training"))["state_dict"]
    last = next(name for name in reversed(training) if name.count(".") > 1)
    name = TOO_MANY[kind][0].format(part=last.rpartition(".")[0])
    torch.save({"state_dict": {**training, name: torch.ones(2, 2)}}, tmp_path / "many.pth")
    bare = name.removeprefix(f"{whole.family.part}.").removeprefix("host.")
    for load in (lambda path: whole.family.load(whole.family, path), by_engine(whole)):
        assert named(load, tmp_path / "many.pth", bare, caplog)
    official = whole.official
    places = [key for key in official if "." in key and ".add_pos." not in key]
    last = places[-1] if places else "layer.weight"
    name = TOO_MANY[kind][0].format(part=last.rpartition(".")[0])
    torch.save({**official, name: torch.ones(2, 2)}, tmp_path / "official.pth")
    family = next(name for name, each in WHOLES.items() if each is whole.family)
    target = tmp_path / "out.safetensors"
    convert = lambda path: convert_file(family, path, target)  # noqa: E731
    # What the converter cannot judge, as it knows no CLIP, the converted file still has; or it has
    # nothing of the frozen tower, and loading the official file compares that.
    frozen = family == "promptsrc" and kind == "a scale"
    if not frozen and not named(convert, tmp_path / "official.pth", name, caplog):
        assert name.rpartition(".")[2] in " ".join(load_file(target))


def test_clips_tuned_by_others_are_not_loaded_as_untuned(tmp_path, caplog):
    pytest.importorskip("open_clip")
    from hypvision.clip.models import create_clip

    weights = create_clip(CLIP["name"]).model.state_dict()
    for kind, (name, tuned) in TOO_MANY.items():
        name = name.format(part="visual.transformer.resblocks.0")
        torch.save({**weights, name: torch.ones(2, 2)}, tmp_path / "clip.pth")
        load = lambda path: create_clip(CLIP["name"], path)  # noqa: E731
        assert named(load, tmp_path / "clip.pth", name, caplog), kind
        if tuned or kind == "a scale":
            with pytest.raises(HypvisionError, match="untuned model|compute something else"):
                load(tmp_path / "clip.pth")


def test_adapters_and_towers_name_a_weight_too_many(tmp_path, caplog):
    pytest.importorskip("open_clip")
    from hypvision.clip import adapters
    from hypvision.clip.adapters.lora import LoRAConfig
    from hypvision.clip.models import create_clip
    from hypvision.clip.radial.weights import merge_tower, save_tower

    def clip():
        return create_clip(CLIP["name"]).model

    path = adapters.save(adapters.inject(clip(), LoRAConfig()), tmp_path / "a.safetensors")
    tower = save_tower(clip(), tmp_path / "t.safetensors")
    for file, load in ((path, adapters.load), (tower, merge_tower)):
        with safe_open(file, "pt") as opened:
            about = opened.metadata()
        content = {**load_file(file), "ln_final.gamma_of_others": torch.ones(2)}
        save_file(content, tmp_path / "many.safetensors", about)
        given = dict(strict=False)
        assert named(
            lambda path: load(clip(), path, **given),  # noqa: B023
            tmp_path / "many.safetensors", "ln_final.gamma_of_others", caplog,
        )  # fmt: skip


# Hostile files


@pytest.fixture(scope="module")
def good():
    torch.manual_seed(0)
    return timm.create_model("hcformer_nano", num_classes=3, **ARGUMENTS).state_dict()


NANO = SimpleNamespace(name="hcformer_nano", arguments=ARGUMENTS)


def by_clip(family, path):
    pytest.importorskip("open_clip")
    from hypvision.clip.models import create_clip

    return create_clip("emoji-t8", path)


def by_segmenter(family, path):
    pytest.importorskip("open_clip")
    from hypvision.clip.segmentation.segment import load_segmenter

    return load_segmenter(path)


def by_mmengine(family, path):
    pytest.importorskip("mmengine")
    from mmengine.runner import CheckpointLoader

    from hypvision.engine import checkpoint

    checkpoint.install()
    return CheckpointLoader.load_checkpoint(str(path))


def by_converter(family, path):
    return convert_file("hcformer", path, path.with_name("out.pth"), to_official=True)


READERS = {
    "read": lambda family, path: read(path),
    "hypvision.load": by_load,
    "pretrained_cfg_overlay": by_overlay,
    "a config's checkpoint_path": by_config,
    "--weights": by_weights_option,
    "convert": by_converter,
    "mmengine": by_mmengine,
    "CLIP": by_clip,
    "segmenter": by_segmenter,
}


# all readers call the first; `make attack` tries every file with every loader
BY_EVERY_READER = {"code", "bomb", "sparse", "a list"}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.filterwarnings("ignore")
def test_every_reader_refuses_hostile_files(tmp_path, good, name):
    path = write_damaged(name, good, tmp_path)
    readers = READERS if name in BY_EVERY_READER else {"read": READERS["read"]}
    for reader, load in readers.items():
        with pytest.raises(
            HypvisionError,
            match="was refused|is damaged|is not a checkpoint|cannot be read|holds a list",
        ) as caught:
            load(NANO, path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value), reader
    # timm's own checkpoint_path alone is read by timm, which raises errors of its own.
    if name not in (
        "code in the state",
        "bomb",
        "keys that are tensors",
        "a class",
        "expanded",
        "array too short",
    ):
        # of the others, what stands beside the weights is not looked at, or never leaves timm
        with pytest.raises(Exception):  # noqa: B017
            by_path(NANO, path)
    assert not (tmp_path / "proof").exists()


def test_hidden_methods_do_not_matter(tmp_path, good):
    torch.save({"state_dict": hidden_method(good)}, tmp_path / "hidden.pth")
    weights = read_file(tmp_path / "hidden.pth")["state_dict"]
    assert set(dict(weights.items())) == set(good) and not hasattr(weights, "_metadata")


def test_classes_that_other_code_allows_are_ignored(tmp_path, good):
    """The reader does not make objects of a class that other code has registered with PyTorch."""
    with torch.serialization.safe_globals(
        [np.dtype, *(type(np.dtype(kind)) for kind in ("f8", "V8"))]
    ):
        path = write_damaged("object at an address", good, tmp_path)
        with pytest.raises(HypvisionError, match=r"contains 'numpy\.dtype'"):
            read_file(path)
        assert np.dtype in torch.serialization.get_safe_globals()


def test_weights_must_be_named_by_strings(tmp_path, good):
    torch.save({"state_dict": {**good, 3: torch.ones(2)}}, tmp_path / "odd.pth")
    for load in (by_load, by_converter):
        with pytest.raises(
            HypvisionError, match="weight (named 3: names must be|whose name is 3, not a string)"
        ):
            load(NANO, tmp_path / "odd.pth")


@pytest.mark.parametrize("kind", ["complex", "integers"])
def test_numbers_of_another_kind(tmp_path, good, kind):
    change = {
        "complex": lambda value: value.to(torch.complex64),
        "integers": lambda value: value.long(),
    }[kind]
    weights = {name: change(value) for name, value in good.items()}
    torch.save(weights, tmp_path / "odd.pth")
    model = timm.create_model("hcformer_nano", num_classes=3, **ARGUMENTS)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    for load in (by_load, by_path, by_overlay, by_weights_option):
        with pytest.raises(
            HypvisionError, match=f"{kind.removesuffix('s')}.* instead of real numbers"
        ):
            load(NANO, tmp_path / "odd.pth")
    with pytest.raises(HypvisionError, match="instead of real numbers"):
        check_compatible(model, read_file(tmp_path / "odd.pth"), "odd.pth")
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_weights_that_are_not_finite(tmp_path, good, caplog):
    weights = {**good, "norm.weight": good["norm.weight"] * float("nan")}
    torch.save(weights, tmp_path / "nan.pth")
    model = timm.create_model("hcformer_nano", num_classes=3, **ARGUMENTS)
    with caplog.at_level(logging.WARNING):
        by_load(NANO, tmp_path / "nan.pth")
        assert "NaN or infinite values in 1 of" in caplog.text and "norm.weight" in caplog.text
        caplog.clear()
        by_path(NANO, tmp_path / "nan.pth")
        assert "NaN or infinite values in 1 of" in caplog.text
    check_compatible(model, weights, "nan.pth")
    with pytest.raises(HypvisionError, match=r"'nan.pth' has NaN or infinite .*--allow-nonfinite"):
        check_compatible(model, weights, "nan.pth", allow_nonfinite=False)


def test_a_file_is_known_by_its_content(tmp_path, good):
    save_file({name: value.contiguous() for name, value in good.items()}, tmp_path / "weights.pth")
    assert read_file(tmp_path / "weights.pth").keys() == good.keys()
    torch.save(good, tmp_path / "weights.safetensors")
    with pytest.raises(
        HypvisionError, match="is not a safetensors file but a zip archive.*its suffix must be"
    ):
        read_file(tmp_path / "weights.safetensors")


def test_averaged_weights_come_first_as_in_timm(tmp_path, good):
    averaged = {name: value + 1 for name, value in good.items()}
    torch.save({"state_dict": good, "state_dict_ema": averaged}, tmp_path / "both.pth")
    found = network_weights(read_file(tmp_path / "both.pth"))
    assert all(torch.equal(found[name], averaged[name]) for name in good)


def test_reading_is_quiet(tmp_path):
    torch.save(
        {"state_dict": ReferenceHCFormer("hcformer_nano", num_classes=2).state_dict()},
        tmp_path / "a.pth",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_file(tmp_path / "a.pth")
