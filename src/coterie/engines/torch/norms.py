"""RMSNorm on a CPU in half the passes over memory: where layers are narrow, norms are a tenth of an update."""

from __future__ import annotations

from inspect import signature
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn


class RMSNorm(torch.autograd.Function):
    """x / root of its mean square, times a weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale = squares.div_(x.shape[-1]).add_(eps).rsqrt_()
        normed: Tensor = x * scale
        ctx.save_for_backward(normed, weight, scale)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        normed, weight, scale = ctx.saved_tensors
        along = (grads[0] * normed).reshape(-1, len(weight))
        weight_grad = along.sum(0) if ctx.needs_input_grad[1] else None
        # What would only change the length is taken out.
        mean = (along @ weight).view(scale.shape) / len(weight)
        grad = torch.addcmul(grads[0] * weight, normed, mean, value=-1).mul_(scale)
        return grad, weight_grad, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return cast(Tensor, RMSNorm.apply(x, weight, eps))  # type: ignore[no-untyped-call]


def quicken_norms(model: nn.Module) -> int:
    """Let those norms of a model that compute just this do so; how many there are."""
    found = [module for module in model.modules() if is_plain(module)]
    for module in found:
        vars(module)["forward"] = MethodType(lambda norm, x: rms_norm(x, norm.weight, norm.variance_epsilon), module)
    return len(found)


@torch.no_grad()
def is_plain(norm: Any) -> bool:
    """Some families add one to the weight, and some norms take a gate beside what they normalize."""
    is_norm = hasattr(norm, "variance_epsilon") and isinstance(getattr(norm, "weight", None), Tensor)
    if not is_norm or len(signature(norm.forward).parameters) != 1:
        return False
    x = torch.linspace(-1, 2, len(norm.weight), dtype=norm.weight.dtype)
    return torch.allclose(norm(x), rms_norm(x, norm.weight, norm.variance_epsilon), rtol=1e-5, atol=1e-6)
