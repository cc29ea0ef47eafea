"""The optimisers Riemannian Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT

from hypvision.geometry.manifold import whose
from hypvision.geometry.numerics import readable
from hypvision.io import ArgumentError

from . import fused
from .base import Group, Job, RiemannianOptimizer, State, check_options
from .kernels import shorten_


def _share(beta: float, step: float | Tensor) -> float | Tensor:
    """Return ``1 - beta^step``, the sum of the weights of a running average, so that float32 keeps
    its digits."""
    return (
        -torch.expm1(step * math.log(beta))
        if isinstance(step, Tensor) and beta > 0
        else 1 - beta**step
    )


class RiemannianAdam(RiemannianOptimizer):
    r"""Adam on manifolds (Becigneul and Ganea, ICLR 2019), as geoopt defines it.

    .. math:: m \leftarrow \beta_1 m + (1 - \beta_1) G, \quad
              v \leftarrow \beta_2 v + (1 - \beta_2) |G|_x^2, \quad
              x' = \mathrm{retr}_x\Big({-\eta}\,
              \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}\Big),
              \quad m \leftarrow \mathrm{PT}_{x \to x'}\, m

    with one :math:`v` for every point. Parameters of the class
    :class:`~hypvision.geometry.ManifoldParameter` are points; all other parameters are updated by
    :class:`torch.optim.Adam`'s rule. Points of a manifold whose curvature is learned by the same
    optimiser follow the curvature. Rows of a table that have no gradient
    (``nn.Embedding(sparse=True)``) stay unchanged, and so do their moments.

    Args:
        params: parameters or groups, Euclidean and manifold parameters in any mixture.
        lr: learning rate.
        betas: decay rates of the two running averages.
        eps: number added to the root of ``v``.
        weight_decay: ``weight_decay * x`` is added to the Euclidean gradient.
        amsgrad: whether the largest ``v`` so far is used.
        move: what happens to points when the curvature of their manifold changes, see
            :class:`~hypvision.optim.RiemannianSGD`.
        maximize: see :class:`torch.optim.Adam`.
        foreach: see :class:`torch.optim.Adam`; it holds for parameters without a manifold. Points
            are updated many at once in any case.
        capturable: see :class:`torch.optim.Adam`: for steps inside a CUDA graph the counts of steps
            lie on the device, and nothing waits for it. PyTorch has this for parameters on a GPU;
            on a CPU it is an error.

    An option ``stabilize`` as in geoopt is not needed: every step ends on the manifold, with times
    computed from the space parts and points inside the ball, and moments are kept in frames, which
    they cannot leave.

    State:
        ``exp_avg`` ``(..., n)``: the momentum in the frame of its point, which means transported
        along the radius to the origin. ``exp_avg_sq`` ``(..., 1)``: the average ``v``, with one
        column for every factor of a product.
    """

    decoupled = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        move: str = "tangent",
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
    ):
        options = dict(maximize=maximize, foreach=foreach, capturable=capturable, move=move)
        defaults = dict(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, **options
        )
        super().__init__(params, defaults)

    def _check(self, group: Group) -> None:
        super()._check(group)
        check_options(group, "eps")
        betas = group["betas"]
        valid = (
            [isinstance(b, (int, float)) and 0 <= b < 1 for b in betas]
            if isinstance(betas, (tuple, list))
            else []
        )
        if valid != [True, True]:
            raise ArgumentError(
                f"betas must be a pair of numbers of at least 0 and below 1, got {betas!r}."
            )

    @staticmethod
    def _count(group: Group, device: torch.device) -> Tensor:
        return torch.zeros((), dtype=torch.float32, device=device if group["capturable"] else "cpu")

    def check_device(self, group: Group, parameter: Tensor) -> None:
        if group["capturable"] and readable(parameter):  # compilers set capturable by themselves
            raise RuntimeError(
                f"{type(self).__name__}: capturable=True is for CUDA graphs, and a parameter of "
                f"shape {tuple(parameter.shape)} lies on the CPU. Move the model to the GPU, or "
                "leave capturable out."
            )

    @staticmethod
    def _averages(group: Group, mean: Tensor, square: Tensor) -> State:
        """Return the running averages before the first step, from zeros of their shapes."""
        found = {"exp_avg": mean, "exp_avg_sq": square}
        return found | {"max_exp_avg_sq": square.clone()} if group["amsgrad"] else found

    def _flat(
        self, group: Group, parameters: list[Tensor], grads: list[Tensor], states: list[State]
    ) -> None:
        for parameter, state in zip(parameters, states):
            if not state:
                state["step"] = self._count(group, parameter.device)
                state |= self._averages(
                    group, torch.zeros_like(parameter), torch.zeros_like(parameter)
                )
        function: Callable[..., None] = adamw if self.decoupled else adam
        names = ("amsgrad", "lr", "weight_decay", "eps", "maximize", "foreach", "capturable")
        function(
            params=parameters,
            grads=grads,
            exp_avgs=[state["exp_avg"] for state in states],
            exp_avg_sqs=[state["exp_avg_sq"] for state in states],
            max_exp_avg_sqs=[state["max_exp_avg_sq"] for state in states]
            if group["amsgrad"]
            else [],
            state_steps=[state["step"] for state in states],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            **{name: group[name] for name in names},
        )

    def _begin(self, group: Group, tangent: Tensor, count: int) -> State:
        scalars = tangent.new_zeros(*tangent.shape[:-1], count)
        return {
            "step": self._count(group, tangent.device),
            **self._averages(group, tangent, scalars),
        }

    def _foreign(self, group: Group, parameter: Tensor, grad: Tensor, manifold: Any) -> None:
        state = self.state[parameter]
        lr = group["lr"]
        decay = group["weight_decay"]
        beta1, beta2 = group["betas"]
        if not state:
            state["step"] = self._count(group, parameter.device)
            state |= self._averages(group, torch.zeros_like(grad), torch.zeros_like(grad))
        state["step"] += 1
        step = state["step"].item() if readable(state["step"]) else state["step"]
        if self.decoupled and decay:
            if not hasattr(manifold, "logmap0"):
                raise TypeError(
                    f"{type(self).__name__}: {whose(manifold)} has no origin that weights could "
                    "decay to. Put its parameters into a group with weight_decay=0."
                )
            parameter.copy_(manifold.expmap0((1 - lr * decay) * manifold.logmap0(parameter)))
        elif decay:
            grad.add_(parameter, alpha=decay)
        grad = manifold.egrad2rgrad(parameter, grad)
        mean = state["exp_avg"]
        square = state["exp_avg_sq"]
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).add_(manifold.component_inner(parameter, grad), alpha=1 - beta2)
        if group["amsgrad"]:
            square = torch.maximum(state["max_exp_avg_sq"], square, out=state["max_exp_avg_sq"])
        size = (square / _share(beta2, step)).sqrt_().add_(group["eps"])
        moved, transported = manifold.retr_transp(
            parameter, mean / size * (-lr / _share(beta1, step)), mean
        )
        parameter.copy_(moved)
        mean.copy_(transported)

    def _points(self, group: Group, job: Job) -> None:
        assert job.step is not None
        x = job.x
        c = job.c
        lr = group["lr"]
        decay = group["weight_decay"]
        mean = job.state["exp_avg"]
        square = job.state["exp_avg_sq"]
        beta1, beta2 = group["betas"]
        step = job.step.item() if readable(job.step) else job.step
        root = _share(beta2, step) ** 0.5
        rate = lr * root / _share(beta1, step)
        eps = group["eps"] * root
        most = job.state.get("max_exp_avg_sq")
        if fused.fits(job.kernel, rate, x, job.grad, mean, square, most):
            coupled, share = (0.0, min(lr * decay, 1.0)) if self.decoupled else (decay, 0.0)
            weights = (beta1, 1 - beta1, 1 - beta2)
            fused.step_(x, job.grad, c, mean, square, most, rate, *weights, eps, coupled, share)
            return
        if self.decoupled and decay:
            share = lr * decay
            job.kernel.decay_(
                x, share.clamp(max=1) if isinstance(share, Tensor) else min(share, 1.0), c
            )
        gradient, where = job.kernel.gradient(x, job.grad, c, 0.0 if self.decoupled else decay)
        norm = shorten_(gradient).unsqueeze(1)
        square.mul_(beta2).addcmul_(norm, norm, value=1 - beta2)
        mean.lerp_(gradient, 1 - beta1)
        if most is not None:
            square = torch.maximum(most, square, out=most)
        job.kernel.step_(x, mean, rate / square.squeeze(1).sqrt().add_(eps), mean, where, c)


class RiemannianAdamW(RiemannianAdam):
    r"""Adam with decoupled weight decay on manifolds (Bdeir et al., NeurIPS 2025).

    Before its step, a point on the hyperboloid becomes the centroid of itself, with the weight
    :math:`1 - \eta\lambda`, and the origin, with the weight :math:`\eta\lambda`; in the ball it
    moves to the origin by that share of its distance. Everything else is as in
    :class:`RiemannianAdam`; parameters without a manifold follow :class:`torch.optim.AdamW`'s rule.

    Args:
        weight_decay: the factor :math:`\lambda` of the decay.
        params, lr, betas, eps, options: see :class:`RiemannianAdam`.
    """

    decoupled = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **options: Any,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, **options)
