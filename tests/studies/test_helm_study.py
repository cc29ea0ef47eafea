"""What the study of a language model measures."""

import json
from argparse import Namespace

import helm_study as study
import pytest
import torch

from hypvision.helm import preset
from hypvision.helm.attention import Context
from hypvision.io.errors import HypvisionError

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
from hypvision.helm.huggingface import HelmConfig, HelmForCausalLM  # noqa: E402

TEXT = (
    "The sea was grey, and the ship 12 miles away. The sea sang; the seamen's café -- far-away -- "
    "was cold.\n" * 2
)


def merged_tokenizer():
    """Pairs of bytes, merged: tokens that are no bytes and no words."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        [TEXT], tokenizers.trainers.BpeTrainer(vocab_size=275, initial_alphabet=alphabet)
    )
    inner.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner)


@torch.no_grad()
def test_norms_are_those_before_the_final_norm():
    tokenizer = merged_tokenizer()
    model = HelmForCausalLM(HelmConfig.of(preset("helm_d_tiny", vocab_size=len(tokenizer)))).eval()
    whole = tokenizer(TEXT, return_offsets_mapping=True)
    x = model.model.points(torch.tensor([whole.input_ids]))
    h = model.model.first_norm(x)
    for block in model.model.layers:
        x, h, _ = block(x, h, Context())
    end_of = {end: i for i, (_, end) in enumerate(whole.offset_mapping)}
    words = study._WORD.finditer(TEXT)
    expected = [x[0, end_of[word.end()], :65].norm().item() for word in words]
    assert max(expected) > 1.05 * min(expected)  # behind the final norm all are sqrt(65)
    found = study.norms_by_rarity(model, tokenizer, TEXT, length=256)
    counts = [count for _, _, count in found]
    assert sum(counts) == len(expected) and max(counts) - min(counts) <= 1
    mean = sum(norm * count for _, norm, count in found) / len(expected)
    assert mean == pytest.approx(sum(expected) / len(expected), rel=1e-5)


@torch.no_grad()
def test_rows_are_no_longer_than_asked():
    tokenizer = merged_tokenizer()
    rows = list(study._pieces(tokenizer, TEXT, 3, 20))
    assert len(rows) == 3 and all(len(ids) <= 20 for ids, _ in rows)
    text = "".join(tokenizer.decode(ids) for ids, _ in rows)
    assert TEXT.startswith(text)
    assert [word for _, ends in rows for word, _ in ends] == study._WORD.findall(text.lower())


def log(folder, *records):
    (folder / "vis_data").mkdir(parents=True)
    (folder / "vis_data/scalars.json").write_text("\n".join(map(json.dumps, records)))


def test_runs_are_kept_and_read_again(tmp_path, capsys):
    step = dict(loss=2.0, data_time=0.0)
    log(
        tmp_path / "a-s0/1",
        step | dict(time=60.0, step=2),
        step | dict(time=99.0, step=4),
        dict(bits_per_byte=3.0, step=4),
    )
    # cut and gone on: steps 3 and 4 anew
    ended = dict(time=30.0, step=4, **{"expert_c/0.1": 1.5})
    log(tmp_path / "a-s0/2", step | ended, dict(bits_per_byte=2.0, step=4))
    log(
        tmp_path / "a-s1/1",
        step | dict(time=60.0, step=4),
        dict(bits_per_byte=1.0, step=2),
        dict(bits_per_byte=1.5, step=4),
    )
    args = Namespace(
        folders=[tmp_path / "a-s0", tmp_path / "a-s1"],
        keep=tmp_path / "kept.json",
        steps=None,
        tokens=60,
        figure=None,
    )
    study.runs(args)
    first = capsys.readouterr().out
    assert (
        "| `a` | 2 | 1.000 | 1.750 ± 0.354 | 2 | 4 |" in first
    )  # 60 tokens in 30 s; 3 and 4 minutes
    assert "core-hours: 0.1" in first and "a: c = {'0.1': 1.5}" in first
    study.runs(Namespace(**vars(args) | dict(folders=[tmp_path / "kept.json"], keep=None)))
    assert capsys.readouterr().out == first
    args.steps = [4]
    study.runs(args)
    assert "| config | seeds | 4 | tokens a second |" in capsys.readouterr().out
    for text in ("{}x", '[{"run": "a-s0"}]', "[1]"):
        (tmp_path / "kept.json").write_text(text)
        with pytest.raises(HypvisionError, match="no file that --keep has written"):
            study.read_runs(tmp_path / "kept.json")
