"""Official state dicts and ours, both ways."""

import dataclasses

import pytest
import torch
from helpers.cases import each
from helpers.helm import pair, published_logits, tokens
from references.helm import official_state

from hypvision.cli import main
from hypvision.helm import Architecture, Helm, preset
from hypvision.helm.checkpoint import (
    helm_architecture,
    helm_from_official,
    helm_to_official,
    helm_variant,
    is_official_helm,
    official_architecture,
    untold,
)
from hypvision.io.errors import HypvisionError
from hypvision.zoo.convert import convert_file

KINDS = [
    ("helm_d_tiny", {}),
    ("helm_mice_tiny", {}),
    ("helm_mice_tiny", dict(q_lora_rank=24, n_shared_experts=2)),
    ("helm_mice_tiny", dict(moe_combine="centroid", n_shared_experts=2)),
    ("helm_mice_tiny", dict(project_emb=True, n_dense_layers=2, n_routed_experts=3)),
]


@each("name, options", KINDS)
def test_there_and_back(name, options):
    official, ours = pair(name, **options)
    state = official_state(official)
    assert is_official_helm(state) and not is_official_helm(ours.state_dict())
    expected = preset(name, **options)
    assert official_architecture(state) == expected
    found = helm_architecture(ours.state_dict()).to_dict() | dict(max_seq_len=expected.max_seq_len)
    dense = not expected.mixed
    unused = (
        "kv_lora_rank",
        "mice_inter_dim",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    )
    wanted = expected.to_dict()
    assert {k: v for k, v in found.items() if not (dense and k in unused)} == {
        k: v for k, v in wanted.items() if not (dense and k in unused)
    }
    back = helm_to_official(ours.state_dict())
    trained = {
        n
        for n, _ in official.named_parameters()
        if not n.endswith((".k", ".add_pos.w_y", ".add_pos.scale"))
    }
    assert trained <= set(back)
    assert all(torch.equal(back[n], state[n]) for n in trained)
    assert helm_variant(ours.state_dict())[0] == name


def test_names_as_a_training_saves_them():
    official, _ = pair("helm_mice_tiny")
    state = official_state(official)
    aliases = [name for name in state if name.endswith((".c", ".k"))]
    assert len(aliases) > 50
    wrapped = {f"module.{name}": value for name, value in state.items()}
    assert set(helm_from_official(wrapped)) == set(Helm(preset("helm_mice_tiny")).state_dict())


def test_mistakes_are_sentences():
    official, _ = pair("helm_mice_tiny")
    state = official_state(official)
    with pytest.raises(HypvisionError, match="c = 2"):
        helm_from_official(state | {"layers.0.attn.wq.manifold.k": torch.tensor(2.0)})
    with pytest.raises(HypvisionError, match="no HELM checkpoint has"):
        helm_from_official(state | {"layers.0.extra": torch.zeros(2)})
    with pytest.raises(HypvisionError, match="no entry 'layers.2.ffn.experts.1.w2"):
        helm_from_official(
            {n: v for n, v in state.items() if n != "layers.2.ffn.experts.1.w2.linear.weight"}
        )
    with pytest.raises(HypvisionError, match="not the weights of a HELM model"):
        helm_to_official(Helm(preset("helm_d_tiny", geometry="euclidean")).state_dict())


def test_numbers_of_one_manifold_agree():
    """One of those of an expert that says 1 is no more its curvature than any other."""
    official, _ = pair("helm_mice_tiny")
    state = official_state(official)
    expert = "layers.1.ffn.experts.1."
    names = [name for name in state if name.startswith(expert) and name.endswith((".c", ".k"))]
    assert len(names) == 10 and state[f"{expert}expert_manifold.k"] != 1
    for name in names:
        with pytest.raises(HypvisionError, match="must share one number"):
            helm_from_official(state | {name: torch.ones(())})
    outer = {
        f"{expert}manifold_out.{end}": torch.ones(()) for end in "kc"
    }  # the model's, where its result goes
    assert helm_from_official(state | outer).keys() == helm_from_official(state).keys()


def test_files(tmp_path):
    official, ours = pair("helm_d_tiny")
    torch.save(
        dict(global_step=1, model_state_dict=official_state(official)), tmp_path / "Step1.pt"
    )
    written = convert_file("helm", tmp_path / "Step1.pt", tmp_path / "ours.safetensors")
    assert written.model == "helm_d_tiny" and "from_official" in written.usage()
    from safetensors.torch import load_file

    model = Helm(preset("helm_d_tiny"))
    model.load_state_dict(load_file(tmp_path / "ours.safetensors"))
    assert torch.equal(model(tokens()).logits, ours(tokens()).logits)
    convert_file("helm", tmp_path / "ours.safetensors", tmp_path / "back.pth", to_official=True)
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert torch.equal(back["mapping.weight"], official.mapping.weight)


# How a model is trained or stored; and the beginning of curvatures, which are weights.
TRAINING = {
    "pad",
    "fused",
    "geometry",
    "train_curv",
    "expert_c_init",
    "bias_rule",
    "bias_rate",
    "aux_alpha",
}


def test_every_option_is_inferred_from_weights_or_named():
    """What official_architecture() finds out of weights is not what the note names, and together
    they are all."""
    dense = dict(n_layers=1, dim=42, n_heads=2, inter_dim=50, vocab_size=30)
    latent = dict(
        kv_lora_rank=9, qk_nope_head_dim=6, qk_rope_head_dim=5, v_head_dim=7, attention="latent"
    )
    mixture = dict(
        n_layers=3, n_dense_layers=2, n_routed_experts=3, mice_inter_dim=20, q_lora_rank=5,
        project_emb=True, n_shared_experts=2, moe_combine="centroid",
    )  # fmt: skip
    told = set()
    for options in (dense, dense | latent | mixture):
        _, ours = pair("helm_d_tiny", **options)
        found = helm_architecture(ours.state_dict())
        for name, value in options.items():
            assert getattr(found, name) == value, name
        told |= options.keys()
        assert not told & untold(found).keys()
    named = untold(preset("helm_mice_tiny")).keys()
    learned = Helm(preset("helm_d_tiny", positions="learned", max_seq_len=20))
    assert helm_architecture(learned.state_dict()) == learned.config
    assert not {"max_seq_len", "rope_theta"} & untold(learned.config).keys()
    told.add("positions")
    assert told | named | TRAINING == {field.name for field in dataclasses.fields(Architecture)}
    assert "moe_combine" in untold(preset("helm_mice_tiny", n_shared_experts=0))


@pytest.mark.parametrize("name", ["helm_d_tiny", "helm_mice_tiny"])
def test_nothing_is_left_out_of_official_files(name):
    """Published models have no learned positions, and no names but their own."""
    learned = Helm(preset(name, positions="learned", max_seq_len=40)).state_dict()
    found, differences = helm_variant(learned)
    assert found == name and differences == dict(positions="learned", max_seq_len=40)
    for config in (None, preset(name)):
        with pytest.raises(HypvisionError, match="positions.weight"):
            helm_to_official({f"decoder.{n}": w for n, w in learned.items()}, config)
    with pytest.raises(HypvisionError, match="layers.0.extra"):
        helm_to_official(Helm(preset(name)).state_dict() | {"layers.0.extra": torch.zeros(2)})


def test_the_note_names_settings_that_weights_do_not_contain(tmp_path, capsys):
    for name in ("helm_d_tiny", "helm_mice_tiny"):
        official, _ = pair(name)
        torch.save(official_state(official), tmp_path / "Step1.pt")
        assert (
            main(
                [
                    "zoo",
                    "convert",
                    "--from",
                    "helm",
                    str(tmp_path / "Step1.pt"),
                    str(tmp_path / f"{name}.pth"),
                ]
            )
            == 0
        )
        said = capsys.readouterr().out
        assert (
            "max_seq_len=256)" in said
        )  # the mask told it, and weights of our names do not have it
        for option in untold(preset(name)).keys() - {"max_seq_len"}:
            assert f"{option}=" in said.partition("Note:")[2], option


FOLDERS = [("helm_d_tiny", {}, ["qkv", "out", "gate_up", "down", "head"]),
           ("helm_mice_tiny", dict(q_lora_rank=24), ["down", "up", "q_up", "out",
           "gate_up"])]  # fmt: skip


@pytest.mark.quick("D")
@pytest.mark.parametrize("name, options, targets", FOLDERS, ids=["D", "MiCE"])
def test_folders_and_merged_adapters_get_official_names(name, options, targets, tmp_path):
    pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    from hypvision.helm.huggingface import HelmConfig, HelmForCausalLM

    official, _ = pair(name, **options)
    model, ids = HelmForCausalLM(HelmConfig.of(preset(name, **options))), tokens(2, 9)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=targets, task_type="CAUSAL_LM")
    )
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        adapted(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    merged = adapted.merge_and_unload().eval()
    weight = merged.model.layers[0].ffn.gate_up
    free = sorted(set(range(weight.in_features)) - set(weight.live_in))
    assert weight.weight[:, free].any()  # LoRA fills them
    merged.save_pretrained(tmp_path / "folder")
    torch.save(
        {f"decoder.{n}": w for n, w in merged.model.state_dict().items()}, tmp_path / "training.pth"
    )
    torch.save(merged.model.state_dict(), tmp_path / "bare.pth")
    for source in ("folder", "folder/model.safetensors", "training.pth", "bare.pth"):
        convert_file("helm", tmp_path / source, tmp_path / "official.pth", to_official=True)
        official.load_state_dict(torch.load(tmp_path / "official.pth"), strict=False)
        with torch.no_grad():
            expected, found = merged(ids).logits, published_logits(official, ids)
        assert (found - expected).abs().max() < 2e-5 * expected.abs().max().clamp(min=1), source
    (tmp_path / "empty").mkdir()
    with pytest.raises(HypvisionError, match="none of model.safetensors"):
        convert_file("helm", tmp_path / "empty", tmp_path / "official.pth", to_official=True)
