"""Language models under the engine: configs, resuming, loads of experts, groups, folders, the
harness."""

import json
import math
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from helpers.cases import each

pytest.importorskip("mmengine")
from helpers.engine import ROOT
from helpers.language import make_text, small

from hypvision.cli import main
from hypvision.engine.config import load_config
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError
from hypvision.tasks.language import LanguageModel
from hypvision.tasks.language_models import _continuation, _few_threads, generate, load_folder

CONFIGS = sorted(path.name for path in (ROOT / "configs/helm").glob("*.py"))


@each("name", [name for name in CONFIGS if "wikipedia" in name])
def test_the_published_recipe_takes_2400_steps(name):
    """2.1M tokens each, counted in optimiser steps and not in the iterations that they are made
    of."""
    config = load_config(ROOT / "configs/helm" / name)
    count = config.optim_wrapper.accumulative_counts
    first, then = config.param_scheduler
    assert config.train_cfg.max_iters == then.end == 2400 * count
    assert first.end == then.begin == 72 * count and config.train_cfg.val_interval == 100 * count
    assert config.default_hooks.checkpoint.interval == 100 * count
    assert config.default_hooks.logger.interval == 10 * count
    processes = int(name.split("_")[1].split("xb")[0])
    tokens = (
        count
        * processes
        * config.train_dataloader.batch_size
        * config.train_dataloader.dataset.length
    )
    assert tokens == pytest.approx(2.1e6, rel=0.01)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


# Of configs that differ from another one in size alone.
SIBLINGS = (
    "tiny", "120m", "1b-eval", "llama-115m", "deepseek-1b", "const-1b", "full-1b", "learned-1b",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] if any(s in n for s in SIBLINGS) else [])
        for n in CONFIGS
    ],
)
def test_config_takes_steps(name, text, tmp_path):
    runner = train(
        small(name, text, tmp_path, **{"train_cfg.max_iters": 2, "train_cfg.val_interval": 2}),
        tmp_path / "run",
    )
    assert runner.iter == 2
    values = runner.message_hub.log_scalars
    entropy = values["val/cross_entropy"].current()
    assert values["val/bits_per_byte"].current() == pytest.approx(entropy / math.log(2))
    assert values["val/perplexity"].current() == pytest.approx(math.exp(entropy))
    mixed = runner.model.decoder.config.mixed
    assert ("train/expert_share/0" in values) == mixed
    if mixed and runner.model.decoder.config.lorentz:
        assert values["train/expert_c/0.0"].current() > 0
    if mixed:
        assert runner.model.decoder.layers[1].ffn.gate.bias.any()


def test_resume_within_an_epoch_is_bit_equal(text, tmp_path):
    name = "helm-mice-tiny_books.py"
    whole = train(small(name, text, tmp_path), tmp_path / "whole")
    assert len(whole.train_dataloader.dataset) == 7  # 6 steps of 2: within the second epoch
    train(small(name, text, tmp_path, **{"train_cfg.max_iters": 4}), tmp_path / "cut")
    (tmp_path / "cut/iter_4.pth").unlink()  # as if it had been killed before
    (tmp_path / "cut/last_checkpoint").write_text(str(tmp_path / "cut/iter_3.pth"))
    resumed = train(small(name, text, tmp_path), tmp_path / "cut", resume="auto")
    for (key, a), b in zip(whole.model.state_dict().items(), resumed.model.state_dict().values()):
        assert torch.equal(a, b), key
    states = [runner.optim_wrapper.optimizer.state_dict()["state"] for runner in (whole, resumed)]
    assert all(torch.equal(states[0][k]["exp_avg"], states[1][k]["exp_avg"]) for k in states[0])


@pytest.mark.slow
def test_training_learns_and_is_used(text, tmp_path, capsys):
    config = small(
        "helm-mice-tiny_books.py",
        text,
        tmp_path,
        **{"train_cfg.max_iters": 40, "train_cfg.val_interval": 40},
    )
    config.model.n_layers = 2
    path = tmp_path / "config.py"
    config.dump(path)
    runner = train(path, tmp_path / "run")
    losses = [float(v) for v in runner.message_hub.get_scalar("train/loss_tokens").data[0]]
    assert losses[-1] < losses[0] - 1.5
    folder = tmp_path / "model"
    weights = next((tmp_path / "run").glob("iter_*.pth"))
    pytest.importorskip("transformers")
    assert main(["lm", "save", str(path), str(weights), str(folder)]) == 0
    capsys.readouterr()
    assert (
        main(["lm", "generate", str(folder), "the sea", "a", "--tokens", "8", "--temperature", "0"])
        == 0
    )
    said = capsys.readouterr().out
    assert said.startswith("the sea") and "\n\na" in said
    assert main(["lm", "generate", str(folder), "the sea", "--tokens", "9000"]) == 2
    assert re.search("9000.* 256 .*--tokens", capsys.readouterr().err)
    assert main(["lm", "generate", str(tmp_path), "a"]) == 2
    assert "no config.json" in capsys.readouterr().err
    assert main(["test", str(path), str(weights)]) == 0
    assert "bits_per_byte" in json.loads(capsys.readouterr().out.splitlines()[-1])


ITEMS = [
    # as HellaSwag has them, and the prompt that the harness makes of them
    (
        dict(activity_label="Sailing", ctx_a="The ship is grey.", ctx_b="men"),
        "Sailing: The ship is grey. Men",
    ),
    (
        dict(activity_label="Home", ctx_a="It was cold [step] and far.", ctx_b=""),
        "Home: It was cold and far.",
    ),
    (dict(activity_label="Singing", ctx_a="He sings.", ctx_b="he"), "Singing: He sings. He"),
    (
        dict(activity_label="Sleep", ctx_a="Two men sleep.", ctx_b="they"),
        "Sleep: Two men sleep. They",
    ),
]
ENDINGS = ["sang away.", "sang for long", "ran 17 km", "went home."]


@pytest.mark.parametrize("style", ["harness", "official"])
def test_a_task_of_the_harness(style, tmp_path, capsys):
    """Its HellaSwag on items of our own, through the command; it must choose as the model does."""
    harness = pytest.importorskip("lm_eval", reason="the harness (extra 'eval') is not installed")
    transformers = pytest.importorskip("transformers")
    from hypvision.helm.huggingface import HelmConfig, HelmForCausalLM

    folder, tasks = tmp_path / "model", tmp_path / "tasks"
    model = HelmForCausalLM(
        HelmConfig.of("helm_mice_tiny", bos_token_id=1, eos_token_id=1, pad_token_id=0)
    ).eval()
    model.model.head.weight.data.mul_(8)  # it is sure of itself
    model.save_pretrained(folder)
    tokenizer = transformers.ByT5Tokenizer(extra_ids=0)
    tokenizer.save_pretrained(folder)
    turned, labels = [ENDINGS[i:] + ENDINGS[:i] for i in range(4)], [0, 3, 0, 0]
    lines = [
        json.dumps(item | dict(endings=endings, label=str(label)))
        for (item, _), endings, label in zip(ITEMS, turned, labels)
    ]
    (tmp_path / "items.jsonl").write_text("\n".join(lines))
    tasks.mkdir()
    files = {split: str(tmp_path / "items.jsonl") for split in ("train", "validation")}
    own = dict(
        include=str(Path(harness.__file__).parent / "tasks/hellaswag/hellaswag.yaml"),
        task="our_hellaswag", dataset_path="json", dataset_kwargs=dict(data_files=files),
    )  # fmt: skip
    (tasks / "our_hellaswag.yaml").write_text(yaml.safe_dump(own))
    right, right_by_length = 0, 0
    for (_, prompt), endings, label in zip(ITEMS, turned, labels):
        ahead = tokenizer.encode(
            f"{prompt}." if style == "official" else prompt, add_special_tokens=False
        )
        ahead = [1, *ahead] if style == "official" else ahead
        scores = []
        for ending in endings:
            behind = tokenizer.encode(f" {ending}", add_special_tokens=False)
            logits = model(torch.tensor([ahead + behind])).logits[0].log_softmax(-1)
            scores.append(
                sum(logits[len(ahead) + k - 1, token].item() for k, token in enumerate(behind))
            )
        right += scores.index(max(scores)) == label
        by_length = [score / len(ending) for score, ending in zip(scores, endings)]
        right_by_length += by_length.index(max(by_length)) == label
    assert 0 < right < len(ITEMS)
    command = (
        f"lm eval {folder} --tasks our_hellaswag --include {tasks} --prompt-style {style}"
    ).split()
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["our_hellaswag"]
    assert found["acc,none"] == right / len(ITEMS)
    assert found["acc_norm,none"] == right_by_length / len(ITEMS)


def test_points_learn_unless_they_are_frozen():
    """The published script of HELM-D leaves them out of every optimiser, by an oversight (defect
    2)."""
    from mmengine.registry import MODELS, DefaultScope

    from hypvision.engine.config import parse_options
    from hypvision.tasks.language import LanguageParamGroups

    for word in ("False", "True"):
        frozen = parse_options([f"model.freeze_embedding={word}"])["model.freeze_embedding"]
        assert frozen == (word == "True")  # as published, "False" would be true
        with DefaultScope.overwrite_default_scope("mmengine"):
            model = MODELS.build(
                dict(type="LanguageModel", preset="helm_d_tiny", freeze_embedding=frozen)
            )
            wrapper = LanguageParamGroups(dict(optimizer=dict(type="RiemannianAdamW", lr=1e-3)))(
                model
            )
        before = model.decoder.embed.weight.detach().clone()
        ids = torch.arange(24).view(2, 12)
        wrapper.update_params(model(ids, torch.zeros_like(ids), mode="loss")["loss_tokens"])
        assert torch.equal(before, model.decoder.embed.weight) == frozen


def test_small_models_generate_on_one_thread():
    before = torch.get_num_threads()
    for count, threads in ((10_000, 1), (100_000_000, before)):
        with _few_threads(SimpleNamespace(num_parameters=lambda count=count: count)):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == before


def test_parameter_groups():
    from mmengine.registry import MODELS, DefaultScope

    from hypvision.tasks.language import LanguageParamGroups

    def groups(**options):
        with DefaultScope.overwrite_default_scope("mmengine"):
            model = MODELS.build(dict(type="LanguageModel", preset="helm_mice_tiny"))
            wrapper = LanguageParamGroups(
                dict(optimizer=dict(type="RiemannianAdamW", lr=1e-3, weight_decay=0.01)), options
            )(model)
        names = {id(p): name.removeprefix("decoder.") for name, p in model.named_parameters()}
        return {
            group["name"]: (group["weight_decay"], {names[id(p)] for p in group["params"]})
            for group in wrapper.optimizer.param_groups
        }

    clean = groups()
    assert clean["points"] == (0.0, {"embed.weight"})
    assert "layers.1.ffn.experts.0.c" in clean["no_weight_decay"][1]
    released = groups(released=True)
    decayed = released["weights"][1]
    for name in (
        "layers.1.ffn.experts.0.c",
        "layers.0.attn_w_y",
        "layers.0.attn.scale",
        "layers.1.ffn.w_y",
    ):
        assert name in decayed  # as published
    for name in (
        "layers.1.ffn.scale",
        "layers.0.ffn_norm.weight",
        "layers.0.attn.kv_norm.weight",
        "layers.0.attn.up.bias",
    ):
        assert name in released["no_weight_decay"][1]
    assert released["points"] == (0.0, {"embed.weight"})


def test_mistakes_are_sentences(text, tmp_path):
    config = small("helm-d-tiny_books.py", text, tmp_path)
    config.model.preset = "helm_d_small"
    with pytest.raises(HypvisionError, match="There is no preset 'helm_d_small'"):
        train(config, tmp_path / "run")
    config = small("helm-d-tiny_books.py", text, tmp_path)
    config.model.vocab_size = 100  # of another tokenizer
    with pytest.raises(HypvisionError, match="but the model knows 100, from 0. Take the tokenizer"):
        train(config, tmp_path / "run")


def test_tokens_of_another_tokenizer_are_found_before_they_reach_a_device(tmp_path):
    model = LanguageModel("helm_d_tiny", vocab_size=100)
    batch = dict(input_ids=torch.tensor([[1, 100]]), sequence_id=torch.zeros(1, 2))
    with pytest.raises(
        HypvisionError, match="from 1 to 100, but the model knows 100, from 0. Take the tokenizer"
    ):
        model.data_preprocessor(batch, True)
    transformers = pytest.importorskip("transformers")
    from hypvision.helm.huggingface import HelmConfig, HelmForCausalLM

    HelmForCausalLM(HelmConfig.of(model.decoder.config)).save_pretrained(tmp_path)
    transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(tmp_path)
    with pytest.raises(
        HypvisionError, match="has 259 tokens, but the model has a vocabulary of 100"
    ):
        load_folder(tmp_path)


def test_tasks_whose_items_are_out_of_reach(tmp_path, capsys, monkeypatch):
    """Without a network the harness fails on its own data sets: a sentence, no traceback."""
    pytest.importorskip("lm_eval", reason="the harness (extra 'eval') is not installed")
    transformers = pytest.importorskip("transformers")
    from hypvision.helm.huggingface import HelmConfig, HelmForCausalLM

    HelmForCausalLM(HelmConfig.of("helm_d_tiny", bos_token_id=1)).save_pretrained(
        tmp_path / "model"
    )
    transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(tmp_path / "model")
    task = dict(
        task="absent", dataset_path="json",
        dataset_kwargs=dict(data_files=str(tmp_path / "absent.jsonl")), test_split="train",
        output_type="multiple_choice", doc_to_text="{{a}}", doc_to_choice="{{b}}",
        doc_to_target="{{c}}", metric_list=[dict(metric="acc")],
    )  # fmt: skip
    (tmp_path / "absent.yaml").write_text(yaml.safe_dump(task))
    assert (
        main(
            ["lm", "eval", str(tmp_path / "model"), "--tasks", "absent", "--include", str(tmp_path)]
        )
        == 2
    )
    assert "The harness could not read the items of absent" in capsys.readouterr().err


def test_tokenizers_that_mark_no_beginning(text, tmp_path, capsys):
    """BERT's have a class token in its place: with it documents begin in training, and prompts."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "the", "sea", "is"])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    names = dict(unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained(
        tmp_path / "words"
    )
    config = small("helm-d-tiny_books.py", text, tmp_path)
    config.train_dataloader.dataset.tokenizer = str(tmp_path / "words")
    config.model.vocab_size = 6
    config.dump(tmp_path / "config.py")
    torch.save(
        dict(
            state_dict=LanguageModel(
                **{k: v for k, v in config.model.items() if k != "type"}
            ).state_dict()
        ),
        tmp_path / "a.pth",
    )
    assert (
        main(
            [
                "lm",
                "save",
                str(tmp_path / "config.py"),
                str(tmp_path / "a.pth"),
                str(tmp_path / "saved"),
            ]
        )
        == 0
    )
    assert load_folder(tmp_path / "saved")[0].config.bos_token_id == 1
    assert main(["lm", "generate", str(tmp_path / "saved"), "the sea", "--tokens", "3"]) == 0
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("the sea")


def test_the_blank_behind_a_prompt():
    """Tokenizers like Llama 2's write no blank before the first word of a text; the continuation
    must keep its own."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["[UNK]", "<s>", "▁the", "▁sea", "▁is"])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    inner.decoder = tokenizers.decoders.Metaspace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")
    assert tokenizer.decode([4, 2]) == "is the"
    assert _continuation(tokenizer, [1, 2, 3], [4, 2]) == " is the"
    assert _continuation(transformers.ByT5Tokenizer(extra_ids=0), [1, 100], [35, 101]) == " b"


def test_a_folder_without_a_padding_token(tmp_path):
    """Its configuration names none; prompts of several lengths are filled with the first token."""
    transformers = pytest.importorskip("transformers")
    from hypvision.helm.huggingface import HelmConfig, HelmForCausalLM

    HelmForCausalLM(HelmConfig.of("helm_d_tiny", bos_token_id=1)).save_pretrained(tmp_path)
    transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(tmp_path)
    assert len(generate(tmp_path, ["a", "the sea"], tokens=2)) == 2


def test_a_folder_of_other_files_is_kept(tmp_path, capsys):
    pytest.importorskip("transformers")
    (tmp_path / "mine.txt").write_text("untouched")
    config = str(ROOT / "configs/helm/helm-d-tiny_books.py")
    assert main(["lm", "save", config, "none.pth", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "untouched"


FOLDERS = {
    "code": {
        "config.json": '{"model_type": "own", "auto_map": {"AutoConfig": "own.C", '
        '"AutoModelForCausalLM": "own.M"}}'
    },
    "code for ours": {
        "config.json": '{"model_type": "helm", "auto_map": {"AutoModelForCausalLM": "own.M"}}'
    },
    "a pickle": {
        "config.json": '{"model_type": "helm"}',
        "pytorch_model.bin": pickle.dumps(Path("x")),
    },
    "a damaged file": {"config.json": '{"model_type": "helm"}', "model.safetensors": b"none"},
    "no JSON": {"config.json": "{"},
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_without_a_model_run_no_code(tmp_path, name, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks"))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    for file, content in FOLDERS[name].items():
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(HypvisionError, match="cannot be loaded|is not a checkpoint"):
        load_folder(tmp_path)
    assert not (tmp_path / "ran").exists()
