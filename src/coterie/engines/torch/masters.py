"""Float32 masters of weights that compute in fewer bits: a small update must not be lost to rounding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Learned:
    """A weight that learns, and what the optimizer moves: the weight itself where it is in float32."""

    name: str
    weight: nn.Parameter
    master: nn.Parameter


class Masters:
    """The weights of a model that learn. Their gradients gather in float32, micro-batch after micro-batch."""

    def __init__(self, model: nn.Module) -> None:
        self.learned: list[Learned] = []
        for name, weight in model.named_parameters():
            if not weight.requires_grad:
                continue
            master = weight
            if weight.dtype != torch.float32:
                master = nn.Parameter(weight.detach().float())
                weight.register_post_accumulate_grad_hook(partial(gather, master))
            self.learned.append(Learned(name, weight, master))
        self.apart = [each for each in self.learned if each.master is not each.weight]

    @torch.no_grad()
    def follow(self) -> None:
        """The weights were set from outside."""
        for each in self.apart:
            each.master.copy_(each.weight)

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the weights, where these lie: others hold their addresses."""
        if self.apart:
            torch._foreach_copy_([each.weight for each in self.apart], [each.master for each in self.apart])
        for each in self.apart:
            each.master.grad = None  # sampling has better use for the memory


def gather(master: nn.Parameter, weight: Tensor) -> None:
    """Move a gradient over as soon as it is there; all of them in both precisions would take half as much again."""
    grad, weight.grad = weight.grad, None
    assert grad is not None
    if master.grad is None:
        master.grad = grad.float()
    else:
        master.grad.add_(grad)
