"""The optimiser Riemannian stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from torch.optim.sgd import sgd

from hypvision.io import ArgumentError

from . import fused
from .base import Factor, Group, Job, RiemannianOptimizer, State, check_options, local_part
from .kernels import shorten_


class RiemannianSGD(RiemannianOptimizer):
    r"""Stochastic gradient descent on manifolds (Bonnabel, 2013), with momentum.

    .. math:: b \leftarrow \mu b + (1 - \tau) G, \qquad
               x' = \mathrm{retr}_x(-\eta\, b) \text{ or, with Nesterov, }
              \mathrm{retr}_x(-\eta (G + \mu b)), \qquad b \leftarrow \mathrm{PT}_{x \to x'}\, b

    with the Riemannian gradient :math:`G` of loss and weight decay. The retraction is the
    exponential map on the hyperboloid and the manifold's own on the ball. Parameters of the class
    :class:`~hypvision.geometry.ManifoldParameter` are points; all other parameters are updated by
    :class:`torch.optim.SGD`'s rule. Points of a manifold whose curvature is learned by the same
    optimiser follow the curvature.

    Args:
        params: parameters or groups, Euclidean and manifold parameters in any mixture.
        lr: learning rate.
        momentum, dampening, nesterov: see :class:`torch.optim.SGD`.
        weight_decay: ``weight_decay * x`` is added to the Euclidean gradient.
        move: what happens to points when the curvature of their manifold changes: ``"tangent"``,
            they keep their tangent vectors at the origin; ``"scale"``, their coordinates scale with
            the radius of curvature; ``"project"``, they are only projected (the ablation: curvature
            learned without the aware update).
        geoopt_first_step: whether the momentum of all parameters starts with the Euclidean gradient
            as in geoopt, so that the first step is about ``1 + momentum`` times as long; see below.
        maximize: see :class:`torch.optim.SGD`.
        foreach: see :class:`torch.optim.SGD`; it holds for parameters without a manifold. Points
            are updated many at once in any case.

    There is no ``stabilize`` as in geoopt: every step ends on the manifold, with times computed
    from the space parts and points inside the ball, and the momentum is kept in frames, which it
    cannot leave.

    Without ``geoopt_first_step`` the momentum is geoopt's with a buffer that starts at zero. geoopt
    (and HyperbolicCV, which uses it) starts the buffer with the Euclidean gradient. On the
    hyperboloid that is not a tangent vector: its normal part depends on the loss outside of the
    hyperboloid, which is arbitrary, and geoopt's transport mixes it into the momentum of all later
    steps, by some percent at usual rates and without bound at large ones. ``geoopt_first_step``
    makes geoopt's first step and drops that part, so that the momentum of points of the hyperboloid
    differs from geoopt's from the second step on. Parameters of geoopt's own class keep it.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        move: str = "tangent",
        geoopt_first_step: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
    ):
        options = dict(
            geoopt_first_step=geoopt_first_step, maximize=maximize, foreach=foreach, move=move
        )
        rates = dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay)
        super().__init__(params, dict(rates, nesterov=nesterov, **options))

    def _check(self, group: Group) -> None:
        super()._check(group)
        check_options(group, "momentum", "dampening")
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            raise ArgumentError(
                "nesterov needs a momentum above 0 and no dampening, got momentum "
                f"{group['momentum']} and dampening {group['dampening']}."
            )

    def _flat(
        self, group: Group, parameters: list[Tensor], grads: list[Tensor], states: list[State]
    ) -> None:
        for parameter, grad, state in zip(parameters, grads, states):
            if "momentum_buffer" not in state:
                self._first(group, parameter, grad, state)
        buffers = [state.get("momentum_buffer") for state in states]
        names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize", "foreach")
        sgd(parameters, grads, buffers, **{name: group[name] for name in names})
        if group["momentum"]:
            for state, buffer in zip(states, buffers):
                state["momentum_buffer"] = buffer

    def _begin(self, group: Group, tangent: Tensor, count: int) -> State:
        return {"momentum_buffer": tangent} if group["momentum"] else {}

    def _first(
        self, group: Group, x: Tensor, grad: Tensor, state: State, parts: Sequence[Factor] = ()
    ) -> None:
        if not (group["geoopt_first_step"] and group["momentum"]):
            return
        # Only gradients of points can be sparse here.
        grad = grad.to_dense() if grad.is_sparse else grad
        grad = -grad if group["maximize"] else grad.clone()
        if not parts:
            state["momentum_buffer"] = grad
        for part in parts:
            frame = part.kernel.frame(
                x[..., part.points], local_part(grad)[..., part.points], part.manifold.c
            )
            shorten_(frame)
            state["momentum_buffer"][..., part.tangents] = frame

    def _foreign(self, group: Group, parameter: Tensor, grad: Tensor, manifold: Any) -> None:
        state = self.state[parameter]
        momentum = group["momentum"]
        if momentum and not state:
            state["momentum_buffer"] = (
                grad.clone() if group["geoopt_first_step"] else torch.zeros_like(grad)
            )
        direction = manifold.egrad2rgrad(
            parameter, grad.add_(parameter, alpha=group["weight_decay"])
        )
        if not momentum:
            parameter.copy_(manifold.retr(parameter, -group["lr"] * direction))
            return
        buffer = state["momentum_buffer"]
        direction = _with_momentum(buffer, direction, group)
        moved, transported = manifold.retr_transp(parameter, -group["lr"] * direction, buffer)
        parameter.copy_(moved)
        buffer.copy_(transported)

    def _points(self, group: Group, job: Job) -> None:
        x = job.x
        c = job.c
        buffer = job.state.get("momentum_buffer")
        rate = group["lr"]
        decay = group["weight_decay"]
        momentum = group["momentum"]
        if not group["nesterov"] and fused.fits(job.kernel, rate, x, job.grad, buffer):
            fresh = 1 - group["dampening"] if momentum else 1.0
            fused.step_(
                x, job.grad, c, buffer, None, None, rate, momentum, fresh, 0.0, 0.0, decay, 0.0
            )
            return
        direction, where = job.kernel.gradient(x, job.grad, c, decay)
        shorten_(direction)
        if buffer is not None:
            direction = _with_momentum(buffer, direction, group)
        job.kernel.step_(x, direction, rate, buffer, where, c)


def _with_momentum(buffer: Tensor, direction: Tensor, group: Group) -> Tensor:
    """Add a gradient to the momentum in ``buffer``, in place, and return the direction of the
    step."""
    momentum = group["momentum"]
    buffer.mul_(momentum).add_(direction, alpha=1 - group["dampening"])
    return direction + momentum * buffer if group["nesterov"] else buffer
