"""The base of the Riemannian optimisers: it sorts parameters, updates points in batches, and moves
them after changes of curvature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from hypvision.geometry import Euclidean, Lorentz, Manifold, PoincareBall, Product
from hypvision.geometry.manifold import whose
from hypvision.geometry.numerics import readable
from hypvision.geometry.parameters import mark_kept
from hypvision.geometry.rows import blocks
from hypvision.io import ArgumentError, at_least, one_of

from .kernels import Kernel, kernel_of

# the manifolds for whose points there are kernels
_KNOWN = (Euclidean, Lorentz, PoincareBall)
# the methods that a step calls on another manifold, a user's or one of geoopt's
_FOREIGN = ("egrad2rgrad", "component_inner", "retr", "retr_transp")
# Parameters of one manifold and width that have fewer coordinates than this are updated together,
# which saves calls.
SMALL = 2**16
# The number of coordinates in a block. On a Xeon 2**18 was up to 10 % slower (more calls) and 2**21
# a third slower (cache).
BLOCK = 2**19

Group = dict[str, Any]
State = dict[str, Any]


class Factor(NamedTuple):
    """One factor of the manifold of a parameter, and the slices of its coordinates in points and in
    tangent vectors."""

    kernel: Kernel
    manifold: Manifold
    points: slice
    tangents: slice
    column: int  # the factor's column in states that have one number for every point and factor


class Job(NamedTuple):
    """Points that one kernel updates, with their gradients and states: tensors with the same number
    of rows."""

    kernel: Kernel
    manifold: Manifold
    x: Tensor  # (N, d)
    grad: Tensor  # (N, d)
    state: dict[str, Tensor]
    step: Tensor | None

    @property
    def c(self) -> float | Tensor:
        """The curvature, in the dtype of the points."""
        return constant(self.manifold.c, self.x.dtype)


def manifold_of(parameter: Tensor) -> Manifold | None:
    """Return the manifold on which a parameter's points lie, if there are kernels for all its
    factors; else, and for Euclidean parameters, None."""
    manifold = getattr(parameter, "manifold", None)
    if not isinstance(manifold, Manifold) or isinstance(manifold, Euclidean):
        return None
    known = all(isinstance(leaf, _KNOWN) for leaf in leaves(manifold))
    return manifold if known else None


def foreign_manifold_of(parameter: Tensor) -> Any:
    """Return the manifold without a kernel, a user's or one of geoopt's, on which a parameter's
    points lie; None if there is none."""
    manifold = getattr(parameter, "manifold", None)
    if getattr(manifold, "name", None) == "Euclidean" or manifold_of(parameter) is not None:
        return None
    return manifold


def leaves(manifold: Manifold) -> list[Manifold]:
    """Return a list of the factors of a product, or of the manifold itself."""
    parts = manifold.manifolds if isinstance(manifold, Product) else [manifold]
    return [part for part in parts if isinstance(part, Manifold)]


def factors(manifold: Manifold, width: int) -> list[Factor]:
    """Return the factors of a manifold, for points of ``width`` coordinates."""
    found: list[Factor] = []
    start = tangent = 0
    sizes = manifold.sizes if isinstance(manifold, Product) else (width,)
    for column, (part, size) in enumerate(zip(leaves(manifold), sizes)):
        kernel = kernel_of(part)
        dim = kernel.size(size)
        found.append(
            Factor(kernel, part, slice(start, start + size), slice(tangent, tangent + dim), column)
        )
        start = start + size
        tangent = tangent + dim
    return found


def constant(c: float | Tensor, dtype: torch.dtype) -> float | Tensor:
    """Return a curvature without gradient, rounded to the points' dtype."""
    return c.detach().to(dtype) if isinstance(c, Tensor) else c


def local_part(tensor: Tensor) -> Tensor:
    """Return the tensor, or a DTensor's part on this rank; raise RuntimeError if its points are
    split over ranks."""
    for placement in getattr(tensor, "placements", ()):
        if placement.is_partial() or (
            placement.is_shard() and placement.dim % tensor.dim() == tensor.dim() - 1
        ):
            raise RuntimeError(
                f"A manifold parameter of shape {tuple(tensor.shape)} is sharded within its points "
                f"({placement}). Call fully_shard with "
                "ignored_params=hypvision.optim.unsharded_parameters(model), or shard dimension 0 "
                "of a parameter that has two."
            )
    return held(tensor)


def held(tensor: Tensor) -> Tensor:
    """Return the tensor, or a DTensor's part on this rank."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def placed(state: Any, parameter: Any) -> Any:
    """Return a state of points, such as a momentum, placed like their parameter: a DTensor where
    that is one, so that distributed checkpoints know ``state`` as this rank's part.

    Raises:
        ArgumentError: ``state`` does not have one row for every point on this rank.
    """
    rows = isinstance(state, Tensor) and state.dim() > 0  # the count of steps has none
    if not rows or not hasattr(parameter, "placements") or hasattr(state, "placements"):
        return state
    here = held(parameter).shape
    if state.shape[:-1] != here[:-1]:
        raise ArgumentError(
            f"A state of shape {tuple(state.shape)} is given for points of shape "
            f"{tuple(parameter.shape)}, of which this process holds {tuple(here)}. Load states of "
            "other shards by torch.distributed.checkpoint, and whole ones by its "
            "set_optimizer_state_dict with StateDictOptions(full_state_dict=True)."
        )
    # Importing this takes time, and only processes that shard a model have done it already.
    from torch.distributed.tensor import DTensor

    whole = torch.empty(*parameter.shape[:-1], state.shape[-1], device="meta")
    return DTensor.from_local(
        state,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def _in_rows(parameter: Any) -> Tensor:
    """Return the part of a parameter that this process holds; one that is not contiguous is copied
    first, since its rows are updated in place."""
    if not local_part(parameter).is_contiguous():
        parameter.data = parameter.data.contiguous()
    return local_part(parameter)


def _check_dtype(x: Tensor) -> None:
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"Points must be float32 or float64 to be optimised, got {x.dtype} of shape "
            f"{tuple(x.shape)}: half precision cannot hold them to the manifold. Keep the "
            "parameters float32 and use autocast."
        )


def check_options(group: Group, *names: str) -> None:
    """Raise an error if one of the options ``names`` of a group is not a finite number of at least
    0, or a tensor with one number, which is checked only on a CPU."""
    for name in names:
        value = group[name]
        if isinstance(value, Tensor) and value.numel() == 1:
            if value.device.type != "cpu":  # reading the value would wait for the device
                continue
            value = value.item()
        at_least(0, **{name: value})


def sparse_rows(group: Group, parameter: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row numbers and the values of a sparse gradient."""
    if parameter.dim() != 2 or grad.sparse_dim() != 1:
        raise RuntimeError(
            "Sparse gradients are for tables (N, d) as nn.Embedding makes them, got shape "
            f"{tuple(parameter.shape)}."
        )
    if group["weight_decay"] != 0:
        raise RuntimeError(
            "weight_decay needs dense gradients. Set it to 0, or sparse=False in the embedding."
        )
    grad = grad.coalesce()
    return grad.indices()[0], grad.values()


class RiemannianOptimizer(Optimizer):
    """The base class of the optimisers: Euclidean parameters are updated by torch's own functions,
    points by :mod:`.kernels`.

    A step first updates all weights and points with the old curvatures, then the curvatures, and
    then moves the points of every manifold whose curvature has changed ("curvature-aware", Bdeir et
    al., NeurIPS 2025). Momenta are kept in frames and need no move.

    Points of other manifolds, a user's own or geoopt's, are updated one parameter after the other
    with the methods of their manifold, as geoopt's own optimisers do: ``egrad2rgrad``,
    ``component_inner``, ``retr`` and ``retr_transp``. As there, these points do not follow a
    learned curvature.
    """

    # This marks optimisers that keep points on their manifold; the first step of others causes a
    # warning.
    keeps_points = True

    # the names of states that are tangent vectors; other states, except step, have one number for
    # every point and factor
    vectors = ("exp_avg", "momentum_buffer")

    def _check(self, group: Group) -> None:
        """Raise an error for options of a group that are out of range."""
        check_options(group, "lr", "weight_decay")
        one_of(("tangent", "scale", "project"), move=group["move"])

    def add_param_group(self, group: Group) -> None:
        """Add a group of parameters with its own options; the constructor's options take the place
        of missing ones."""
        self._check({**self.defaults, **group})
        mark_kept()
        super().add_param_group(group)
        for parameter in self.param_groups[-1]["params"]:
            manifold = manifold_of(parameter)
            self._check_methods(foreign_manifold_of(parameter))
            width = parameter.shape[-1] if parameter.dim() else 0
            for factor in factors(manifold, width) if manifold is not None else ():
                if factor.points.stop > width or factor.tangents.stop < 1:
                    raise ArgumentError(
                        f"A manifold parameter of shape {tuple(parameter.shape)} has too few "
                        f"coordinates for points of {manifold}."
                    )

    def _check_methods(self, foreign: Any) -> None:
        """Raise TypeError for a manifold without the methods that a step calls."""
        lacking = [name for name in _FOREIGN if foreign is not None and not hasattr(foreign, name)]
        if lacking:
            raise TypeError(
                f"{type(self).__name__} steps points of the manifolds of hypvision.geometry and of "
                f"manifolds with the methods of geoopt's, got a parameter on {whose(foreign)}, "
                f"which lacks {', '.join(lacking)}."
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of an optimiser; states of sharded points that are plain tensors count as
        those of this process."""
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            if manifold_of(parameter) is not None:
                state.update({name: placed(value, parameter) for name, value in state.items()})

    # Methods that subclasses implement

    def _flat(
        self, group: Group, parameters: list[Tensor], grads: list[Tensor], states: list[State]
    ) -> None:
        """Update parameters without a manifold, and their states, by torch's own function."""
        raise NotImplementedError

    def check_device(self, group: Group, parameter: Tensor) -> None:
        """Raise an error for a parameter whose device the group's options do not allow."""

    def _begin(self, group: Group, tangent: Tensor, count: int) -> State:
        """Return the optimiser's state for points before their first step, such as momenta.
        ``tangent`` is zeros ``(..., n)``, ``count`` the number of factors of the manifold."""
        raise NotImplementedError

    def _first(
        self, group: Group, x: Tensor, grad: Tensor, state: State, parts: Sequence[Factor] = ()
    ) -> None:
        """Fill the states of a parameter from its first gradient; ``parts`` are the factors of its
        manifold, empty without one."""

    def _points(self, group: Group, job: Job) -> None:
        """Update a block of points and their states in place."""
        raise NotImplementedError

    def _foreign(self, group: Group, parameter: Tensor, grad: Tensor, manifold: Any) -> None:
        """Update points of a manifold without a kernel as geoopt does; ``grad`` may be changed."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters once; return the loss that ``closure`` computes, or None without
        it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        places = self._curved()
        before = {manifold: manifold.log_c.detach().clone() for manifold in places}
        learned = [self._all_but_curvatures(group) for group in self.param_groups]
        for group, curvatures in zip(self.param_groups, learned):
            self._all_flat({**group, "weight_decay": 0.0}, curvatures)
            for curvature in curvatures:
                curvature.clamp_(*curvature.log_bounds)
        for manifold, log_c in before.items():
            self._follow(manifold, torch.exp(log_c), places[manifold])
        return loss

    def _all_but_curvatures(self, group: Group) -> list[Any]:
        """Update the parameters of a group but its learned curvatures, and return these."""
        flat: list[Tensor] = []
        curvatures: list[Any] = []
        tables: dict[tuple[Any, ...], list[Job]] = {}
        for parameter in group["params"]:
            grad = parameter.grad
            if grad is None:
                continue
            self.check_device(group, parameter)
            if manifold_of(parameter) is not None:
                self._sort(group, parameter, grad, tables)
            elif foreign_manifold_of(parameter) is not None:
                if grad.is_sparse:
                    raise RuntimeError(
                        "Sparse gradients are not for points on manifolds without a kernel. Set "
                        "sparse=False in the embedding."
                    )
                grad = -grad if group["maximize"] else grad.clone()
                self._foreign(group, parameter, grad, parameter.manifold)
            elif hasattr(parameter, "log_bounds"):
                # A CurvatureParameter is found by its attribute, because compilers see no classes
                # of parameters.
                curvatures.append(parameter)
            elif grad.is_sparse:
                self._sparse(group, parameter, grad)
            else:
                flat.append(parameter)
        for jobs in tables.values():
            self._together(group, jobs)
        self._all_flat(group, flat)
        return curvatures

    def _all_flat(self, group: Group, parameters: list[Tensor]) -> None:
        if parameters:
            grads = [p.grad for p in parameters if p.grad is not None]
            self._flat(group, parameters, grads, [self.state[p] for p in parameters])

    # Updates of points

    def _sort(
        self,
        group: Group,
        parameter: Any,
        grad: Tensor,
        tables: dict[tuple[Any, ...], list[Job]],
    ) -> None:
        """Update the points of a parameter, or, if they are few, collect them in ``tables`` to be
        updated together with others."""
        x = _in_rows(parameter)
        _check_dtype(x)
        width = x.shape[-1]
        parts = factors(parameter.manifold, width)
        # A rank without points has a state, too, because all ranks gather it together.
        state = self._state(group, parameter, x, grad, parts)
        if x.numel() == 0:
            return
        step = state.get("step")
        rows = None
        if grad.is_sparse:
            rows, grad = sparse_rows(group, parameter, grad)
        grad = local_part(grad).reshape(-1, width)
        grad = -grad if group["maximize"] else grad
        for part in parts:
            job = Job(
                part.kernel,
                part.manifold,
                x.view(-1, width)[:, part.points],
                grad[:, part.points],
                {
                    name: self._columns(name, held(tensor), part)
                    for name, tensor in state.items()
                    if name != "step"
                },
                step,
            )
            if rows is not None:
                self._gathered(group, job, rows)
            elif job.x.numel() >= SMALL:
                self._blocks(group, job)
            else:
                count = step.item() if step is not None and readable(step) else step
                key = (part.manifold, job.x.shape[1], x.dtype, x.device, count)
                tables.setdefault(key, []).append(job)

    def _state(
        self, group: Group, parameter: Tensor, x: Tensor, grad: Tensor, parts: list[Factor]
    ) -> State:
        """Return the state of points, which is made before their first step, and count this step in
        it."""
        state: State = self.state[parameter]
        if not state and group.get("momentum", 1) != 0:  # SGD without momentum keeps nothing
            tangent = x.new_zeros(*x.shape[:-1], parts[-1].tangents.stop)
            state.update(self._begin(group, tangent, len(parts)))
            if x.numel():
                self._first(group, x, grad, state, parts)
            state.update({name: placed(value, parameter) for name, value in state.items()})
        if "step" in state:
            state["step"] += 1
        return state

    def _columns(self, name: str, tensor: Tensor, part: Factor) -> Tensor:
        """Return the columns of a factor in a state: the coordinates of a vector, or one number per
        point."""
        columns = part.tangents if name in self.vectors else slice(part.column, part.column + 1)
        return tensor.view(-1, tensor.shape[-1])[:, columns]

    def _blocks(self, group: Group, job: Job) -> None:
        rows, columns = job.x.shape
        for block in blocks(rows, columns, job.x.device, BLOCK):
            state = {name: tensor[block] for name, tensor in job.state.items()}
            self._points(group, job._replace(x=job.x[block], grad=job.grad[block], state=state))

    def _together(self, group: Group, jobs: list[Job]) -> None:
        """Update small parameters of one manifold and width as one table."""
        if len(jobs) == 1:
            self._points(group, jobs[0])
            return
        sizes = [job.x.shape[0] for job in jobs]
        x = torch.cat([job.x for job in jobs])
        grad = torch.cat([job.grad for job in jobs])
        state = {name: torch.cat([job.state[name] for job in jobs]) for name in jobs[0].state}
        self._blocks(group, jobs[0]._replace(x=x, grad=grad, state=state))
        parts = [job.x for job in jobs]
        moved = list(torch.split(x, sizes))
        for name, tensor in state.items():
            parts += [job.state[name] for job in jobs]
            moved += torch.split(tensor, sizes)
        torch._foreach_copy_(parts, moved)

    def _gathered(self, group: Group, job: Job, rows: Tensor) -> None:
        """Update only the points in the given rows, which have a gradient."""
        part = job._replace(
            x=job.x[rows], state={name: tensor[rows] for name, tensor in job.state.items()}
        )
        self._blocks(group, part)
        job.x[rows] = part.x
        for name, tensor in part.state.items():
            job.state[name][rows] = tensor

    def _sparse(self, group: Group, parameter: Tensor, grad: Tensor) -> None:
        """Update only the rows of a Euclidean table that have a gradient, and their states."""
        rows, values = sparse_rows(group, parameter, grad)
        table = parameter[rows]
        state = self.state[parameter]
        part = {name: tensor if name == "step" else tensor[rows] for name, tensor in state.items()}
        self._flat(group, [table], [values], [part])
        parameter[rows] = table
        for name, tensor in part.items():
            if name == "step":
                state[name] = tensor
                continue
            if name not in state:
                state[name] = torch.zeros_like(parameter)
            state[name][rows] = tensor

    # Learned curvatures

    def _curved(self) -> dict[Manifold, list[tuple[Group, Tensor, Factor]]]:
        """Return, by manifold with a learned curvature, its points as triples of group, parameter
        and factor."""
        found: dict[Manifold, list[tuple[Group, Tensor, Factor]]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                manifold = manifold_of(parameter)
                if manifold is None or not any(leaf.learnable for leaf in leaves(manifold)):
                    continue
                for part in factors(manifold, parameter.shape[-1]):
                    if part.manifold.learnable:
                        found.setdefault(part.manifold, []).append((group, parameter, part))
        return found

    def _follow(
        self, manifold: Manifold, old: Tensor, places: Iterable[tuple[Group, Tensor, Factor]]
    ) -> None:
        """Move the points of a manifold from its ``old`` curvature to the new one."""
        manifold.clamp_()
        new = torch.exp(manifold.log_c.detach())
        changed = new != old
        tables: dict[tuple[Any, ...], list[Tensor]] = {}
        vectors: list[Tensor] = []
        for group, parameter, part in places:
            x = local_part(parameter)
            x = x.view(-1, x.shape[-1])[:, part.points]
            tables.setdefault((group["move"], x.shape[1], x.dtype, x.device), []).append(x)
            if group["move"] == "scale":
                state = self.state[parameter]
                vectors += [
                    held(state[name])[..., part.tangents] for name in self.vectors if name in state
                ]
        kernel = kernel_of(manifold)
        for (move, _, dtype, _), parts in tables.items():
            x = torch.cat(parts) if len(parts) > 1 else parts[0]
            moved = x.clone()
            if move == "project":
                kernel.project_(moved, new.to(dtype))
            else:
                kernel.change_(moved, old.to(dtype), new.to(dtype), move)
            # If no curvature changes, the points stay equal bit by bit; torch.where avoids a wait
            # for the device.
            sizes = [len(part) for part in parts]
            torch._foreach_copy_(parts, list(torch.split(torch.where(changed, moved, x), sizes)))
        if vectors:
            torch._foreach_mul_(vectors, (old / new).sqrt())
