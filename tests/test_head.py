"""From hidden states to log-probabilities and back: chunks and kernels are what autograd makes of all logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.engines.torch.logprobs.head import PLAIN, Kernels, kernels_for, taken_logprobs
from coterie.rollouts import pack_bits

VOCABULARY, WIDTH, PLACES = 77, 16, 9
SOURCES = torch.tensor([0, 4, 4, 4, 8, 2, 2, 7, 1, 3, 4])  # place 4 predicts several, as a shared prompt's end does
TAKEN = torch.tensor([3, 76, 0, 8, 8, 40, 41, 7, 12, 64, 76])
SHARPNESS = 1 / 0.7


def narrow() -> np.ndarray:
    """[A, V] what was legal: about a third, and in the first row nothing but what was taken."""
    legal = np.random.default_rng(0).random((len(TAKEN), VOCABULARY)) < 0.3
    legal[np.arange(len(TAKEN)), TAKEN.numpy()] = True
    legal[0] = np.arange(VOCABULARY) == int(TAKEN[0])
    return legal


def make(dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    hidden, weight = torch.randn(PLACES, WIDTH), torch.randn(VOCABULARY, WIDTH)
    return hidden.to(device, dtype).requires_grad_(), weight.to(device, dtype).requires_grad_()


def plainly(hidden: Tensor, weight: Tensor, legal: np.ndarray | None) -> tuple[Tensor, Tensor]:
    """All logits at once, differentiated by torch."""
    logits = hidden[SOURCES] @ weight.T * SHARPNESS
    if legal is not None:
        logits = logits.masked_fill(~torch.from_numpy(legal), -1e30)
    table = logits.log_softmax(-1)
    return table.gather(-1, TAKEN[:, None])[:, 0], -(table.exp() * table).sum(-1)


def loss_of(logprobs: Tensor, entropies: Tensor, with_entropy: bool) -> Tensor:
    weights = torch.linspace(-1, 2, len(logprobs), device=logprobs.device)
    loss = (logprobs * weights).sum()
    return loss + (entropies * weights.flip(0)).sum() if with_entropy else loss


@pytest.mark.parametrize("chunk", [4, 100])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("narrowed", [False, True])
@pytest.mark.parametrize("head_learns", [False, True])
def test_chunks_are_all_logits_at_once(head_learns: bool, narrowed: bool, with_entropy: bool, chunk: int) -> None:
    legal = narrow() if narrowed else None
    wanted, (hidden, weight) = make(), make()
    logprobs, entropies = plainly(*wanted, legal)
    loss_of(logprobs, entropies, with_entropy).backward()
    weight.requires_grad_(head_learns)
    bits = None if legal is None else torch.from_numpy(pack_bits(legal))
    found = taken_logprobs(hidden, weight, SOURCES, TAKEN, bits, SHARPNESS, chunk)
    torch.testing.assert_close(found, (logprobs, entropies), atol=1e-5, rtol=1e-5)
    loss_of(*found, with_entropy).backward()
    for mine, twin in zip((hidden, weight), wanted, strict=True):
        if mine.requires_grad:
            assert mine.grad is not None
            assert twin.grad is not None
            assert float((mine.grad - twin.grad).norm()) < 1e-5 * float(twin.grad.norm())


def test_a_token_that_had_no_company_is_certain_and_teaches_nothing() -> None:
    hidden, weight = make()
    bits = torch.from_numpy(pack_bits(narrow()))
    logprobs, entropies = taken_logprobs(hidden, weight, SOURCES, TAKEN, bits, SHARPNESS, 4)
    (logprobs[0] + entropies[0]).backward()
    assert logprobs[0].item() == pytest.approx(0, abs=1e-6)
    assert entropies[0].item() == pytest.approx(0, abs=1e-6)
    assert hidden.grad is not None
    assert float(hidden.grad.abs().max()) < 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("narrowed", [False, True])
def test_triton_kernels_are_their_plain_twins(dtype: torch.dtype, narrowed: bool) -> None:
    def results(kernels: Kernels) -> list[Tensor | None]:
        hidden, weight = make(dtype, "cuda")
        bits = torch.from_numpy(pack_bits(narrow())).cuda() if narrowed else None
        found = taken_logprobs(hidden, weight, SOURCES.cuda(), TAKEN.cuda(), bits, SHARPNESS, 4, kernels)
        loss_of(*found, True).backward()
        return [*found, hidden.grad, weight.grad]

    kernels = kernels_for(torch.device("cuda"))
    assert kernels is not PLAIN
    for mine, twin in zip(results(kernels), results(PLAIN), strict=True):
        assert mine is not None
        assert twin is not None
        far = float((mine.detach().float() - twin.detach().float()).norm() / twin.detach().float().norm())
        assert far < (1e-5 if dtype == torch.float32 else 2e-2)
