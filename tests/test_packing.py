"""Packed rows: a prompt comes once for all its answers, and nobody learns anything else from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from coterie.engines.torch.logprobs.chunks import score_in_chunks
from coterie.engines.torch.logprobs.packed_attention import PackedLayout
from coterie.engines.torch.logprobs.packing import pack, split_packed
from coterie.engines.torch.pretrained import LanguageModel
from coterie.rollouts import Batch

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def batch_of(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """Rows of tokens, each with the places that were chosen."""
    lengths = np.array([len(tokens) for tokens, _ in rows])
    tokens = np.zeros((len(rows), lengths.max()), np.int64)
    chosen = np.zeros(tokens.shape, bool)
    for row, (written, places) in enumerate(rows):
        tokens[row, : len(written)] = written
        chosen[row, list(places)] = True
    return Batch(tokens, lengths, chosen, np.zeros(tokens.shape, np.float32), np.ones(len(rows), np.float32))


def ragged(groups: Sequence[int], prompt: int = 9, answer: int = 7) -> Batch:
    """Groups of these sizes, of many lengths; one answer is a single token, one has a place that nobody chose."""
    rng = np.random.default_rng(0)
    rows: list[tuple[list[int], list[int]]] = []
    for size in groups:
        start = rng.integers(1, 30, rng.integers(2, prompt)).tolist()
        for _ in range(size):
            end = rng.integers(1, 30, rng.integers(2, answer) if rows else 1).tolist()
            rows.append((start + end, list(range(len(start), len(start) + len(end)))))
    longest = max(range(len(rows)), key=lambda row: len(rows[row][1]))
    del rows[longest][1][1]
    return batch_of(rows)


def make_model() -> LanguageModel:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2,
    )  # fmt: skip
    return LanguageModel(transformers.LlamaForCausalLM(config))


def gradients(model: LanguageModel, losses: Iterable[Tensor]) -> Tensor:
    """Of the sum of the losses."""
    model.zero_grad()
    for loss in losses:
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def weighted(logprobs: Tensor, batch: Batch, rows: np.ndarray) -> Tensor:
    """A loss in which every place counts differently, however rows are split."""
    weights = np.random.default_rng(1).normal(size=batch.tokens.shape).astype(np.float32)
    return (logprobs * torch.from_numpy(weights[rows, : logprobs.shape[1]])).sum()


def test_a_prompt_comes_once_and_predicts_the_first_token_of_every_answer() -> None:
    packed = pack(batch_of([([1, 2, 3, 4, 5], [2, 3, 4]), ([7, 8, 9], [1, 2]), ([1, 2, 6], [2])]))
    # The prompt 1 2, then 3 4 of the first answer, whose 5 predicts nothing; 6 is predicted from the prompt alone.
    assert packed.tokens.tolist() == [1, 2, 3, 4, 7, 8]
    assert packed.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert packed.sources.tolist() == [1, 2, 3, 4, 5, 1]
    assert (packed.trunks, packed.branches, packed.singles) == ([2], [[2]], [2])


def test_unshared_rows_lie_side_by_side() -> None:
    packed = pack(batch_of([([1, 2, 3, 4], [2, 3]), ([1, 2, 6, 7], [2, 3])]), share=False)
    assert packed.tokens.tolist() == [1, 2, 3, 1, 2, 6]
    assert packed.sources.tolist() == [1, 2, 4, 5]
    assert (packed.trunks, packed.branches, packed.singles) == ([], [], [3, 3])


@pytest.mark.parametrize(
    ("max_tokens", "parts"), [(4, [[0], [1], [2], [3]]), (7, [[0, 1], [2], [3]]), (9, [[0, 1, 2], [3]])]
)
def test_a_part_has_the_prompt_once_and_as_many_tokens_as_it_may(max_tokens: int, parts: list[list[int]]) -> None:
    # Three answers that take two tokens each to a prompt of three, and a row of five that nothing can split.
    rows = [([1, 2, 3, n, n, n], [3, 4, 5]) for n in (4, 5, 6)]
    batch = batch_of([*rows, ([8, 8, 8, 9, 9, 9], [3, 4, 5]), ([1, 2], [])])
    assert [part.tolist() for part in split_packed(batch, max_tokens)] == parts


@pytest.mark.parametrize("groups", [[4, 1, 3], [5], [1, 1], [2, 2]], ids=str)
def test_sharing_a_prompt_changes_no_gradient(groups: list[int]) -> None:
    model, batch = make_model(), ragged(groups)
    rows = np.arange(batch.num_rows)
    tokens = torch.from_numpy(batch.tokens)
    table = model.causal(tokens[:, :-1]).logits.log_softmax(-1)
    plain = torch.zeros(batch.tokens.shape)
    plain[:, 1:] = table.gather(-1, tokens[:, 1:, None])[..., 0] * torch.from_numpy(batch.chosen[:, 1:])
    wanted = gradients(model, [weighted(plain, batch, rows)])
    for share in (True, False):
        # Parts of 20 tokens: groups are split, and their prompt is there again.
        for parts in ([rows], list(split_packed(batch, 20, share))):
            found = (score_in_chunks(model, batch.rows(part), 1.0, 5, share).logprobs for part in parts)
            losses = (weighted(logprobs, batch, part) for logprobs, part in zip(found, parts, strict=True))
            far = gradients(model, losses) - wanted
            assert float(far.norm()) < 1e-5 * float(wanted.norm())


def test_an_answer_sees_nothing_of_its_siblings() -> None:
    model = make_model()
    batch = ragged([4])
    before = score_in_chunks(model, batch, 1.0, 8).logprobs.detach()
    tokens = batch.tokens.copy()
    tokens[1][batch.chosen[1]] = 30
    other = Batch(tokens, batch.lengths, batch.chosen, batch.logprobs, batch.advantages)
    after = score_in_chunks(model, other, 1.0, 8).logprobs.detach()
    torch.testing.assert_close(after[[0, 2, 3]], before[[0, 2, 3]])
    assert not torch.allclose(after[1], before[1])


@on_gpu
@pytest.mark.parametrize("groups", [[3, 1, 5, 2], [16], [1, 1, 1]], ids=str)
def test_flash_kernels_are_scaled_dot_products(groups: list[int]) -> None:
    packed = pack(ragged(groups, 130, 90))
    torch.manual_seed(0)
    given = [torch.randn(1, heads, len(packed.tokens), 64, device="cuda") for heads in (14, 2, 2)]
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        layout = PackedLayout(packed, torch.device("cuda"), dtype, 64)
        assert layout.flash == (dtype == torch.bfloat16)
        query, key, value = (tensor.to(dtype, copy=True).requires_grad_() for tensor in given)
        mixed = layout.attend(0, query, key, value, 0.125)
        (mixed.float() * given[0].transpose(1, 2)).sum().backward()
        results.append([mixed.detach(), query.grad, key.grad, value.grad])
    for mine, twin in zip(*results, strict=True):
        assert mine is not None
        assert twin is not None
        assert float((mine.float() - twin).norm()) < 1e-2 * float(twin.norm())
