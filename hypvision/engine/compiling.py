"""Compile a network's blocks by ``torch.compile`` for training, and run them eagerly if that fails.

A config asks for it by ``compile=True`` or ``compile=dict(...)`` with arguments of
:func:`torch.compile`, the command line by ``hypvision train --compile``. mmengine itself would
compile the whole training step with preprocessing and logging, whose numbers break the graph.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from mmengine.runner import Runner
from torch import nn
from torch._dynamo.exc import TorchDynamoException

from hypvision.inference.progress import say
from hypvision.io import HypvisionError, one_line

from .hooks import network_of

_logger = logging.getLogger(__name__)

# A block has at least so many layers with parameters; compiling a convolution with its norm alone
# gains nothing.
_LAYERS = 3
# The number of graphs that one class of block may have: each stage has its own shapes, and training
# and evaluation their own mode.
_GRAPHS = 64


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """Return the blocks of a network that are compiled one by one, in their order.

    They are the innermost modules that stand beside others of their class in an ``nn.Sequential``
    or an ``nn.ModuleList``, so that a block of each class and shape is compiled once (regional
    compilation). A network without such blocks is one block.
    """
    found = _repeated(network)
    return found if found else [network]


def _repeated(module: nn.Module) -> list[nn.Module]:
    inner = [block for child in module.children() for block in _repeated(child)]
    if inner or not isinstance(module, (nn.Sequential, nn.ModuleList)):
        return inner
    return [child for child in module if _is_block(child, Counter(map(type, module)))]


def _is_block(child: nn.Module, kinds: Counter[type[nn.Module]]) -> bool:
    layers = sum(any(True for _ in part.parameters(recurse=False)) for part in child.modules())
    return kinds[type(child)] > 1 and layers >= _LAYERS


def compile_network(network: nn.Module, **options: Any) -> list[nn.Module]:
    """Compile the blocks of a network in place.

    The names of parameters, and so checkpoints, stay the same. PyTorch compiles a block at its
    first call.

    Args:
        network: the network.
        options: arguments of :func:`torch.compile`.

    Returns:
        The compiled blocks.

    Raises:
        HypvisionError: an argument in ``options`` is unknown to :func:`torch.compile`.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _GRAPHS)
    blocks = blocks_of(network)
    for block in blocks:
        try:
            block.compile(**options)
        except (TypeError, RuntimeError, ValueError) as error:
            raise HypvisionError(
                f"compile={options} in the config does not fit torch.compile: {one_line(error)}"
            ) from error
    return blocks


def uncompile(blocks: list[nn.Module]) -> None:
    """Let compiled blocks run eagerly again."""
    for block in blocks:
        block._compiled_call_impl = None


def eager_on_failure(
    step: Callable[..., Any], blocks: list[nn.Module], model: nn.Module
) -> Callable[..., Any]:
    """Return a step of a model that, if compiling fails in it, is repeated with eager blocks; all
    later steps run eagerly, too.

    Compilation happens in the first forward and, with sizes that vary, in the first backward.
    """

    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        except TorchDynamoException as error:
            # The text from here on is advice for PyTorch's developers.
            reason = str(error).partition("\nSet TORCHDYNAMO_VERBOSE")[0]
            _logger.warning(
                "torch.compile failed, so the network runs eagerly: %s", " ".join(reason.split())
            )
            uncompile(blocks)
        # The failure may have interrupted a backward pass, which leaves gradients behind.
        model.zero_grad()
        return step(*args, **kwargs)

    return guarded


def let_compile(runner: Runner) -> None:
    """Let a runner compile the blocks of its network, where mmengine would compile the whole
    step."""
    runner._maybe_compile = lambda step: _compile_runner(runner)


def _compile_runner(runner: Runner) -> None:
    options = runner.cfg.compile
    blocks = compile_network(network_of(runner), **({} if options is True else options))
    kinds = Counter(type(block).__name__ for block in blocks)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    say(f"compile  {listed}; the first steps are slow")
    for name in ("train_step", "val_step", "test_step"):
        step = getattr(runner.model, name)
        setattr(runner.model, name, eager_on_failure(step, blocks, runner.model))
