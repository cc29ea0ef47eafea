"""What the Riemannian optimisers have in common: sorting parameters, batching points, following a learned curvature."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from hypvision.geometry import CurvatureParameter, Euclidean, Manifold, Product
from hypvision.geometry.manifolds import whose
from hypvision.geometry.rows import blocks

from .kernels import Kernel, kernel_of

__all__ = ["RiemannianOptimizer"]

# Methods of geoopt's manifolds that steps take.
FOREIGN = ("egrad2rgrad", "component_inner", "retr", "retr_transp")
MOVES = ("tangent", "scale", "project")
# Below this many coordinates, parameters of one manifold and width are updated as one: calls cost more than the work.
_SMALL = 2**16
# Coordinates a block. On a Xeon 2**18 took up to a tenth longer for the calls, 2**21 a third longer for the memory.
_BLOCK = 2**19


class Factor(NamedTuple):
    """One factor of the manifold of a parameter, and where its coordinates lie."""

    kernel: Kernel
    manifold: Manifold
    points: slice
    tangents: slice
    index: int


class Job(NamedTuple):
    """Points of one kernel to update: tensors with the same number of rows."""

    kernel: Kernel
    c: float | Tensor
    x: Tensor  # (N, d)
    grad: Tensor  # (N, d)
    state: dict[str, Tensor]
    step: Tensor | None


def manifold_of(parameter: Tensor) -> Manifold | None:
    """The manifold of this package whose points a parameter holds; None for numbers without constraint."""
    manifold = getattr(parameter, "manifold", None)
    return manifold if isinstance(manifold, Manifold) and not isinstance(manifold, Euclidean) else None


def foreign_manifold_of(parameter: Tensor) -> Any:
    """The manifold of another package, such as geoopt's, whose points a parameter holds; None if there is none."""
    manifold = getattr(parameter, "manifold", None)
    flat = manifold is None or isinstance(manifold, Manifold) or getattr(manifold, "name", None) == "Euclidean"
    return None if flat else manifold


def factors(manifold: Manifold, width: int) -> list[Factor]:
    """The factors of a manifold, for points of ``width`` coordinates."""
    if not isinstance(manifold, Product):
        kernel = kernel_of(manifold)
        return [Factor(kernel, manifold, slice(0, width), slice(0, kernel.size(width)), 0)]
    found, start, tangent = [], 0, 0
    for index, (part, size) in enumerate(zip(manifold.manifolds, manifold.sizes)):
        kernel = kernel_of(part)
        dim = kernel.size(size)
        found.append(Factor(kernel, part, slice(start, start + size), slice(tangent, tangent + dim), index))
        start, tangent = start + size, tangent + dim
    return found


def number(c: float | Tensor, dtype: torch.dtype) -> float | Tensor:
    """A curvature without gradient, in the dtype of the points: its root and inverse are rounded to that."""
    return c.detach().to(dtype) if isinstance(c, Tensor) else c


def leaves(manifold: Manifold) -> list[Manifold]:
    """The manifold itself, or the factors of a product."""
    return list(manifold.manifolds) if isinstance(manifold, Product) else [manifold]


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or what a DTensor holds of it on this rank.

    Raises:
        RuntimeError: the DTensor is split inside its points.
    """
    if not hasattr(tensor, "placements"):
        return tensor
    for placement in tensor.placements:
        if placement.is_partial() or (placement.is_shard() and placement.dim % tensor.dim() == tensor.dim() - 1):
            raise RuntimeError(
                f"A manifold parameter of shape {tuple(tensor.shape)} is sharded within its points ({placement}). "
                "Call fully_shard with ignored_params=hypvision.optim.unsharded_parameters(model), or shard "
                "dimension 0 of a parameter that has two."
            )
    return tensor.to_local()


def check_number(owner: str, name: str, value: Any, below: float = math.inf) -> None:
    """Refuse an option that is no finite number from 0 on, and below ``below``. A tensor is read on a CPU alone.

    Raises:
        TypeError: it is not a number, or a tensor of more than one.
        ValueError: it is out of range.
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        if value.device.type != "cpu":  # nothing waits for a device
            return
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{owner}: {name} must be a number, got {found}.")
    if not 0 <= value < below:
        what = "a finite number" if math.isinf(below) else f"below {below:g}"
        raise ValueError(f"{owner}: {name} must not be negative and must be {what}, got {value}.")


class RiemannianOptimizer(Optimizer):
    """Base class: Euclidean parameters by torch's own functions, points by :mod:`.kernels`.

    A step updates everything with the old curvatures, then the curvatures, and then moves the points of every manifold
    whose curvature changed (Bdeir et al., NeurIPS 2025, "curvature-aware"); momenta live in frames and need no move.

    Parameters of geoopt's class take the steps of geoopt's own optimisers, by the methods of their manifold. Their
    points do not follow a learned curvature, as they do not there.
    """

    # read by the warning that points leave their manifold; other Riemannian optimisers may say the same
    keeps_points = True

    # states that are tangent vectors; all others but the step have one number for every point and factor
    vectors = ("exp_avg", "momentum_buffer")

    def __init__(self, params, defaults: dict, move: str):
        super().__init__(params, {**defaults, "move": move})

    def __setstate__(self, state):
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("move", "tangent")

    def _check(self, group: dict) -> None:
        """Refuse options of a group that are out of range."""
        owner = type(self).__name__
        for name in ("lr", "weight_decay"):
            check_number(owner, name, group[name])
        if group["move"] not in MOVES:
            raise ValueError(f"{owner}: move must be one of {', '.join(map(repr, MOVES))}, got {group['move']!r}.")

    def add_param_group(self, group: dict) -> None:
        """Add parameters with options of their own; what is left out is as in the constructor.

        Raises:
            TypeError: an option is not a number, or the manifold of a parameter is unknown.
            ValueError: an option is out of range, or a parameter has too few coordinates for points of its manifold.
        """
        self._check({**self.defaults, **group} if isinstance(group, dict) else self.defaults)
        super().add_param_group(group)
        for parameter in self.param_groups[-1]["params"]:
            manifold = manifold_of(parameter)
            if manifold is None:
                self._check_foreign(foreign_manifold_of(parameter))
                continue
            width = parameter.shape[-1] if parameter.dim() else 0
            for factor in factors(manifold, width):
                if factor.points.stop > width or factor.tangents.stop < 1:
                    raise ValueError(
                        f"A manifold parameter of shape {tuple(parameter.shape)} has too few coordinates for points "
                        f"of {manifold}."
                    )

    def _check_foreign(self, manifold: Any) -> None:
        lacking = [] if manifold is None else [name for name in FOREIGN if not hasattr(manifold, name)]
        if lacking:
            raise TypeError(
                f"{type(self).__name__} steps points of the manifolds of hypvision.geometry and of geoopt, got a "
                f"parameter on {whose(manifold)}, which lacks {', '.join(lacking)}."
            )

    # What a subclass fills in

    def _flat(self, group: dict, parameters: list[Tensor], grads: list[Tensor], states: list[dict]) -> None:
        """Update parameters without a manifold, and their states, by torch's own function."""
        raise NotImplementedError

    def _ready(self, group: dict, parameter: Tensor) -> None:
        """Refuse a parameter that this group's options do not allow where it lies."""

    def _begin(self, group: dict, tangent: Tensor, count: int) -> dict[str, Tensor]:
        """States of points before their first step.

        Args:
            group: options.
            tangent: zeros like a tangent vector at every point, ``(..., n)``.
            count: number of factors of the manifold.
        """
        raise NotImplementedError

    def _first(self, group: dict, x: Tensor, grad: Tensor, state: dict, parts: Sequence[Factor] = ()) -> None:
        """Fill the states of a parameter from its first gradient; without ``parts`` it has no manifold."""

    def _points(self, group: dict, job: Job) -> None:
        """Update a block of points and their state in place."""
        raise NotImplementedError

    def _foreign(self, group: dict, parameter: Tensor, grad: Tensor, manifold: Any) -> None:
        """Update points of geoopt's manifolds as geoopt does; ``grad`` may be changed."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure=None):
        """One step.

        Args:
            closure: computes the loss anew and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        places = self._curved()
        before = {manifold: manifold.log_c.detach().clone() for manifold in places}
        late = []
        for group in self.param_groups:
            flat, tables = [], {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                self._ready(group, parameter)
                if manifold_of(parameter) is not None:
                    self._sort(group, parameter, tables)
                elif foreign_manifold_of(parameter) is not None:
                    if parameter.grad.is_sparse:
                        raise RuntimeError("Sparse gradients of geoopt's parameters are for its own optimisers.")
                    grad = -parameter.grad if group["maximize"] else parameter.grad.clone()
                    self._foreign(group, parameter, grad, parameter.manifold)
                elif isinstance(parameter, CurvatureParameter):
                    late.append((group, parameter))
                elif parameter.grad.is_sparse:
                    self._sparse(group, parameter)
                else:
                    flat.append(parameter)
            for jobs in tables.values():
                self._together(group, jobs)
            if flat:
                self._flat(group, flat, [p.grad for p in flat], [self.state[p] for p in flat])
        for group, parameter in late:
            self._flat(group, [parameter], [parameter.grad], [self.state[parameter]])
            parameter.clamp_(*parameter.log_bounds)
        for manifold, log_c in before.items():
            self._follow(manifold, torch.exp(log_c), places[manifold])
        return loss

    # Points

    def _sort(self, group: dict, parameter: Tensor, tables: dict) -> None:
        """Update the points of a parameter; or put them into ``tables``, if they are few."""
        x, grad = whole(parameter), parameter.grad
        if x.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"Points must be float32 or float64 to be optimised, got {x.dtype} of shape {tuple(x.shape)}: half "
                "precision cannot hold them to the manifold. Keep the parameters float32 and use autocast."
            )
        if x.numel() == 0:
            return
        width = x.shape[-1]
        parts = factors(manifold_of(parameter), width)
        state = self.state[parameter]
        if not state:
            tangent = torch.zeros(*x.shape[:-1], parts[-1].tangents.stop, dtype=x.dtype, device=x.device)
            state.update(self._begin(group, tangent, len(parts)))
            self._first(group, x, grad, state, parts)
        step = state.get("step")
        if step is not None:
            step += 1
        rows = None
        if grad.is_sparse:
            rows, grad = self._rows(group, parameter)
        grad = whole(grad).reshape(-1, width)
        grad = -grad if group["maximize"] else grad
        for part in parts:
            c = part.manifold.c
            job = Job(
                part.kernel,
                number(c, x.dtype),
                x.view(-1, width)[:, part.points],
                grad[:, part.points],
                {name: rows_of(name, tensor, part) for name, tensor in state.items() if name != "step"},
                step,
            )
            if rows is not None:
                self._gathered(group, job, rows)
            elif job.x.numel() >= _SMALL:
                self._blocks(group, job)
            else:
                count = step.item() if step is not None and step.device.type == "cpu" else step
                key = (part.manifold, job.x.shape[1], x.dtype, x.device, count)
                tables.setdefault(key, []).append(job)

    def _blocks(self, group: dict, job: Job) -> None:
        for block in blocks(*job.x.shape, job.x.device, _BLOCK):
            state = {name: tensor[block] for name, tensor in job.state.items()}
            self._points(group, job._replace(x=job.x[block], grad=job.grad[block], state=state))

    def _together(self, group: dict, jobs: list[Job]) -> None:
        """Update small parameters of one manifold and width as one table."""
        if len(jobs) == 1:
            self._points(group, jobs[0])
            return
        sizes = [job.x.shape[0] for job in jobs]
        x, grad = torch.cat([job.x for job in jobs]), torch.cat([job.grad for job in jobs])
        state = {name: torch.cat([job.state[name] for job in jobs]) for name in jobs[0].state}
        self._blocks(group, jobs[0]._replace(x=x, grad=grad, state=state))
        for i, part in enumerate(x.split(sizes)):
            jobs[i].x.copy_(part)
        for name, tensor in state.items():
            for i, part in enumerate(tensor.split(sizes)):
                jobs[i].state[name].copy_(part)

    def _gathered(self, group: dict, job: Job, rows: Tensor) -> None:
        """Update the rows that have a gradient, and these alone."""
        part = job._replace(x=job.x[rows], state={name: tensor[rows] for name, tensor in job.state.items()})
        self._blocks(group, part)
        job.x[rows] = part.x
        for name, tensor in part.state.items():
            job.state[name][rows] = tensor

    def _rows(self, group: dict, parameter: Tensor) -> tuple[Tensor, Tensor]:
        """Row numbers and values of a sparse gradient."""
        if parameter.dim() != 2 or parameter.grad.sparse_dim() != 1:
            raise RuntimeError(
                "Sparse gradients are for tables (N, d) as nn.Embedding makes them, got shape "
                f"{tuple(parameter.shape)}."
            )
        if group["weight_decay"] != 0:
            raise RuntimeError("weight_decay needs dense gradients: set it to 0, or sparse=False in the embedding.")
        grad = parameter.grad.coalesce()
        return grad.indices()[0], grad.values()

    def _sparse(self, group: dict, parameter: Tensor) -> None:
        """Update the rows of a Euclidean table that have a gradient, and their states alone."""
        rows, grad = self._rows(group, parameter)
        table, state = parameter[rows], self.state[parameter]
        if not state:
            self._flat(group, [parameter.new_zeros(parameter.shape)], [torch.zeros_like(parameter)], [state])
            if "step" in state:
                state["step"].zero_()
            self._first(group, parameter, parameter.grad, state)
        part = {name: tensor if name == "step" else tensor[rows] for name, tensor in state.items()}
        self._flat(group, [table], [grad], [part])
        parameter[rows] = table
        for name, tensor in part.items():
            if name != "step":
                state[name][rows] = tensor

    # Curvature

    def _curved(self) -> dict[Manifold, list[tuple[dict, Tensor, Factor]]]:
        """The manifolds with a learned curvature, and where their points are."""
        found: dict[Manifold, list] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                manifold = manifold_of(parameter)
                if manifold is None or not any(leaf.learnable for leaf in leaves(manifold)):
                    continue
                for part in factors(manifold, parameter.shape[-1]):
                    if part.manifold.learnable:
                        found.setdefault(part.manifold, []).append((group, parameter, part))
        return found

    def _follow(self, manifold: Manifold, old: Tensor, places: Iterable[tuple[dict, Tensor, Factor]]) -> None:
        """Move the points of a manifold from its ``old`` curvature to the new one."""
        manifold.clamp_()
        new = torch.exp(manifold.log_c.detach())
        changed = new != old
        for group, parameter, part in places:
            x = whole(parameter)
            x = x.view(-1, x.shape[-1])[:, part.points]
            source, target = number(old, x.dtype), number(new, x.dtype)
            moved = x.clone()
            if group["move"] == "project":
                part.kernel.project_(moved, target)
            else:
                part.kernel.change_(moved, source, target, group["move"])
            # Without a change not a bit moves; asked on the device, so that nothing waits.
            x.copy_(torch.where(changed, moved, x))
            if group["move"] == "scale":
                for name, tensor in self.state[parameter].items():
                    if name in self.vectors:
                        tensor[..., part.tangents] *= (source / target).sqrt()


def rows_of(name: str, tensor: Tensor, part: Factor) -> Tensor:
    """The columns of a state that belong to a factor: of a vector its coordinates, else one number for a point."""
    columns = part.tangents if name in RiemannianOptimizer.vectors else slice(part.index, part.index + 1)
    return tensor.view(-1, tensor.shape[-1])[:, columns]
