"""Models with weights of the zoo: through timm, hypvision.load, releases and the hub."""

import os
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
import timm
import torch
from helpers.bad_server import Server
from helpers.cases import each
from helpers.engine import ROOT
from helpers.zoo import MICRO, NAME
from PIL import Image

import hypvision
from hypvision.checkpoints.index import builtin_index, read_index
from hypvision.checkpoints.sources import resolve
from hypvision.io.errors import HypvisionError
from hypvision.zoo.backbones import build_model
from hypvision.zoo.loading import load_trained, trained_arguments
from hypvision.zoo.release import hub_folder, push_to_folder, push_to_hub

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_the_shipped_classifier_knows_its_groceries():
    """The metric of the record, on photos of the demo: 79.6 % of all test photos, chance is 1 %."""
    model = hypvision.load("himapper_tf_efficientnet_lite0.grocery")
    assert not model.training and all(p.dtype == torch.float32 for p in model.parameters())
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    photos = sorted((ROOT / "tools/demo_data/photos/test").glob("*/*.jpg"))[::4]
    labels = torch.tensor(
        [model.pretrained_cfg["label_names"].index(path.parent.name) for path in photos]
    )
    with torch.no_grad():
        found = model(
            torch.stack([transform(Image.open(path).convert("RGB")) for path in photos])
        ).argmax(1)
    assert (found == labels).float().mean() > 0.7


def test_the_weights_are_those_of_the_file(zoo, micro):
    model = hypvision.load(NAME)
    assert torch.equal(model(X), micro[0](X))
    assert model.pretrained_cfg["mean"] == (0.5, 0.5, 0.5) and model.num_classes == 3
    assert hypvision.load(f"zoo:{NAME}", dtype=torch.float64).stem.weight.dtype == torch.float64


def test_overrides_change_the_model(zoo, micro):
    other = hypvision.load(NAME, num_classes=7)
    assert other(X).shape == (2, 7)
    assert other.pretrained_cfg["num_classes"] == 7
    assert not other.pretrained_cfg["label_names"]  # those of the old head
    own = dict(label_names=tuple("abcdefg"))
    assert (
        hypvision.load(NAME, num_classes=7, pretrained_cfg_overlay=own).pretrained_cfg[
            "label_names"
        ][6]
        == "g"
    )
    assert torch.equal(other.forward_features(X), micro[0].forward_features(X))
    maps = hypvision.load(NAME, features_only=True, out_indices=(1, 3))(X)
    assert [m.shape[1] for m in maps] == [16, 32]
    assert hypvision.load(NAME, in_chans=1)(X[:, :1]).shape == (2, 3)
    larger = hypvision.load(NAME, img_size=64)  # position biases are resized
    assert larger(torch.randn(1, 3, 64, 64)).shape == (1, 3)


@pytest.mark.parametrize("overrides", [dict(hedas=3), dict(dims=(8, 16, 24, 40))])
def test_overrides_that_do_not_fit(zoo, overrides):
    with pytest.raises(HypvisionError, match=next(iter(overrides))):
        hypvision.load(NAME, **overrides)


def test_names_without_weights_are_explained(zoo):
    # The tag cifar10 is timm's, but not in this test's zoo; nonsense is in neither.
    for name in (
        "hcformer_nano",
        "hcformer_nano.untrained",
        "hcformer_nano.cifar10",
        "hcformer_nano.nonsense",
    ):
        with pytest.raises(HypvisionError, match=f"The zoo has no weights for.*{NAME}"):
            timm.create_model(name, pretrained=True)
    with pytest.raises(HypvisionError, match=r"hypvision\.load\(FILE, model='hcformer_small'\)"):
        timm.create_model("hcformer_small", pretrained=True)
    with pytest.raises(RuntimeError, match="Invalid pretrained tag"):
        timm.create_model("hcformer_nano.nonsense")
    with pytest.raises(HypvisionError, match=NAME):
        hypvision.load("hcformer_nano.macro")


@each("prefix", ["", "zoo:"])
def test_the_name_of_a_record_means_its_network(tmp_path, prefix):
    """Also where timm has no such tag: the weights are those of the file."""
    name = "tf_efficientnet_lite0.imagenet"
    network = timm.create_model("tf_efficientnet_lite0", num_classes=4)
    file = tmp_path / "own.pth"
    torch.save(network.state_dict(), file)
    found = hypvision.load(file, model=f"{prefix}{name}")
    assert torch.equal(found.classifier.weight, network.classifier.weight)
    assert found.num_classes == 4 and not found.pretrained_cfg.get("label_names")
    record = builtin_index().get(name)
    assert found.pretrained_cfg["input_size"] == tuple(record.input.size)
    assert found.pretrained_cfg["mean"] == tuple(record.input.mean)
    with pytest.raises(HypvisionError, match=r"has no weights 'nonsense'\. Did you mean"):
        hypvision.load(file, model="tf_efficientnet_lite0.nonsense")


def test_what_is_no_name_is_refused_at_the_border():
    network = timm.create_model("test_vit")
    image = Image.new("RGB", (8, 8))
    for given in (network, network.state_dict(), 3, None):
        kind = "None" if given is None else type(given).__name__
        ways = {
            "name": lambda value: hypvision.load(value),
            "model": lambda value: hypvision.predict(image, value),
        }
        if given is not None:  # None is the default of these
            ways["weights"] = lambda value: hypvision.predict(image, "test_vit", value)
            ways["model "] = lambda value: hypvision.load("net.pth", model=value)
        for name, call in ways.items():
            with pytest.raises(HypvisionError, match=f"^{name.strip()} must be .*, got {kind}"):
                call(given)
    with pytest.raises(HypvisionError, match="image is a path, .* got NoneType"):
        hypvision.predict(None, "test_vit")


def test_a_checkpoint_given_by_the_caller_has_priority(zoo, micro):
    """timm's own ways of saying where weights lie go on working."""
    arguments = {
        key: tuple(value) if isinstance(value, list) else value for key, value in MICRO.items()
    }
    for overlay in (dict(file=str(micro[1])), dict(state_dict=micro[0].state_dict())):
        model = timm.create_model(
            "hcformer_nano",
            pretrained=True,
            num_classes=3,
            **arguments,
            pretrained_cfg_overlay=overlay | {"num_classes": 3},
        ).eval()
        assert torch.equal(model(X), micro[0](X))


def test_untagged_names_build_the_published_network():
    """Tags of small images change nothing for those who ask for the paper's model."""
    model = timm.create_model("hcformer_nano")
    assert model.pretrained_cfg["tag"] == "untrained" and model.num_classes == 1000
    assert model.stem.stride == (4, 4) and len(timm.create_model("hcformer_nano.cifar10").stem) == 4
    assert timm.create_model("hcformer_nano.cifar10", stem="patch").stem.stride == (
        2,
        2,
    )  # the caller's word is last


# Sources


def test_mirrors_of_every_kind(record, micro, server, tmp_path, monkeypatch):
    folder = tmp_path / "a mirror"
    folder.mkdir()
    (folder / record.filename).write_bytes(micro[1].read_bytes())
    monkeypatch.setenv("HYPVISION_WEIGHTS", (folder.as_uri()))
    assert resolve(record) == folder / record.filename
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{server.url}/good/")
    assert resolve(record).is_relative_to(tmp_path / "home")
    for wrong in ("ftp://host", "no/such/folder", "file://host/share"):
        monkeypatch.setenv("HYPVISION_WEIGHTS", wrong)
        (tmp_path / "home" / "weights" / record.filename).unlink(missing_ok=True)
        with pytest.raises(HypvisionError, match=wrong):
            resolve(record)


def test_the_token_is_sent_to_the_hub_only(record, server, micro, monkeypatch):
    monkeypatch.setattr(
        huggingface_hub.constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        server.url + "/hub/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{server.url}/missing,hf-hub:somebody/weights@v1")
    assert resolve(record).read_bytes() == micro[1].read_bytes()
    assert dict(server.tokens) == {"missing": None, "hub": "Bearer hf_secret"}
    for wrong in ("hf-hub:alone", "hf-hub:a/b/../../c"):
        monkeypatch.setenv("HYPVISION_WEIGHTS", wrong)
        resolve(record).unlink() if wrong == "hf-hub:alone" else None
        with pytest.raises(HypvisionError, match="USER/REPO"):
            resolve(record)


def test_a_damaged_packaged_file_is_not_used(zoo, micro, server, monkeypatch):
    path = zoo / "weights" / "micro.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(HypvisionError, match="git lfs pull"):
        hypvision.load(NAME)
    monkeypatch.setenv("HYPVISION_WEIGHTS", f"{server.url}/good")
    assert torch.equal(hypvision.load(NAME)(X), micro[0](X))


def test_an_index_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("HYPVISION_INDEX", str(tmp_path / "none.yml"))
    with pytest.raises(HypvisionError, match="HYPVISION_INDEX"):
        hypvision.load(NAME)


# Releases


def test_a_release_is_complete_and_loads_from_anywhere(zoo, micro, tmp_path, monkeypatch):
    index = builtin_index()
    folder = push_to_folder(index, list(index), tmp_path / "release")
    record = read_index(folder).get(NAME)
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(
        ["SHA256SUMS", f"{NAME}.md", "config.json", record.filename, "index.yml"]
    )
    assert (folder / "SHA256SUMS").read_text() == f"{record.file.sha256}  {record.filename}\n"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    monkeypatch.delenv("HYPVISION_INDEX")

    assert torch.equal(hypvision.load(folder.as_uri())(X), micro[0](X))
    assert torch.equal(hypvision.load(f"{folder}#{NAME}")(X), micro[0](X))
    server = Server({path.name: path.read_bytes() for path in folder.iterdir()})
    try:
        assert torch.equal(hypvision.load(f"{server.url}/good#{NAME}")(X), micro[0](X))
        assert [mode for _, mode, _ in server.log] == ["good", "good"]
        assert torch.equal(hypvision.load(f"{server.url}/good/index.yml#{NAME}")(X), micro[0](X))
        with pytest.raises(HypvisionError, match="no weights 'other.tag'"):
            hypvision.load(f"{server.url}/good#other.tag")
    finally:
        server.close()
    # The network is gone: the index of the last visit and the cache are not.
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    assert torch.equal(hypvision.load(f"{server.url}/good#{NAME}")(X), micro[0](X))
    with pytest.raises(HypvisionError, match="HYPVISION_OFFLINE"):
        hypvision.load(f"{server.url}/elsewhere#{NAME}")


def test_a_folder_with_the_name_of_weights_does_not_hide_them(zoo, micro, tmp_path, monkeypatch):
    (tmp_path / NAME).mkdir()
    monkeypatch.chdir(tmp_path)
    assert torch.equal(hypvision.load(NAME)(X), micro[0](X))
    with pytest.raises(HypvisionError, match="index.yml"):
        hypvision.load(f"./{NAME}")


def test_a_hub_repository_is_one_that_timm_reads(zoo, micro, tmp_path):
    index = builtin_index()
    (tmp_path / "repo").mkdir()
    hub_folder(index, index.get(NAME), tmp_path / "repo")
    names = sorted(path.name for path in (tmp_path / "repo").iterdir())
    assert names == ["README.md", "config.json", "index.yml", "model.safetensors"]
    model = timm.create_model(f"local-dir:{tmp_path / 'repo'}", pretrained=True).eval()
    assert torch.equal(model(X), micro[0](X))
    assert torch.equal(hypvision.load(str(tmp_path / "repo"))(X), micro[0](X))


def test_shipped_int8_files_load_through_timms_own_hub_reader(tmp_path):
    index = builtin_index()
    (tmp_path / "repo").mkdir()
    hub_folder(index, index.get("hcformer_nano.cifar10"), tmp_path / "repo")
    model = timm.create_model(f"local-dir:{tmp_path / 'repo'}", pretrained=True).eval()
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(model(x), hypvision.load("hcformer_nano.cifar10")(x))
    # timm's own classes do not unpack them, so nothing sends timm there
    (tmp_path / "theirs").mkdir()
    hub_folder(index, index.get("tf_efficientnet_lite0.imagenet"), tmp_path / "theirs")
    assert not (tmp_path / "theirs/config.json").exists()


def test_pushing_to_the_hub_uploads_one_complete_commit(zoo, monkeypatch):
    calls = []

    class Api:
        def create_repo(self, repo, private, exist_ok):
            calls.append((repo, private))

        def upload_folder(self, repo_id, folder_path, commit_message):
            calls.append((repo_id, sorted(os.listdir(folder_path))))

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    index = builtin_index()
    assert push_to_hub(index, index.get(NAME), "me/model", private=True) == "hf-hub:me/model"
    files = ["README.md", "config.json", "index.yml", "model.safetensors"]
    assert calls == [("me/model", True), ("me/model", files)]

    def refuse(*args, **kwargs):
        raise RuntimeError("401 Unauthorized")

    Api.create_repo = refuse
    with pytest.raises(HypvisionError, match="401.*hf auth login"):
        push_to_hub(index, index.get(NAME), "me/model")


HCFORMER = dict(
    layers=(1, 1, 1, 1),
    dims=(8, 8, 8, 8),
    heads=(2, 2, 2, 2),
    head_dim=4,
    img_size=32,
    patch_size=2,
)
TRAINED = {
    "hcformer_nano": (
        dict(HCFORMER, curvature=0.5, drop_path_rate=0.1),
        lambda model: model.stages[0].blocks[0].mixer.curvature,
    ),
    "himapper": (
        dict(backbone="test_vit", img_size=32, kv="all"),
        lambda model: model.mapper.layout.kv,
    ),
}


@pytest.mark.parametrize("name", TRAINED)
def test_options_without_weights_are_taken_from_the_training(name, tmp_path):
    """Those that leave no trace in the names and shapes of weights, by every way to load a
    checkpoint."""
    config_of = pytest.importorskip("hypvision.engine.config").Run
    from hypvision.tasks.classification import ImageInputHook
    from hypvision.tasks.embedding import load_embedder

    arguments, option = TRAINED[name]
    network = timm.create_model(name, num_classes=3, **arguments)
    checkpoint = dict(
        meta={},
        state_dict={f"backbone.{key}": value for key, value in network.state_dict().items()},
    )
    config = config_of(
        dict(model=dict(backbone=dict(model_name=f"{name}.tag", num_classes=3, **arguments)))
    )
    ImageInputHook().before_save_checkpoint(SimpleNamespace(cfg=config), checkpoint)
    torch.save(checkpoint, tmp_path / "trained.pth")
    ways = (
        lambda **given: load_trained(tmp_path / "trained.pth", name, given),
        lambda **given: build_model(name, tmp_path / "trained.pth", given),
    )
    for way in ways:
        assert option(way()) == option(network)
    assert option(load_embedder(model=name, weights=tmp_path / "trained.pth").embed) == option(
        network
    )
    if name == "himapper":
        assert option(ways[0](kv="patch")) == "patch"
    for wrong in (
        dict(checkpoint["meta"]["network"], model="other"), "text", dict(model=name, arguments=[1]),
        dict(model=name, arguments=dict(pretrained_cfg=dict(file="secret.pth"))),
    ):  # fmt: skip
        assert trained_arguments({"meta": {"network": wrong}}, name) == {}
