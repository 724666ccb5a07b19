"""Draws answers for whole groups at once, under legal masks, temperature and top-p."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.engines.base import Sampling
from coterie.engines.torch.small.token_step import TokenStep
from coterie.engines.torch.small.transformer import Cache, Transformer
from coterie.rollouts import Bits, Bools, Finish, Floats, Ints, pack_bits
from coterie.worlds.base import Constraint

# The cache begins with room for this many tokens and doubles when they are used up.
FIRST_ROOM = 128
# Finished rows leave the cache when they are this share of it: moving it costs about a token's work.
DROP_SHARE = 1 / 8


@dataclass(frozen=True)
class Drawn:
    """One answer as drawn, its end token included."""

    tokens: Ints  # [A]
    logprobs: Floats  # [A]
    support: Bits | None  # [A, ceil(V/8)] what could have been drawn at each place; None if that was everything
    finish: Finish


def choose_support(logits: Tensor, legal: Tensor, sampling: Sampling, temperature: Tensor | None = None) -> Tensor:
    """[rows, V]: the legal tokens that temperature, top-k and top-p leave; the temperature may lie on the device."""
    if sampling.temperature == 0:
        best = logits.masked_fill(~legal, -torch.inf).argmax(-1, keepdim=True)
        return torch.zeros_like(legal).scatter_(-1, best, True) & legal
    if 0 < sampling.top_k < legal.shape[-1]:
        masked = logits.masked_fill(~legal, -torch.inf)
        legal = legal & (masked >= masked.topk(sampling.top_k, -1).values[:, -1:])
    if sampling.top_p >= 1:
        return legal
    probs = (
        (logits / (sampling.temperature if temperature is None else temperature))
        .masked_fill(~legal, -torch.inf)
        .softmax(-1)
    )
    ordered, order = probs.sort(-1, descending=True)
    # A token stays if those before it do not reach top_p yet; so the likeliest always stays.
    kept = ordered.cumsum(-1) - ordered < sampling.top_p
    return torch.zeros_like(legal).scatter_(-1, order, kept) & legal


def draw(logits: Tensor, support: Tensor, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token a row from the support, and its log-probability there."""
    logprobs = (logits / (temperature or 1.0)).masked_fill(~support, -torch.inf).log_softmax(-1)
    # A random spot on the line where each token is as long as it is likely; p = 0 is never hit. In float64 a spot is
    # below the end however it is rounded, and one number a row takes a seventh of the time of one a token.
    line = logprobs.double().exp_().cumsum(-1)
    spot = torch.rand(len(line), 1, dtype=line.dtype, device=line.device, generator=generator) * line[:, -1:]
    tokens = (line <= spot).sum(-1)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def fill_prompts(
    model: Transformer, prompts: Sequence[Sequence[int]], group_size: int, room: int
) -> tuple[TokenStep, Tensor, Tensor]:
    """Compute each prompt once, then give every sibling its row: what goes on from there, logits, next positions."""
    device = model.head.weight.device
    longest = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
    # Padded on the left, so that all rows grow in the same column; positions count real tokens.
    lengths = torch.tensor([len(p) for p in prompts])
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
    column = torch.arange(longest)
    positions = (column - (longest - lengths)[:, None]).clamp(min=0).to(device)
    cache = Cache(model.shape, len(prompts), longest, device)
    cache.visible[:, 0, 0, :] = (column >= (longest - lengths)[:, None]).to(device)
    logits = model.head(model(tokens.to(device), positions, cache)[:, -1])
    siblings = torch.arange(len(prompts), device=device).repeat_interleave(group_size)
    return TokenStep(model, cache, siblings, room), logits[siblings], lengths.to(device)[siblings]


@torch.inference_mode()
def decode(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    constraint: Constraint,
    end: int,
    max_tokens: int,
    sampling: Sampling,
    generator: torch.Generator,
) -> Iterator[tuple[int, Drawn]]:
    """Draw group_size answers a prompt; yields (row, answer) as rows finish."""
    num_rows = len(prompts) * group_size
    step, logits, positions = fill_prompts(model, prompts, group_size, min(max_tokens, FIRST_ROOM))
    device = logits.device
    tokens = np.zeros((num_rows, max_tokens), np.int64)
    logprobs = np.zeros((num_rows, max_tokens), np.float32)
    support = np.zeros((num_rows, max_tokens, (model.shape.vocabulary + 7) // 8), np.uint8)
    rows = np.arange(num_rows)  # which answer each cache row writes
    done = np.zeros(num_rows, np.bool_)

    def finished(index: Ints, length: int, finish: Finish) -> Iterator[tuple[int, Drawn]]:
        for row in rows[index]:
            yield int(row), Drawn(tokens[row, :length], logprobs[row, :length], support[row, :length], finish)

    for t in range(max_tokens):
        legal: Bools = constraint.legal()
        stuck = ~done & ~legal.any(1)
        yield from finished(np.flatnonzero(stuck), t, Finish.DEAD_END)
        done |= stuck
        legal = legal | done[:, None]  # rows that wait to be dropped draw anything; nobody looks
        chosen_from = choose_support(logits, torch.from_numpy(legal).to(device), sampling)
        drawn, logprob = draw(logits, chosen_from, sampling.temperature, generator)
        token = np.where(done, end, drawn.cpu().numpy())
        live = rows[~done]
        tokens[live, t] = token[~done]
        logprobs[live, t] = logprob.cpu().numpy()[~done]
        support[live, t] = pack_bits(chosen_from.cpu().numpy()[~done])
        ended = ~done & (token == end)
        yield from finished(np.flatnonzero(ended), t + 1, Finish.STOP)
        done |= ended
        if done.all():
            return
        if t + 1 == max_tokens:
            break
        constraint.advance(token)
        if done.sum() >= DROP_SHARE * len(rows):
            on_device = step.drop(torch.from_numpy(~done).to(device))
            kept = on_device.cpu().numpy()
            constraint.keep(kept)
            rows, done, token = rows[kept], done[kept], token[kept]
            positions = positions[on_device]
        logits = step.logits(step(torch.from_numpy(token).to(device), positions))
        positions = positions + 1
    yield from finished(np.flatnonzero(~done), max_tokens, Finish.LENGTH)
