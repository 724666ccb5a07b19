"""Fills the blanks of whole groups, all at once or the surest first, and scores what was filled in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.engines.base import Sampling
from coterie.engines.torch.learner import Places
from coterie.engines.torch.small.decoding import choose_support, draw
from coterie.engines.torch.small.transformer import Transformer
from coterie.grpo.objective import entropy
from coterie.rollouts import Batch, unpack_bits

ROWS_AT_ONCE = 64  # more do not make the matrix products faster, only the activations larger


def states_at(model: Transformer, views: Tensor, lengths: Tensor, row: Tensor, place: Tensor) -> Tensor:
    """[A, width]: the hidden states at (row, place) of views [M, T].

    Siblings see the same text until one of them has committed something: equal views are computed once.
    """
    distinct, which = torch.unique(torch.cat([lengths[:, None], views], 1), dim=0, return_inverse=True)
    lengths, tokens = distinct[:, :1], distinct[:, 1:]
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    seen = (positions < lengths)[:, None, None]
    padded = not bool(seen.all())
    parts = [
        model(part, positions.expand_as(part), visible=seen[start : start + ROWS_AT_ONCE] if padded else None)
        for start, part in zip(range(0, len(tokens), ROWS_AT_ONCE), tokens.split(ROWS_AT_ONCE), strict=True)
    ]
    # index_select, because its gradient adds up in a fixed order; that of plain indexing does not.
    return torch.cat(parts).flatten(0, 1).index_select(0, which[row] * tokens.shape[1] + place)


def score_blanks(model: Transformer, batch: Batch, temperature: float, mask: int) -> Places:
    """The batch under the model, as it was filled in: each token under the pass that committed it."""
    device = model.head.weight.device
    tokens = torch.from_numpy(batch.tokens).to(device)
    chosen = torch.from_numpy(batch.chosen).to(device)
    lengths = torch.from_numpy(batch.lengths).to(device)
    passes = torch.zeros_like(tokens) if batch.passes is None else torch.from_numpy(batch.passes).to(device)
    row, place = chosen.nonzero(as_tuple=True)
    # In its own pass a token was hidden, and so was whatever came later.
    wanted, view = torch.unique(passes[row, place] * len(tokens) + row, return_inverse=True)
    of_row, of_pass = wanted % len(tokens), wanted // len(tokens)
    hidden = chosen[of_row] & (passes[of_row] >= of_pass[:, None])
    views = tokens[of_row].masked_fill(hidden, mask)
    logits = model.head(states_at(model, views, lengths[of_row], view, place)) / (temperature or 1.0)
    if batch.legal is not None:
        support = torch.from_numpy(unpack_bits(batch.legal, logits.shape[-1])).to(device)
        logits = logits.masked_fill(~support, -torch.inf)
    table = logits.log_softmax(-1)
    taken = table.gather(-1, tokens[row, place][:, None])[:, 0]
    blank = torch.zeros(tokens.shape, device=device)
    return Places(blank.masked_scatter(chosen, taken), blank.masked_scatter(chosen, entropy(table)))


@dataclass(frozen=True)
class Filled:
    """Rows without blanks, and how they came about."""

    tokens: Tensor  # [N, T]
    chosen: Tensor  # [N, T] bool
    logprobs: Tensor  # [N, T]
    passes: Tensor  # [N, T]
    support: Tensor  # [A, V] bool, in the order of chosen


@torch.inference_mode()
def fill_blanks(
    model: Transformer,
    tokens: Tensor,  # [N, T] with the mask token in the blanks
    lengths: Tensor,  # [N]
    mask: int,
    fillable: Tensor,  # [V] bool
    sampling: Sampling,
    generator: torch.Generator,
) -> Filled:
    """Draw every blank, in `fill_passes` passes."""
    tokens, chosen = tokens.clone(), tokens == mask
    logprobs = torch.zeros(tokens.shape, device=tokens.device)
    passes = torch.zeros_like(tokens)
    slot = torch.zeros_like(tokens)
    slot[chosen] = torch.arange(int(chosen.sum()), device=tokens.device)
    support = torch.zeros(int(chosen.sum()), len(fillable), dtype=torch.bool, device=tokens.device)
    for number in range(sampling.fill_passes):
        row, place = (tokens == mask).nonzero(as_tuple=True)
        if len(row) == 0:
            break
        logits = model.head(states_at(model, tokens, lengths, row, place))
        allowed = choose_support(logits, fillable.expand_as(logits), sampling)
        passes_left = sampling.fill_passes - number
        if passes_left > 1:
            # Chosen by the distribution, before anything is drawn: so the order says nothing about the draw.
            sure = surest(logits, allowed, sampling.temperature, row, passes_left)
            row, place, logits, allowed = row[sure], place[sure], logits[sure], allowed[sure]
        drawn, logprob = draw(logits, allowed, sampling.temperature, generator)
        tokens[row, place], logprobs[row, place], passes[row, place] = drawn, logprob, number
        support[slot[row, place]] = allowed
    return Filled(tokens, chosen, logprobs, passes, support)


def surest(logits: Tensor, allowed: Tensor, temperature: float, row: Tensor, passes_left: int) -> Tensor:
    """Which blanks to commit now: of each row its even share, those whose likeliest token is likeliest."""
    probs = (logits / (temperature or 1.0)).masked_fill(~allowed, -torch.inf).softmax(-1)
    by_sureness = probs.amax(-1).argsort(descending=True, stable=True)
    order = by_sureness[row[by_sureness].argsort(stable=True)]  # by row, the surest first
    blanks = torch.bincount(row)
    first = blanks.cumsum(0) - blanks
    rank = torch.arange(len(row), device=row.device) - first[row[order]]
    quota = -(-blanks // passes_left)
    return order[rank < quota[row[order]]].sort().values
