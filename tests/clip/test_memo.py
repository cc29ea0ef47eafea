"""A kept value is made anew when, and only when, a tensor or the key changes."""

import copy
import pickle

import torch

from hypvision.clip.memo import Memo


def test_it_is_made_anew_when_something_changes():
    memo, calls = Memo(), []
    a, b = torch.zeros(2), torch.zeros(2)

    def value(*tensors, key=None):
        return memo.get(tensors, lambda: calls.append(1) or len(calls), key)

    assert value(a, b) == value(a, b) == 1
    b.add_(1)
    assert value(a, b) == value(a, b) == 2
    assert value(b, a) == 3 and value(b) == 4
    assert value(b, key="x") == value(b, key="x") == 5
    assert value(b.clone(), key="x") == 6  # equal, but another one
    memo.clear()
    assert value(b, key="x") == 7
    b.data.mul_(2)
    assert value(b, key="x") == 7  # what autograd does not count needs clear()


def test_an_address_used_again_is_no_hit():
    memo = Memo()
    for number in range(50):
        assert memo.get([torch.zeros(8)], lambda number=number: number) == number


def test_values_are_made_without_gradients_and_outlive_inference_mode():
    parameter = torch.nn.Parameter(torch.ones(2))
    memo = Memo()
    with torch.inference_mode():
        value = memo.get([parameter], lambda: 2 * parameter)
        assert memo.get([torch.ones(1)], lambda: 3) == 3  # an inference tensor has no version
    assert not value.requires_grad and not value.is_inference()


def test_copies_begin_empty():
    memo, tensor = Memo(), torch.zeros(1)
    memo.get([tensor], lambda: 1)
    for other in (copy.deepcopy(memo), pickle.loads(pickle.dumps(memo))):
        assert other.get([tensor], lambda: 2) == 2
    assert memo.get([tensor], lambda: 3) == 1


def test_a_compiled_graph_computes_anew():
    memo, weight = Memo(), torch.ones(2)
    run = torch.compile(
        lambda x: x + memo.get([weight], lambda: 2 * weight), fullgraph=True, backend="eager"
    )
    assert run(torch.zeros(2)).tolist() == [2, 2]
    weight.data.mul_(3)
    assert run(torch.zeros(2)).tolist() == [6, 6]
