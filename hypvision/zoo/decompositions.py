"""Replace operations of an exported program that ONNX lacks by operations that ONNX has.

:meth:`torch.export.ExportedProgram.run_decompositions` does the same, but traces the whole program
anew, twice: this takes half the time of an export, to replace a few of hundreds of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only

_KEPT = {  # composite operations that ONNX has, though the table does not say so
    torch.ops.aten.reshape.default, torch.ops.aten.sym_size.int,
    torch.ops.aten.upsample_bilinear2d.vec, torch.ops.aten.upsample_nearest2d.vec,
}  # fmt: skip
_CHECKS = ("aten::_assert_tensor_metadata", "aten::_assert_scalar", "aten::_assert_async")


def _series(x: Tensor, direct: Tensor, below: float, *factors: float) -> Tensor:
    """Return ``x (1 + a q (1 + b q (...)))`` with ``q = x^2`` and the factors a, b, ... where
    ``|x|`` is smaller than ``below``, and ``direct`` elsewhere."""
    q = x * x
    out = torch.ones_like(x)
    for factor in reversed(factors):
        out = 1 + factor * q * out
    return torch.where(x.abs() < below, x * out, direct)


def _sinh(x: Tensor) -> Tensor:
    return _series(x, (torch.exp(x) - torch.exp(-x)) / 2, 0.1, 1 / 6, 1 / 20, 1 / 42)


def _cosh(x: Tensor) -> Tensor:
    return (torch.exp(x) + torch.exp(-x)) / 2


def _asinh(x: Tensor) -> Tensor:
    size = x.abs()
    direct = torch.sign(x) * torch.log(size + torch.sqrt(x * x + 1))
    return _series(x, direct, 0.02, -1 / 6, -9 / 20, -25 / 42)


def _acosh(x: Tensor) -> Tensor:
    return _asinh(((x - 1) * (x + 1)).sqrt())


def _atanh(x: Tensor) -> Tensor:
    return _series(x, torch.log((1 + x) / (1 - x)) / 2, 0.02, 1 / 3, 3 / 5, 5 / 7)


def _of_doubles(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    """Return a decomposition that applies to float64 alone."""
    return lambda x: function(x) if x.dtype == torch.float64 else NotImplemented


_aten = torch.ops.aten
_DOUBLES = {  # onnxruntime computes these in float32 only
    _aten.sinh.default: _of_doubles(_sinh), _aten.cosh.default: _of_doubles(_cosh),
    _aten.asinh.default: _of_doubles(_asinh), _aten.acosh.default: _of_doubles(_acosh),
    _aten.atanh.default: _of_doubles(_atanh),
}  # fmt: skip


def decompose(program: ExportedProgram, table: Mapping[Any, Any]) -> ExportedProgram:
    """Run ``program.run_decompositions(table)`` in place and return the program, operation by
    operation where the program allows it.

    The program does not allow it if an operation writes into a tensor or contains another program,
    as loops do, or if this version of PyTorch works differently.
    """
    graph = program.graph_module.graph
    table = {**table, **_DOUBLES}
    if _writes(graph) or any(node.op == "get_attr" for node in graph.nodes):
        return ExportedProgram.run_decompositions(program, table)
    for node in _calls(graph):
        if cast("Any", node.target).name().startswith(_CHECKS):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    try:
        _replace_all(program, table)
    # The replacement uses internal parts of PyTorch that other versions may change; after an error
    # the program is still valid.
    except Exception:
        return ExportedProgram.run_decompositions(program, table)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def _replace_all(program: ExportedProgram, table: Mapping[Any, Any]) -> None:
    kept = _KEPT | set(torch.export.default_decompositions()) - set(table)
    for node in _calls(program.graph_module.graph):
        if node.target in table or (node.target not in kept and _composite(node.target)):
            _replace(program, node, table)


def _calls(graph: Graph) -> list[Node]:
    """Return the nodes of a program that call operations of PyTorch."""
    return [node for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def _writes(graph: Graph) -> bool:
    """Return whether an operation of a program writes into a tensor that it is given."""
    targets: list[Any] = [node.target for node in _calls(graph)]
    return any(target._schema.is_mutable for target in targets)


def _composite(operation: Any) -> bool:
    """Return whether an operation is defined by other operations."""
    found: bool = operation.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )
    return found


def _replace(program: ExportedProgram, node: Node, table: Mapping[Any, Any]) -> None:
    """Replace an operation in a program by the operations that it consists of."""
    # This function is not public, but without it free sizes would become the numbers of the
    # example.
    from torch._dispatch.python import enable_python_dispatcher

    inputs = node.all_input_nodes
    operation = cast("Any", node.target)

    def call(*values: Any) -> Any:
        given = dict(zip(inputs, values))
        args, kwargs = tree_map_only(Node, given.__getitem__, (node.args, node.kwargs))
        return operation(*args, **kwargs)

    values: list[Any] = [source.meta["val"] for source in inputs]
    fake = next((value.fake_mode for value in values if hasattr(value, "fake_mode")), nullcontext())
    with fake, enable_python_dispatcher():
        parts = make_fx(call, decomposition_table=table)(*values)
        if _writes(parts.graph):
            parts = make_fx(torch.func.functionalize(parts))(*values)
    copies = dict(zip((n for n in parts.graph.nodes if n.op == "placeholder"), inputs))
    with node.graph.inserting_before(node):
        new: Any = node.graph.graph_copy(parts.graph, copies)
    # The results of an operation with several results are used by nodes that pick one of them.
    picked = (
        [(node, new)]
        if isinstance(new, Node)
        else [(user, new[user.args[1]]) for user in list(node.users)]
    )
    for old, result in picked:
        old.replace_all_uses_with(result)
        program.graph_signature.replace_all_uses(old.name, result.name)
        if old is not node:
            node.graph.erase_node(old)
    node.graph.erase_node(node)
