"""Draws a language model's answers; whoever decodes faster replaces `decode`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
import transformers
from torch import Tensor

from coterie.engines.base import Sampling
from coterie.engines.torch.decoder.rows import StaticRows, pad_left
from coterie.engines.torch.pretrained import LanguageModel
from coterie.engines.torch.small.decoding import DROP_SHARE, Drawn, choose_support
from coterie.phases import phase
from coterie.rollouts import Bools, Finish, Ints, pack_bits
from coterie.worlds.base import Constraint


class GrowingRows:
    """Rows of a model that takes no layouts: transformers' own growing cache, and a mask that hides the padding."""

    siblings = 1

    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]], group_size: int) -> None:
        """Compute each prompt once, then give every sibling its row."""
        self.model = model
        tokens, real = pad_left(prompts, model.device)
        positions = (real.cumsum(-1) - 1).clamp(min=0)
        self.cache = transformers.DynamicCache(config=model.causal.config)
        hidden = model(tokens, real.long(), positions, self.cache)[:, -1]
        if group_size > 1:
            self.cache.batch_repeat_interleave(group_size)
        self.mask, self.hidden, self.positions = (
            tensor.repeat_interleave(group_size, 0) for tensor in (real.long(), hidden, positions[:, -1:] + 1)
        )

    def keep(self, kept: Tensor, siblings: int) -> None:
        """Only these rows go on."""
        self.cache.batch_select_indices(kept)
        self.mask, self.positions = self.mask[kept], self.positions[kept]

    def advance(self, tokens: Tensor) -> None:
        """Each row chose its token."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], 1)
        self.hidden = self.model(tokens[:, None], self.mask, self.positions, self.cache)[:, -1]
        self.positions = self.positions + 1


def pick(logprobs: Tensor, generator: torch.Generator) -> Tensor:
    """One token a row, by where a random number falls among the sums of their probabilities.

    A race of exponential waiting times, as torch.multinomial has it, draws a number for every token of the vocabulary,
    which on a CPU takes longer than a small model. The sums are exact to 2^-24.
    """
    sums = logprobs.exp().cumsum(-1)
    drawn = torch.rand(len(sums), 1, generator=generator, device=sums.device)
    # Below the whole sum in any rounding, so that no token without probability can follow.
    places = torch.searchsorted(sums, drawn.clamp_(max=1 - 2**-22) * sums[:, -1:], right=True)
    return places[:, 0].clamp_(max=sums.shape[-1] - 1)  # beyond it only where the logits are not numbers


def choose(
    logits: Tensor, legal: Tensor | None, sampling: Sampling, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A token a row, its log-probability and its support; None is everything.

    The likeliest token (temperature 0) comes with its log-probability at temperature 1: there is nothing to learn
    from it, and its support, a set of one, says less.
    """
    if sampling.temperature == 0:
        tokens = (logits if legal is None else logits.masked_fill(~legal, -torch.inf)).argmax(-1)
        return tokens, logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1), None
    support = legal
    if sampling.top_p < 1 or sampling.top_k > 0:
        support = choose_support(
            logits, torch.ones_like(logits, dtype=torch.bool) if legal is None else legal, sampling
        )
    scaled = logits if sampling.temperature == 1 else logits / sampling.temperature
    table = (scaled if support is None else scaled.masked_fill(~support, -torch.inf)).log_softmax(-1)
    tokens = pick(table, generator)
    return tokens, table.gather(-1, tokens[:, None])[:, 0], support


def who_goes_on(done: Bools, siblings: int) -> tuple[Ints, int]:
    """Rows to keep, and how many a group: groups that are done leave, and of the others as many rows of each."""
    groups = done.reshape(-1, siblings)
    most = int((~groups).sum(1).max())
    first = np.argsort(groups, 1, kind="stable")[:, :most] + siblings * np.arange(len(groups))[:, None]
    return first[~groups.all(1)].reshape(-1), most


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
) -> Iterator[tuple[int, Drawn]]:
    """Draw group_size answers a prompt; yields (row, answer) as rows finish."""
    model.learn(False)
    rows: StaticRows | GrowingRows
    with phase("prompt"):
        if model.why_plain:
            rows = GrowingRows(model, prompts, group_size)
        else:
            rows = StaticRows(model, prompts, group_size, max_tokens)
    index = np.arange(len(prompts) * group_size)  # which answer each row writes
    done = np.zeros(len(index), np.bool_)
    last = np.array(list(ends))
    tokens = np.zeros((len(index), max_tokens), np.int64)
    logprobs = np.zeros((len(index), max_tokens), np.float32)
    narrowed = constraint is not None or sampling.top_p < 1 or sampling.top_k > 0
    bits = (model.vocabulary + 7) // 8 if narrowed and sampling.temperature > 0 else 0
    support = np.zeros((len(index), max_tokens, bits), np.uint8) if bits else None

    def finished(which: Bools, length: int, finish: Finish) -> Iterator[tuple[int, Drawn]]:
        for row in index[which]:
            # Copies, so that who keeps one answer does not keep them all.
            kept = None if support is None else support[row, :length].copy()
            yield int(row), Drawn(tokens[row, :length].copy(), logprobs[row, :length].copy(), kept, finish)

    for place in range(max_tokens):
        legal = None
        if constraint is not None:
            with phase("masks"):
                allowed = constraint.legal()
            stuck = ~done & ~allowed.any(1)
            yield from finished(stuck, place, Finish.DEAD_END)
            done |= stuck
            # Rows that wait to be dropped draw anything; nobody looks.
            legal = torch.from_numpy(allowed | done[:, None]).to(model.device)
        with phase("draw"):
            drawn, chances, chosen_from = choose(model.logits(rows.hidden), legal, sampling, generator)
            token, live = drawn.cpu().numpy(), index[~done]
        tokens[live, place], logprobs[live, place] = token[~done], chances.cpu().numpy()[~done]
        if support is not None and chosen_from is not None:
            support[live, place] = pack_bits(chosen_from.cpu().numpy()[~done])
        ended = ~done & (token[:, None] == last).any(1)
        yield from finished(ended, place + 1, Finish.STOP)
        done |= ended
        if done.all() or place + 1 == max_tokens:
            break
        if constraint is not None:
            with phase("masks"):
                constraint.advance(np.where(done, last[0], token))
        if done.sum() >= DROP_SHARE * len(done):
            kept, siblings = who_goes_on(done, rows.siblings)
            if len(kept) <= (1 - DROP_SHARE) * len(done):
                on_device = torch.from_numpy(kept).to(model.device)
                rows.keep(on_device, siblings)
                if constraint is not None:
                    constraint.keep(kept)
                index, done, drawn = index[kept], done[kept], drawn[on_device]
        with phase("decode"):
            rows.advance(drawn)
    yield from finished(~done, max_tokens, Finish.LENGTH)
