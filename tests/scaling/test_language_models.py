"""The table of models, names of heads, and statistics of heads and tokens."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hypvision.io.errors import HypvisionError
from hypvision.scaling.language_models import (
    frequency_exponent,
    head_name,
    head_statistics,
    paper_models,
    read_models,
    token_counts,
)


def test_the_table_has_the_papers_models():
    table = {row.model: (row.family, row.head, row.m) for row in paper_models()}
    assert len(table) == len(paper_models()) == 27
    assert table["facebook/opt-66b"] == ("OPT", "lm_head.weight", 9216)
    assert table["facebook/opt-350m"] == ("OPT", "model.decoder.embed_tokens.weight", 1024)
    assert table["Qwen/Qwen2.5-3B"] == ("Qwen2.5", "model.embed_tokens.weight", 2048)
    assert table["Qwen/Qwen2.5-7B"] == ("Qwen2.5", "lm_head.weight", 3584)
    assert table["openai-community/gpt2-xl"] == ("GPT-2", "wte.weight", 1600)
    assert table["EleutherAI/pythia-12b"] == ("Pythia", "embed_out.weight", 5120)


def test_mistakes_in_tables_of_models_are_named(tmp_path):
    path = tmp_path / "models.csv"
    for line, said in (
        ("a,b,c,wide", "line 2: 'm' must be a whole number, got 'wide'"),
        ("a,b,,3", "line 2: missing head"),
    ):
        path.write_text("family,model,head,m\n" + line)
        with pytest.raises(HypvisionError, match=said):
            read_models(path)


def test_names_of_heads():
    assert head_name(["model.embed_tokens.weight", "lm_head.weight"]) == "lm_head.weight"
    assert head_name(["decoder.embed_tokens.weight", "x"]) == "decoder.embed_tokens.weight"
    assert head_name(["x"], "x") == "x"
    assert head_name(["decoder.x", "lm_head.weight"], "model.decoder.x") == "decoder.x"
    with pytest.raises(HypvisionError, match="'y'. It has: x"):
        head_name(["x"], "y")
    with pytest.raises(HypvisionError, match="none of lm_head.weight.*It has: my.embedding"):
        head_name(["a", "my.embedding"])


def test_random_heads_are_in_strong_superposition():
    head = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    found = head_statistics(head, block=900)
    assert found["overlap_times_m"] == pytest.approx(1, abs=0.02)
    assert found["m"] == 64
    assert found["tokens"] == 4000
    assert found["norm_min"] > 4 and found["norm_mean"] == pytest.approx(8, rel=0.02)
    assert found["frame_potential"] == pytest.approx(1 + 63 / 4000, rel=1e-3)
    assert found["welch"] == pytest.approx(((4000 - 64) / (64 * 3999)) ** 0.5)
    mean, std = found["overlap_mean_absolute"], found["overlap_std_absolute"]
    assert mean**2 + std**2 == pytest.approx(found["overlap_mean"])
    for wrong in (torch.ones(3), torch.ones(1, 3), torch.ones(3, 3, dtype=torch.int64)):
        with pytest.raises(HypvisionError, match="A head must be a float matrix"):
            head_statistics(wrong)
    head[3, 3] = float("nan")
    with pytest.raises(HypvisionError, match="NaN or infinite"):
        head_statistics(head)


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that an operation made, views not counted."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        there = {
            t.untyped_storage().data_ptr()
            for t in tree_leaves((args, kwargs))
            if isinstance(t, torch.Tensor)
        }
        for tensor in tree_leaves(made):
            if (
                isinstance(tensor, torch.Tensor)
                and tensor.untyped_storage().data_ptr() not in there
            ):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_head_is_read_block_by_block(dtype):
    head = torch.randn(603, 64, generator=torch.Generator().manual_seed(2)).to(dtype)
    with Largest() as made:
        found = head_statistics(head, block=50)
    assert (
        0 < made.bytes <= 50 * 64 * 4
    )  # one block in float32; in half precision the whole head is six times that
    wide = head.double()
    squares = (wide @ wide.T).square() / torch.outer(*[wide.square().sum(1)] * 2)
    squares = squares[torch.triu_indices(603, 603, 1).unbind()]
    assert found["overlap_mean"] == pytest.approx(squares.mean().item(), rel=1e-6)
    assert found["overlap_max"] == pytest.approx(squares.max().sqrt().item(), rel=1e-6)
    assert found["norm_std"] == pytest.approx(wide.norm(dim=1).std().item(), rel=1e-5)


def test_all_tokens_are_counted_and_exponents_are_found():
    texts = [[0, 1, 1], [], [5, 1], [2, 2, 2], [3]]
    for block in (1, 4, 100):
        assert token_counts(texts, list, block).tolist() == [1, 3, 3, 1, 0, 1]
    assert int(token_counts(["a"] * 1200, lambda text: [7] * 1000).sum()) == 1_200_000
    zipf = torch.tensor([round(1e6 / k**1.1) for k in range(1, 500)])
    assert frequency_exponent(zipf[torch.randperm(499)]) == pytest.approx(1.1, abs=1e-3)
    with pytest.raises(HypvisionError, match="3 different tokens"):
        frequency_exponent(torch.tensor([4, 0, 3, 1]))
    with pytest.raises(HypvisionError, match="no tokens"):
        token_counts([], list)
