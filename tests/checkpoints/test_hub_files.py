"""Files of other people's repositories on the hub: listed, fetched, verified, kept; with limits of
time."""

import hashlib
import json
import time

import huggingface_hub.constants
import open_clip
import pytest
import timm
import torch
from safetensors.torch import save_file

from hypvision.checkpoints.sources import fetch_from_hub
from hypvision.clip.models import create_clip
from hypvision.io.errors import HypvisionError
from hypvision.models.timm_models import create_model
from hypvision.scaling.one_tensor import read_tensor

NAME = "model.safetensors"


@pytest.fixture
def hub(server, tmp_path, monkeypatch):
    """The local server as the hub, with one repository, ``me/net``."""
    serve(server, "me/net", {NAME: {"head": torch.arange(3.0)}}, tmp_path)
    server.files["config.json"] = b"{}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        huggingface_hub.constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        server.url + "/hub/{repo_id}/resolve/{revision}/{filename}",
    )
    return server


def serve(hub, repository, files, folder):
    """Put files of weights into a repository of the hub."""
    hub.repositories.add(repository)
    for name, weights in files.items():
        save_file(weights, folder / name)
        hub.files[name] = (folder / name).read_bytes()
        hub.sums[name] = hashlib.sha256(hub.files[name]).hexdigest()


def test_a_file_is_fetched_once(hub, monkeypatch):
    path = fetch_from_hub("me/net", NAME)
    assert path.read_bytes() == hub.files[NAME]
    assert fetch_from_hub("me/net", "config.json").read_text() == "{}"
    requests = len(hub.log)
    assert fetch_from_hub("me/net", NAME) == path and len(hub.log) == requests
    assert fetch_from_hub("me/net", "no.bin") is None
    with pytest.raises(
        HypvisionError, match="'me/other' cannot be fetched from the hub.*404.*give its path"
    ):
        fetch_from_hub("me/other", NAME + "x")
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    assert fetch_from_hub("me/none", NAME) is None and fetch_from_hub("me/net", NAME) == path


def test_another_file_than_listed_is_refused(hub):
    right = hub.files[NAME]
    hub.files[NAME] = bytes(len(right))
    with pytest.raises(HypvisionError, match="sha256 begins with"):
        fetch_from_hub("me/net", NAME)
    hub.files[NAME] = right
    assert fetch_from_hub("me/net", NAME).read_bytes() == right


def test_a_hub_that_trickles_is_left_at_the_deadline(hub, monkeypatch):
    monkeypatch.setenv("HYPVISION_DEADLINE", "0.5")
    hub.trickles = True
    begun = time.monotonic()
    with pytest.raises(HypvisionError, match="HYPVISION_DEADLINE"):
        fetch_from_hub("me/net", NAME)
    assert time.monotonic() - begun < 5


def test_one_tensor_comes_by_it(hub):
    name, head = read_tensor("me/net", lambda names: next(iter(names)))
    assert name == "head" and head.tolist() == [0, 1, 2]


@pytest.mark.parametrize("custom", [False, True])
def test_tags_of_open_clip_come_by_it(hub, home, monkeypatch, custom):
    """open_clip gets no file: our reader's tensors go into the model that the tag needs."""
    tower = dict(layers=1, width=32)
    text = dict(context_length=77, vocab_size=49408, heads=2, **tower)
    vision = dict(image_size=32, patch_size=16, head_width=16, **tower)
    config = home.parent / "tiny-clip.json"
    config.write_text(json.dumps(dict(embed_dim=16, vision_cfg=vision, text_cfg=text)))
    open_clip.add_model_config(config)
    about = dict(hf_hub="me/net/", mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda name, tag: about)
    monkeypatch.setattr("hypvision.clip.models.pretrained_tags", lambda name: ["openai"])
    monkeypatch.setattr(
        open_clip.factory,
        "load_checkpoint",
        lambda *_, **__: pytest.fail("open_clip has read a file"),
    )
    torch.manual_seed(1)
    weights = {
        name: value + 1 for name, value in open_clip.create_model("tiny-clip").state_dict().items()
    }
    weights["logit_scale"] = weights["logit_scale"].reshape(1)
    serve(hub, "me/net", {"open_clip_model.safetensors": weights}, home.parent)
    clip = create_clip("tiny-clip", "openai", force_custom_text=custom)
    assert hasattr(clip.model, "text") == custom and clip.mean == pytest.approx((127.5,) * 3)
    found = {name.removeprefix("text."): value for name, value in clip.model.state_dict().items()}
    assert found.keys() == weights.keys()
    assert all(
        torch.equal(value, weights[name].reshape(value.shape)) for name, value in found.items()
    )
    weights["visual.proj"] = weights["visual.proj"].T.contiguous()
    about["hf_hub"] = "me/other/"
    serve(hub, "me/other", {"open_clip_model.safetensors": weights}, home.parent)
    with pytest.raises(HypvisionError, match="does not fit the CLIP model.*visual.proj"):
        create_clip("tiny-clip", "openai")


def test_tags_of_open_clip_without_a_network(monkeypatch, home):
    monkeypatch.setattr(
        open_clip, "create_model", lambda *_, **__: pytest.fail("a network is made for no weights")
    )
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    with pytest.raises(
        HypvisionError,
        match="open_clip_model.safetensors .* is not on this machine, and HYPVISION_OF",
    ):
        create_clip("ViT-B-32", "openai")


def test_weights_of_timm_come_by_it(hub, home, monkeypatch):
    torch.manual_seed(1)
    weights = {
        name: value + 1 for name, value in timm.create_model("test_vit").state_dict().items()
    }
    serve(hub, "timm/test_vit.r160_in1k", {NAME: weights}, home.parent)
    model = create_model("test_vit", pretrained=True)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert (
        "state_dict" not in model.pretrained_cfg
        and model.pretrained_cfg["hf_hub_id"] == "timm/test_vit.r160_in1k"
    )


def test_no_network_for_timm_where_it_is_switched_off(hub, monkeypatch):
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    with pytest.raises(
        HypvisionError, match="weights of 'test_vit' are not on this machine, and HYPVISION_OFFLINE"
    ):
        create_model("test_vit", pretrained=True)
    with pytest.raises(HypvisionError, match="not on this machine"):
        timm.create_model("himapper", backbone="test_vit", leaves=4, levels=2, pretrained=True)
    with pytest.raises(OSError, match="local cache"):
        create_model("hf-hub:me/net")
    assert hub.log == []
