"""Draws a language model's answers; whoever decodes faster replaces `decode`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import transformers
from torch import Tensor

from coterie.engines.base import Sampling
from coterie.engines.torch.decoding import DROP_SHARE, choose_support, draw
from coterie.engines.torch.pretrained import LanguageModel
from coterie.rollouts import Bits, Finish, pack_bits
from coterie.worlds.base import Constraint


@dataclass
class Written:
    """One answer, its end token included, as it grows."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    support: list[Bits] | None = None  # what could have been drawn; None if that was everything
    finish: Finish = Finish.LENGTH


class Rows:
    """The rows that are still being written: their cache, which of it is no padding, and where they are."""

    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]], group_size: int) -> None:
        """Compute each prompt once, then give every sibling its row."""
        self.model, device = model, model.device
        longest = max(map(len, prompts))
        # Padded on the left, so that all rows grow in the same column; positions count real tokens.
        tokens = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self.mask = (torch.arange(longest, device=device) >= longest - lengths[:, None]).long()
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
        self.cache = transformers.DynamicCache(config=model.causal.config)
        self.hidden = model(tokens, self.mask, positions, self.cache)[:, -1]
        self.positions = lengths
        if group_size > 1:
            self.cache.batch_repeat_interleave(group_size)
        self.mask, self.hidden, self.positions = (
            tensor.repeat_interleave(group_size, 0) for tensor in (self.mask, self.hidden, self.positions)
        )

    def keep(self, rows: Tensor) -> None:
        """Only these rows go on."""
        self.cache.batch_select_indices(rows)
        self.mask, self.positions = self.mask[rows], self.positions[rows]

    def advance(self, tokens: Tensor) -> None:
        """Each row chose its token."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], 1)
        self.hidden = self.model(tokens[:, None], self.mask, self.positions[:, None], self.cache)[:, -1]
        self.positions = self.positions + 1


def choose(
    logits: Tensor, legal: Tensor, sampling: Sampling, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """A token a row, its log-probability and its support.

    The likeliest token (temperature 0) comes with its log-probability at temperature 1: there is nothing to learn
    from it, and its support, a set of one, says less.
    """
    if sampling.temperature == 0:
        tokens = logits.masked_fill(~legal, -torch.inf).argmax(-1)
        return tokens, logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0], legal
    support = choose_support(logits, legal, sampling)
    tokens, logprobs = draw(logits, support, sampling.temperature, generator)
    return tokens, logprobs, support


@torch.inference_mode()
def decode(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    ends: Collection[int],
    max_tokens: int,
    sampling: Sampling,
    generator: torch.Generator,
    constraint: Constraint | None = None,
) -> Iterator[tuple[int, Written]]:
    """Draw group_size answers a prompt; yields (row, answer) as rows finish."""
    model.learn(False)
    rows = Rows(model, prompts, group_size)
    index = np.arange(len(prompts) * group_size)  # which answer each row writes
    done = np.zeros(len(index), np.bool_)
    narrowed = constraint is not None or sampling.top_p < 1 or sampling.top_k > 0
    keeps_support = narrowed and sampling.temperature > 0
    written = [Written(support=[] if keeps_support else None) for _ in index]
    for place in range(max_tokens):
        logits = model.logits(rows.hidden)
        legal = torch.ones(logits.shape, dtype=torch.bool, device=logits.device)
        if constraint is not None:
            allowed = constraint.legal()
            for row in np.flatnonzero(~done & ~allowed.any(1)):
                done[row], written[index[row]].finish = True, Finish.DEAD_END
                yield int(index[row]), written[index[row]]
            # Rows that wait to be dropped draw anything; nobody looks.
            legal = torch.from_numpy(allowed | done[:, None]).to(logits.device)
        drawn, logprobs, support = choose(logits, legal, sampling, generator)
        tokens = np.where(done, next(iter(ends)), drawn.cpu().numpy())
        chances = logprobs.cpu().numpy()
        packed = pack_bits(support.cpu().numpy()) if keeps_support else ()
        for row in np.flatnonzero(~done):
            answer = written[index[row]]
            answer.tokens.append(int(tokens[row]))
            answer.logprobs.append(float(chances[row]))
            if answer.support is not None:
                answer.support.append(packed[row])
            if tokens[row] in ends:
                done[row], answer.finish = True, Finish.STOP
                yield int(index[row]), answer
        if done.all() or place + 1 == max_tokens:
            break
        if constraint is not None:
            constraint.advance(tokens)
        if done.sum() >= DROP_SHARE * len(done):
            kept = np.flatnonzero(~done)
            on_device = torch.from_numpy(kept).to(logits.device)
            rows.keep(on_device)
            if constraint is not None:
                constraint.keep(kept)
            index, done, drawn = index[kept], done[kept], drawn[on_device]
        rows.advance(drawn)
    for row in np.flatnonzero(~done):
        yield int(index[row]), written[index[row]]
