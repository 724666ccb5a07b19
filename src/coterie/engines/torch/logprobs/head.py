"""From hidden states to log-probabilities and back, with a chunk of logits in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from coterie.engines.torch.transfer import unpack
from coterie.grpo.objective import entropy


def read_logits(logits: Tensor, taken: Tensor, legal: Tensor | None, sharpness: float) -> tuple[Tensor, Tensor, Tensor]:
    """[A, V] -> log-probability of what was taken, entropy, logarithm of the sum: [A] each, in float32."""
    scores = scale(logits, legal, sharpness)
    table = scores.log_softmax(-1)
    logprobs, chosen = (values.gather(-1, taken[:, None])[:, 0] for values in (table, scores))
    entropies = -table.exp().mul_(table).sum(-1) if legal is None else entropy(table)
    return logprobs, entropies, chosen - logprobs


def turn_logits(
    logits: Tensor,
    taken: Tensor,
    legal: Tensor | None,
    sharpness: float,
    sums: Tensor,
    entropies: Tensor,
    grads: Tensor,
    entropy_grads: Tensor | None,
) -> Tensor:
    """[A, V] logits become their gradient: d log p / d score = 1 - p or -p, d H / d score = -p (log p + H)."""
    table = scale(logits, legal, sharpness).sub_(sums[:, None])
    slopes = sharpness * grads[:, None]
    if entropy_grads is None:
        found = table.exp_().mul_(-slopes)
    else:
        shares = table.exp()
        more = torch.where(shares > 0, shares * (table + entropies[:, None]), 0.0)
        found = shares.mul_(-slopes).sub_(more.mul_(sharpness * entropy_grads[:, None]))
    found.scatter_add_(1, taken[:, None], slopes)
    return found if found.data_ptr() == logits.data_ptr() else logits.copy_(found)


def scale(logits: Tensor, legal: Tensor | None, sharpness: float) -> Tensor:
    """In float32, sharpened, and minus infinity where a token was not legal; the logits themselves if they are so."""
    scores = logits.float()
    if sharpness != 1:
        scores = scores * sharpness
    if legal is None:
        return scores
    return scores.masked_fill(~unpack(legal, logits.shape[-1]), -torch.inf)


@dataclass(frozen=True)
class Kernels:
    """The two functions over logits: plain, or by Triton."""

    read: Callable[..., tuple[Tensor, Tensor, Tensor]]
    turn: Callable[..., Tensor]


PLAIN = Kernels(read_logits, turn_logits)


def kernels_for(device: torch.device) -> Kernels:
    """Triton's on CUDA."""
    if device.type != "cuda":
        return PLAIN
    from coterie.engines.torch.logprobs import kernels

    return Kernels(kernels.read_logits, kernels.turn_logits)


class TakenLogprobs(torch.autograd.Function):
    """Log-probabilities and entropies at some places of some hidden states, under a head without a bias.

    How a log-probability moves with its hidden state does not depend on what the loss makes of it. So where the head
    does not learn, that is found in the forward pass, while the logits are there; otherwise they are made again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [T, width]
        weight: Tensor,  # [V, width]
        sources: Tensor,  # [A] the places in T
        taken: Tensor,  # [A]
        legal: Tensor | None,  # [A, ceil(V/8)]
        sharpness: float,
        chunk: int,
        kernels: Kernels,
    ) -> tuple[Tensor, Tensor]:
        at_once = ctx.needs_input_grad[0] and not ctx.needs_input_grad[1]
        slopes = (
            torch.empty(len(sources), hidden.shape[1], dtype=hidden.dtype, device=hidden.device) if at_once else None
        )
        found, ctx.kept = [], None
        for part in parts(len(sources), chunk):
            bits = None if legal is None else legal[part]
            logits = hidden[sources[part]] @ weight.T
            read = kernels.read(logits, taken[part], bits, sharpness)
            if slopes is not None:
                ones = torch.ones_like(read[0])
                turned = kernels.turn(logits, taken[part], bits, sharpness, read[2], read[1], ones, None)
                torch.mm(turned, weight, out=slopes[part])
            found.append(read)
            if len(sources) <= chunk and ctx.needs_input_grad[1]:
                ctx.kept = logits  # all of them together are no more than a chunk: backward need not make them again
            del logits
        logprobs, entropies, sums = (torch.cat(each) for each in zip(*found, strict=True))
        ctx.save_for_backward(hidden, weight, sources, taken, legal, entropies, sums, slopes)
        ctx.sharpness, ctx.chunk, ctx.kernels = sharpness, chunk, kernels
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grads: Tensor | None, entropy_grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, sources, taken, legal, entropies, sums, slopes = ctx.saved_tensors
        grads = torch.zeros_like(sums) if grads is None else grads.contiguous()
        # In float32, as the last token of a prompt collects from all its answers.
        to_hidden = torch.zeros(hidden.shape, device=hidden.device)
        if slopes is not None and entropy_grads is None:
            for part in parts(len(sources), 8 * ctx.chunk):
                to_hidden.index_add_(0, sources[part], slopes[part] * grads[part, None])
            return (to_hidden.to(hidden.dtype), *[None] * 7)
        to_weight = torch.zeros(weight.shape, device=weight.device) if ctx.needs_input_grad[1] else None
        kept, ctx.kept = ctx.kept, None
        for part in parts(len(sources), ctx.chunk):
            states = hidden[sources[part]]
            logits = states @ weight.T if kept is None else kept
            slope = None if entropy_grads is None else entropy_grads[part].contiguous()
            bits = None if legal is None else legal[part]
            turned = ctx.kernels.turn(
                logits, taken[part], bits, ctx.sharpness, sums[part], entropies[part], grads[part], slope
            )
            to_hidden.index_add_(0, sources[part], (turned @ weight).float())
            if to_weight is not None:
                to_weight += turned.T @ states
            del turned, logits
        return (
            to_hidden.to(hidden.dtype),
            None if to_weight is None else to_weight.to(weight.dtype),
            *[None] * 6,
        )


def parts(count: int, size: int) -> list[slice]:
    """Stretches of this size, the last one shorter."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def taken_logprobs(
    hidden: Tensor,
    weight: Tensor,
    sources: Tensor,
    taken: Tensor,
    legal: Tensor | None,
    sharpness: float,
    chunk: int,
    kernels: Kernels | None = None,
) -> tuple[Tensor, Tensor]:
    """[A], [A]: log-probabilities of what was taken, and entropies."""
    kernels = kernels or kernels_for(hidden.device)
    given = (hidden, weight, sources, taken, legal, sharpness, chunk, kernels)
    return cast(tuple[Tensor, Tensor], TakenLogprobs.apply(*given))  # type: ignore[no-untyped-call]
