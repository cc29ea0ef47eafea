"""CLIP models are made by one function, and every user gets the settings that their weights
need."""

import ast
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import open_clip
import pytest
import torch
from helpers import clip_repository
from helpers.fewshot_layouts import coop
from helpers.syntax import syntax_tree
from PIL import Image
from safetensors.torch import save_file

import hypvision
from hypvision.clip import load_segmenter
from hypvision.clip.features import cached_texts, frozen_images, frozen_texts, image_features
from hypvision.clip.models import create_clip
from hypvision.clip.names import clip_options
from hypvision.clip.prompting import build_host
from hypvision.clip.radial.measure import embed_images
from hypvision.clip.radius import image_radii, measure_radii
from hypvision.data.fewshot import FewShotDataset
from hypvision.data.preprocessing import Preprocessing, preprocessing_of
from hypvision.data.text_chains import TextChains

VIEW = Preprocessing(32, "bilinear", "squash")
ROOT = Path(hypvision.__file__).parent


def test_only_create_clip_builds_models_and_reads_their_settings():
    """In the code: open_clip's own constructors, and where it stores the size and the normalisation
    of images."""
    constructors = {"create_model", "create_model_and_transforms", "create_model_from_pretrained",
    "get_tokenizer",
             "get_pretrained_cfg", "get_model_config"}  # fmt: skip
    kept = {"preprocess_cfg", "image_mean", "image_std", "image_size"}
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        tree = (
            syntax_tree(text)
            if any(word in text for word in ("open_clip", *kept))
            else ast.Module([], [])
        )
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            opened = (
                isinstance(node.value, ast.Name)
                and node.value.id == "open_clip"
                and node.attr in constructors
            )
            assert not opened or place in ("clip/models.py", "clip/locate.py"), (
                f"{place}:{node.lineno} opens a CLIP"
            )
            looked = node.attr in kept and place not in (
                "clip/models.py",
                "data/preprocessing.py",
                "clip/towers.py",
                # an option of a training
                "cli/train.py",
                "tasks/own_folder.py",
            )
            assert not looked, f"{place}:{node.lineno} looks at {node.attr}: ask preprocessing_of"


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """The tag ``odd`` of ``tiny-clip``, whose weights need everything otherwise than OpenAI's."""
    clip_repository.register(monkeypatch, tag=dict(quick_gelu=True))
    clip_repository.cached(monkeypatch, tmp_path / "hub")
    return dict(name="tiny-clip", pretrained="odd")


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)).save(
        path
    )
    return path


def segmenter(odd, tmp_path):
    return load_segmenter(clip="tiny-clip:odd")


def segmenter_of_a_training(odd, tmp_path):
    """Its checkpoint holds the weights; what they need is in the config."""
    options = dict(resolution=32, crop=32, slide=32, head=dict(type="similarity"), tune="frozen")
    trained = hypvision.clip.OpenVocabSegmenter(clip=odd, **options)
    save_file(trained.state_dict(), tmp_path / "trained.safetensors")
    return load_segmenter(
        tmp_path / "trained.safetensors", dict(type="HyperCLIPSegmentor", clip=odd, **options)
    )


def few_shot(odd, tmp_path):
    from hypvision.tasks.few_shot import FewShotCLIP

    return FewShotCLIP(clip=odd, host=dict(name="zeroshot")).host


def teacher(odd, tmp_path):
    return build_host(
        create_clip(**odd), "promptkd", teacher=dict(clip=odd, host=dict(name="zeroshot")), depth=2
    ).teacher


def radial(odd, tmp_path):
    from hypvision.tasks.radial import RadialTuning

    model = RadialTuning(clip=odd, tune="both")
    mean, std = (torch.tensor(value) for value in (model.bundle.mean, model.bundle.std))
    return SimpleNamespace(clip=model.clip, mean=mean, std=std)


def contrast(odd, tmp_path):
    from hypvision.tasks.contrastive import CLIPContrast

    return CLIPContrast(clip=odd)


def command(odd, tmp_path):
    """Of radius and chains."""
    bundle = create_clip(**clip_options("tiny-clip:odd"))
    return SimpleNamespace(
        clip=bundle.model, mean=torch.tensor(bundle.mean), std=torch.tensor(bundle.std)
    )


@pytest.mark.parametrize(
    "make", [segmenter, segmenter_of_a_training, few_shot, teacher, radial, contrast, command]
)
def test_every_entry_point_applies_the_settings_of_the_weights(odd, tmp_path, make):
    found = make(odd, tmp_path)
    gelus = [module for name, module in found.clip.named_modules() if name.endswith(".gelu")]
    assert gelus and all(isinstance(module, open_clip.transformer.QuickGELU) for module in gelus)
    assert found.mean.flatten().tolist() == pytest.approx([102.0, 127.5, 153.0])
    assert found.std.flatten().tolist() == pytest.approx([51.0, 63.75, 76.5])
    assert preprocessing_of(found.clip) == VIEW and found.clip.context_length == 16
    assert torch.equal(
        found.clip.state_dict()["text_projection"], clip_repository.weights()["text_projection"]
    )


def test_a_teacher_that_sees_images_otherwise_is_told(odd):
    student = create_clip(**odd, force_preprocess_cfg=dict(resize_mode="longest"))
    with pytest.warns(
        UserWarning, match="teacher was trained on images of .*'squash'.*student, .*'longest'"
    ):
        build_host(student, "promptkd", teacher=dict(clip=odd, host=dict(name="zeroshot")), depth=2)


# Images


def normalised(photo, clip):
    mean, std = (torch.tensor(value)[:, None, None] for value in (clip.mean, clip.std))
    return (VIEW(Image.open(photo)).float() - mean) / std


def test_images_are_measured_as_the_weights_need_them(odd, photo):
    clip = create_clip(**odd)
    with torch.no_grad():
        expected = clip.model.encode_image(normalised(photo, clip)[None], normalize=True)
    assert torch.allclose(embed_images(clip, [photo]), expected, atol=1e-6)
    found = measure_radii(clip, {}, [photo])["images"]
    assert torch.allclose(found, image_radii(clip, VIEW(Image.open(photo))[None]))


def test_zero_shot_prediction_sees_them_so(odd, photo):
    from hypvision.clip.open_vocabulary import OpenVocabularyCLIP
    from hypvision.inference.predictors import Request, zero_shot

    model = OpenVocabularyCLIP()
    model.build_clip(odd, tune="frozen", classes=["cat", "dog"], dense=False)
    predictor = zero_shot(model.eval(), Request("tiny"))
    assert torch.equal(predictor.prepare(Image.open(photo)), VIEW(Image.open(photo)))


def test_few_shot_data_show_them_so(odd, tmp_path):
    from hypvision.tasks.few_shot import ClassNamesHook, FewShotCLIP, accuracy

    coop(tmp_path, size=50)
    model = FewShotCLIP(clip=odd, host=dict(name="zeroshot"))

    def data(**options):
        return FewShotDataset(
            str(tmp_path), "caltech101", **{"part": "test", "subset": "base", **options}
        )

    def by_cache(dataset):
        image_features(model.host, dataset)

    def by_hook(dataset):
        loader = SimpleNamespace(dataset=dataset)
        ClassNamesHook().before_test_epoch(SimpleNamespace(model=model, test_dataloader=loader))

    for show in (lambda dataset: accuracy(model, dataset), by_cache, by_hook):
        dataset = data()
        assert dataset.view == Preprocessing()
        show(dataset)
        assert dataset.view == VIEW and torch.equal(
            dataset[0]["inputs"], VIEW(Image.open(dataset.paths[0]))
        )
        assert dataset.viewed(augment=True)[0]["inputs"].shape == (3, 32, 32)
    train = data(part="train", shots=1, size=(48, 48))
    by_hook(train)
    assert train.view == Preprocessing(48, "bilinear", "squash") and train[0]["inputs"].shape == (
        3,
        48,
        48,
    )
    assert "bilinear" in str(train.transform) and train.whole_part("test").view == train.view


def test_chains_with_images_show_them_so(odd, tmp_path, photo):
    from hypvision.tasks.radial import FrozenTextsHook, RadialTuning

    (tmp_path / "images").mkdir()
    for name in "ab":
        (tmp_path / f"images/{name}.png").write_bytes(photo.read_bytes())
    rows = [f"{n} => x => y {n} => z,p => q => r => s,{n}.png" for n in "ab"]
    (tmp_path / "chains.csv").write_text("positive,negative,image_url\n" + "\n".join(rows) + "\n")
    data = TextChains(tmp_path / "chains.csv", images=tmp_path / "images")
    model = RadialTuning(clip=odd, tune="both")
    loader = SimpleNamespace(dataset=data)
    runner = SimpleNamespace(
        model=model, _train_loop=1, train_dataloader=loader, logger=SimpleNamespace(info=print)
    )
    FrozenTextsHook(folder=tmp_path / "kept").before_run(runner)
    assert torch.equal(data[0]["inputs"], VIEW(Image.open(photo)))
    found = model.encode_images(data[0]["inputs"][None].float())
    assert torch.allclose(
        found, model.image_reference[[data[0]["image"]]], atol=2e-3
    )  # which is kept in float16


# Names of kept features

CHANGES = {
    "activation": dict(force_quick_gelu=True),
    "mean": dict(force_preprocess_cfg=dict(mean=(0.1, 0.2, 0.3))),
    "interpolation": dict(force_preprocess_cfg=dict(interpolation="bilinear")),
    "resizing": dict(force_preprocess_cfg=dict(resize_mode="squash")),
    "fill": dict(force_preprocess_cfg=dict(fill_color=7)),
    "size": dict(force_image_size=48),
    "heads": dict(vision_cfg=dict(clip_repository.CONFIG["vision_cfg"], head_width=8)),
    "pooling": dict(vision_cfg=dict(clip_repository.CONFIG["vision_cfg"], pool_type="avg")),
    "constant of norms": dict(
        vision_cfg=dict(clip_repository.CONFIG["vision_cfg"], norm_kwargs=dict(eps=1e-3))
    ),
    "length of texts": dict(force_context_length=12),
    "mask of texts": dict(text_cfg=dict(clip_repository.CONFIG["text_cfg"], no_causal_mask=True)),
    "pooling of texts": dict(text_cfg=dict(clip_repository.CONFIG["text_cfg"], pool_type="last")),
}
BOTH = ("activation",)  # of both towers


def names_of_kept_features(tmp_path, data, options):
    """The names of the files that each cache keeps features of a model in: of images, then of
    texts."""
    clip = create_clip("tiny-clip", tmp_path / "weights.safetensors", **options)
    host = build_host(clip, "zeroshot")
    folder = tmp_path / "kept"

    def written(make):
        found = {path.name for path in folder.rglob("*.safetensors")}
        make()
        return {path.name for path in folder.rglob("*.safetensors")} - found

    images = [written(lambda: image_features(host, data, folder=folder / "a")), written(
        lambda: frozen_images(clip, data.paths[:2], folder / "b"))]  # fmt: skip
    texts = [written(lambda: cached_texts(folder / "c", host, ["a cat"], lambda: torch.ones(1))),
    written(
        lambda: frozen_texts(clip.model, clip.tokenizer, ["a cat", "a dog"],
        folder / "d"))]  # fmt: skip
    return images, texts


@pytest.mark.slow
def test_kept_features_are_those_of_the_same_model(tmp_path, monkeypatch):
    """Equal weights in a model that computes something else are no reason to take features that
    were kept."""
    clip_repository.register(monkeypatch)
    save_file(clip_repository.weights(), tmp_path / "weights.safetensors")
    coop(tmp_path, size=40)
    data = FewShotDataset(str(tmp_path), "caltech101", "test", subset="base")
    images, texts = names_of_kept_features(tmp_path, data, {})
    assert all(len(names) == 1 for names in (*images, *texts))
    images, texts = names_of_kept_features(tmp_path, data, {})
    assert not any((*images, *texts))  # the same model, made anew, finds them
    for what, options in CHANGES.items():
        images, texts = names_of_kept_features(tmp_path, data, options)
        of_texts = "texts" in what
        assert all(len(names) == (what in BOTH or not of_texts) for names in images), what
        assert all(len(names) == (what in BOTH or of_texts) for names in texts), what
