"""Text out of files, tokenizers, and rows of packed documents."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.cases import each

from hypvision.data.language import ByteTokenizer, PackedText, documents, load_tokenizer, pack
from hypvision.helm.model import document_lengths
from hypvision.io.errors import HypvisionError


def test_bytes_are_those_of_transformers():
    ours = ByteTokenizer()
    text = "A small café\n"
    theirs = pytest.importorskip("transformers").ByT5Tokenizer(extra_ids=0)
    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text)
    assert len(theirs) == ours.vocab_size and theirs.eos_token_id == ours.bos_id


def test_files_of_all_kinds(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n\ntwo")
    (tmp_path / "b.jsonl").write_text('{"text": "three"}\n{"text": "four"}\n')
    assert list(documents(tmp_path)) == ["one\n\n\ntwo", "three", "four"]
    assert list(documents([tmp_path / "a.txt"], separator="\n\n\n")) == ["one", "two"]
    assert list(documents(str(tmp_path / "*.jsonl"))) == ["three", "four"]
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    with pytest.raises(HypvisionError, match="nested too deeply"):
        list(documents(str(tmp_path / "deep.jsonl")))
    for source, text in ((tmp_path / "none.txt", "no text at"), ("*.nothing", "no text at")):
        with pytest.raises(HypvisionError, match=text):
            list(documents(source))
    with pytest.raises(HypvisionError, match="the field 'body'"):
        list(documents(tmp_path / "b.jsonl", field="body"))


EMPTY = [dict(text="one"), dict(text=None), dict(text=""), dict(text=" \n"), dict(text="two")]
BAD = {"'text'": dict(body="x"), "row 2 has int": dict(text=7), "row 2 is of type list": ["x"]}


def hub(monkeypatch, rows):
    """A data set of the hub with these rows."""
    datasets = SimpleNamespace(load_dataset=lambda *names, **options: iter(rows))
    monkeypatch.setattr("hypvision.data.language.require", lambda name, extra: datasets)
    return "hf:some/text"


def jsonl(folder, rows):
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


def test_rows_without_text_are_left_out(tmp_path, monkeypatch):
    assert list(documents(jsonl(tmp_path, EMPTY))) == ["one", "two"]
    assert list(documents(hub(monkeypatch, EMPTY))) == ["one", "two"]


@each("text", BAD)
def test_rows_that_hold_something_else_are_told(text, tmp_path, monkeypatch):
    rows = [dict(text="one"), BAD[text]]
    for source in (jsonl(tmp_path, rows), hub(monkeypatch, rows)):
        with pytest.raises(HypvisionError, match=f"the field 'text' .*{text}"):
            list(documents(source))


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["one", "", "two"]}), tmp_path / "a.parquet")
    assert list(documents(tmp_path)) == ["one", "two"]
    with pytest.raises(HypvisionError, match="the field 'body'"):
        list(documents(tmp_path, field="body"))


def test_first_fit():
    assert pack([5, 6, 3, 2, 9], 10) == [[0, 2, 3], [1], [4]]
    assert pack([5, 6, 3, 2, 9], 10, window=2) == [[0], [1], [2, 3], [4]]
    lengths = [1 + i * 37 % 64 for i in range(500)]
    rows = pack(lengths, 64)
    assert sorted(i for row in rows for i in row) == list(range(500))
    assert all(sum(lengths[i] for i in row) <= 64 for row in rows)
    assert sum(lengths) / 64 / len(rows) > 0.95


@pytest.mark.parametrize("tail", ["keep", "drop"])
def test_rows(tmp_path, tail):
    texts = ["a" * 20, "b" * 3, "c" * 4, "d" * 9]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(dict(text=text)) + "\n" for text in texts))
    data = PackedText(tmp_path / "t.jsonl", length=10, cache=tmp_path / "cache", tail=tail)
    seen = []
    for row in (data[i] for i in range(len(data))):
        ids, number = row["input_ids"], row["sequence_id"]
        assert ids.shape == number.shape == (10,)
        assert ((number == -1) == (ids == 0)).all()
        for k in range(int(number.max()) + 1):
            seen.append(bytes(i - 3 for i in ids[number == k].tolist() if i > 2).decode())
    whole = "".join(sorted(seen))
    # a document of 21 tokens has a tail of one, from which nothing is to be learned
    expected = "".join(sorted(["a" * 9, "a" * 10, *texts[1:]]))
    assert whole == expected
    assert data.metainfo["tokens_per_byte"] == 1.0
    # the second time from the disk, and from other text anew
    again = PackedText(tmp_path / "t.jsonl", length=10, cache=tmp_path / "cache", tail=tail)
    assert torch.equal(again[0]["input_ids"], data[0]["input_ids"])
    (tmp_path / "t.jsonl").write_text(json.dumps(dict(text="zz")))
    assert len(PackedText(tmp_path / "t.jsonl", length=10, cache=tmp_path / "cache")) == 1


def test_what_is_left_out_of_text_is_counted(tmp_path):
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps(dict(text=line)) + "\n" for line in ("a" * 25, "b", "c" * 9))
    )
    options = dict(length=10, cache=tmp_path / "cache")
    usage = PackedText(tmp_path / "t.jsonl", **options).usage
    assert usage.used == dict(documents=3, tokens=38, rows=4) and not usage.left_out()
    usage = PackedText(tmp_path / "t.jsonl", tail="drop", limit=2, **options).usage
    assert str(usage).endswith(
        "t.jsonl': used 3 of 3 documents, 32 of 38 tokens, 2 of 4 rows. Left out: 6 tokens "
        "(tail='drop': ends of documents longer than a row, ...); 2 rows (limit=2: the last)."
    ), str(usage)


def test_runs_of_documents():
    number = torch.tensor([[0, 0, 1, 1, 1, -1], [0, 0, 0, 0, 0, 0]])
    assert document_lengths(number) == [2, 3, 1, 6]
    assert document_lengths(number.zero_()) == [6, 6]


def test_mistakes_are_sentences(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(HypvisionError, match="tail must be"):
        PackedText(tmp_path / "a.txt", tail="cut", cache=tmp_path)
    with pytest.raises(HypvisionError, match="length must be an integer of at least 2"):
        PackedText(tmp_path / "a.txt", length=1, cache=tmp_path)
    (tmp_path / "blank.txt").write_text(" \n\n")
    for _ in range(2):  # nothing of it is kept
        with pytest.raises(HypvisionError, match="blank.txt' is empty"):
            PackedText(tmp_path / "blank.txt", cache=tmp_path)
    pytest.importorskip("transformers")
    with pytest.raises(HypvisionError, match="cannot be loaded") as told:
        load_tokenizer(str(tmp_path / "nowhere"))
    message = str(told.value)
    free = re.search(r"'(\S+/\S+)' with vocab_size=", message)[1]
    readme = Path(__file__).parents[2] / re.search(r"configs/\S+\.md", message)[0]
    assert free in readme.read_text()


def test_stored_tokens_are_those_of_the_tokenizer(tmp_path):
    """A folder's tokenizer is made anew, with as many words in another order."""
    transformers, tokenizers = (
        pytest.importorskip("transformers"),
        pytest.importorskip("tokenizers"),
    )
    (tmp_path / "a.txt").write_text("a b a b")
    for words in (("a", "b", "c"), ("c", "a", "b")):
        numbers = {word: i for i, word in enumerate(("[UNK]", "[BOS]", *words))}
        inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        options = dict(tokenizer_object=inner, unk_token="[UNK]", bos_token="[BOS]")
        transformers.PreTrainedTokenizerFast(**options).save_pretrained(tmp_path / "tokenizer")
        for _ in range(2):  # the second time from the disk
            data = PackedText(
                tmp_path / "a.txt", str(tmp_path / "tokenizer"), length=8, cache=tmp_path / "cache"
            )
            assert data.tokens.tolist() == [1, *(numbers[word] for word in "abab")]
    assert len(list((tmp_path / "cache").glob("*.bin"))) == 2


def test_stored_tokens_that_are_damaged_are_made_again(tmp_path):
    (tmp_path / "a.txt").write_text("The sea is wide.")
    options = dict(length=8, cache=tmp_path / "tokens")
    whole = PackedText(tmp_path / "a.txt", **options)
    tokens = whole.tokens.tolist()  # a copy: the file is overwritten below
    (flat,), (facts,) = (list((tmp_path / "tokens").glob(kind)) for kind in ("*.bin", "*.json"))
    for path, content in (
        (flat, flat.read_bytes()[:-5]),
        (flat, b""),
        (facts, b"{"),
        (facts, b'{"sizes": [3]}'),
    ):
        path.write_bytes(content)
        again = PackedText(tmp_path / "a.txt", **options)
        assert again.rows == whole.rows and again.tokens.tolist() == tokens
    flat.unlink()
    assert PackedText(tmp_path / "a.txt", **options).rows == whole.rows
