"""Triton kernels over rows of logits: one pass reads them, another turns them into their gradient where they lie."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def _scaled(logits, legal, row, columns, size, stride, legal_stride, sharpness, NARROWED: tl.constexpr):
    inside = columns < size
    scores = tl.load(logits + row * stride + columns, mask=inside, other=-float("inf")).to(tl.float32) * sharpness
    if NARROWED:
        # As numpy packs them: the first of eight is the highest bit.
        octet = tl.load(legal + row * legal_stride + (columns >> 3), mask=inside, other=0).to(tl.int32)
        scores = tl.where(((octet >> (7 - (columns & 7))) & 1) != 0, scores, -float("inf"))
    return scores


@triton.jit
def _read(
    logits, taken, legal, logprobs, entropies, sums, size, stride, legal_stride, sharpness,
    NARROWED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    # Every lane keeps its own maximum and sums; they are joined once, at the end.
    top = tl.full([BLOCK], -1e30, tl.float32)
    weight = tl.zeros([BLOCK], tl.float32)
    moment = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        scores = _scaled(logits, legal, row, start + lanes, size, stride, legal_stride, sharpness, NARROWED)
        higher = tl.maximum(top, scores)
        shrink = tl.exp(top - higher)
        share = tl.exp(scores - higher)
        weight = weight * shrink + share
        moment = moment * shrink + tl.where(share > 0, share * scores, 0.0)
        top = higher
    highest = tl.max(top, 0)
    shrink = tl.exp(top - highest)
    total = tl.sum(weight * shrink, 0)
    log_sum = highest + tl.log(total)
    choice = tl.load(taken + row)
    tl.store(sums + row, log_sum)
    tl.store(logprobs + row, tl.load(logits + row * stride + choice).to(tl.float32) * sharpness - log_sum)
    tl.store(entropies + row, log_sum - tl.sum(moment * shrink, 0) / total)


@triton.jit
def _turn(
    logits, taken, legal, sums, entropies, grads, entropy_grads, size, stride, legal_stride, sharpness,
    NARROWED: tl.constexpr, WITH_ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    log_sum = tl.load(sums + row)
    grad = tl.load(grads + row)
    choice = tl.load(taken + row)
    scores = _scaled(logits, legal, row, columns, size, stride, legal_stride, sharpness, NARROWED)
    share = tl.exp(scores - log_sum)
    found = tl.where(columns == choice, grad, 0.0) - grad * share
    if WITH_ENTROPY:
        slope = tl.load(entropy_grads + row)
        found -= tl.where(share > 0, slope * share * (scores - log_sum + tl.load(entropies + row)), 0.0)
    tl.store(logits + row * stride + columns, (found * sharpness).to(logits.dtype.element_ty), mask=columns < size)


def read_logits(logits: Tensor, taken: Tensor, legal: Tensor | None, sharpness: float) -> tuple[Tensor, Tensor, Tensor]:
    """[A, V] -> log-probability of what was taken, entropy, logarithm of the sum: [A] each."""
    rows, size = logits.shape
    logprobs, entropies, sums = (torch.empty(rows, device=logits.device) for _ in range(3))
    narrowed = legal is not None
    _read[(rows,)](
        logits, taken, legal if narrowed else taken, logprobs, entropies, sums, size, logits.stride(0),
        legal.stride(0) if legal is not None else 0, sharpness, narrowed, BLOCK, num_warps=8,
    )  # fmt: skip
    return logprobs, entropies, sums


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
    """[A, V] logits become their gradient, in place."""
    rows, size = logits.shape
    narrowed, with_entropy = legal is not None, entropy_grads is not None
    _turn[(rows, triton.cdiv(size, BLOCK))](
        logits, taken, legal if narrowed else taken, sums, entropies, grads, entropy_grads if with_entropy else grads,
        size, logits.stride(0), legal.stride(0) if legal is not None else 0, sharpness, narrowed, with_entropy, BLOCK,
        num_warps=8,
    )  # fmt: skip
    return logits
