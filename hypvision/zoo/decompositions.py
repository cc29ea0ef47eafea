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

from hypvision.geometry.exportable import FORMULAS

_KEPT = {  # composite operations that ONNX has, though the table does not say so
    torch.ops.aten.reshape.default, torch.ops.aten.sym_size.int,
    torch.ops.aten.upsample_bilinear2d.vec, torch.ops.aten.upsample_nearest2d.vec,
}  # fmt: skip
_CHECKS = ("aten::_assert_tensor_metadata", "aten::_assert_scalar", "aten::_assert_async")


def _of_doubles(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return a decomposition that applies to float64 alone."""
    return lambda *x: function(*x) if x[0].dtype == torch.float64 else NotImplemented


# The geometry uses the formulas itself while it is exported; a user's own layers may not.
_DOUBLES = {operation: _of_doubles(formula) for operation, formula in FORMULAS.items()}


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
