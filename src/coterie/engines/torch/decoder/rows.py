"""Rows of answers in a cache that is appended to in place, each prompt computed once a group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engines.torch.decoder.llama_step import find_step
from coterie.engines.torch.pretrained import LanguageModel
from coterie.engines.torch.small.decoding import FIRST_ROOM

# Siblings read one copy of a prompt this long; a shorter one is cheaper as the beginning of each row.
SHARED_FROM = 32


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """[P, longest] tokens, and which are no padding: it is on the left, so that all rows grow in the same column."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return tokens, torch.arange(longest, device=device) >= longest - lengths[:, None]


def score_keys(queries: Tensor, keys: Tensor, scaling: float, padding: Tensor | None) -> Tensor:
    """[B, Q, T] of [B, Q, width] and [B, T, width]; padding [B, 1, T] is -inf where nobody may look."""
    if padding is None:
        return torch.baddbmm(queries.new_empty(()), queries, keys.mT, beta=0, alpha=scaling)
    return torch.baddbmm(padding, queries, keys.mT, alpha=scaling)


class StaticRows:
    """The layout of a call, and what it remembers from one token to the next.

    A cache is [P x key heads x siblings, room, width of a head]. Where siblings share their prompt, it is kept once,
    as [P x key heads, longest, width of a head], and met by all their queries in one product. Where they do not, each
    row is a group of its own.
    """

    def __init__(
        self, model: LanguageModel, prompts: Sequence[Sequence[int]], group_size: int, max_tokens: int
    ) -> None:
        """Compute each prompt once, then give every sibling its row."""
        tokens, real = pad_left(prompts, model.device)
        self.model, self.longest, self.key_heads = model, tokens.shape[1], 0
        self.step = find_step(model, len(prompts) * group_size * max_tokens, self.longest + max_tokens)
        self.cache: list[list[Tensor]] = [[], []]  # keys and values of each layer
        self.prompt: list[list[Tensor]] = [[], []]
        self.padding = None if bool(real.all()) else real
        self.filled = self.room = 0  # no room yet: the prompts are being computed
        places = (real.cumsum(-1) - 1).clamp(min=0)
        hidden = model(tokens, positions=places, layout=self)[:, -1]
        self.shares = group_size > 1 and self.longest >= SHARED_FROM
        each = torch.arange(len(prompts), device=model.device).repeat_interleave(group_size)
        self.hidden, self.positions = hidden[each], places[each, -1:] + 1
        self.num_groups, self.siblings = (len(prompts), group_size) if self.shares else (len(each), 1)
        room = min(max_tokens, FIRST_ROOM)
        if self.shares:
            self.prompt, self.cache = self.cache, [[old[:0] for old in kind] for kind in self.cache]
            self._move(torch.empty(len(each) * self.key_heads, device=model.device), room)
        else:
            self.filled = self.longest
            heads = torch.arange(self.key_heads, device=model.device)
            self._move((each[:, None] * self.key_heads + heads).view(-1), self.longest + room)
            real = real[each]
        if self.padding is not None:
            hide = torch.zeros(real.shape, device=model.device, dtype=hidden.dtype).masked_fill(~real, -torch.inf)
            self.padding = hide.repeat_interleave(self.key_heads, 0)[:, None]  # [groups x key heads, 1, longest]

    def _move(self, rows: Tensor, room: int) -> None:
        """The cache's rows with this index, as far as they are filled, to where there is this much room."""
        for kind in self.cache:
            for layer, old in enumerate(kind):
                kind[layer] = old.new_empty(len(rows), room, old.shape[-1])
                if self.filled:
                    kind[layer][:, : self.filled] = old[:, : self.filled].index_select(0, rows)
        self.room = room

    def keep(self, kept: Tensor, siblings: int) -> None:
        """Only these rows go on, with this many in each group that is left."""
        groups, place = kept // self.siblings, kept % self.siblings
        first = groups.view(-1, siblings)[:, 0]
        heads = torch.arange(self.key_heads, device=kept.device)[:, None]
        rows = (groups.view(-1, 1, siblings) * self.key_heads + heads) * self.siblings + place.view(-1, 1, siblings)
        self._move(rows.view(-1), self.room)
        whole = (first[:, None] * self.key_heads + heads[:, 0]).view(-1)
        self.prompt = [[old[whole] for old in kind] for kind in self.prompt]
        self.padding = None if self.padding is None else self.padding[whole]
        self.positions, self.num_groups, self.siblings = self.positions[kept], len(first), siblings

    def advance(self, tokens: Tensor) -> None:
        """Each row chose its token."""
        if self.filled == self.room:
            self._move(torch.arange(len(self.cache[0][0]), device=tokens.device), 2 * self.room)
        if self.step is None:
            self.hidden = self.model(tokens[:, None], positions=self.positions, layout=self)[:, -1]
        else:
            self.hidden = self.step(tokens, self.positions, self)
        self.positions = self.positions + 1
        self.filled += 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """One token a row; the prompts, many, come first."""
        if self.room == 0:
            return self._attend_prompts(query, key, value, scaling)
        keys, values = self.cache[0][layer], self.cache[1][layer]
        keys[:, self.filled] = self._by_head(key)[:, 0]
        values[:, self.filled] = self._by_head(value)[:, 0]
        queries = self._by_head(query)
        keys, values = keys[:, : self.filled + 1], values[:, : self.filled + 1]
        if self.shares:
            mixed = self._attend_shared(layer, queries, keys, values, scaling)
        else:
            padding = self.padding
            if padding is not None:
                padding = F.pad(padding, (0, self.filled + 1 - self.longest))
            mixed = torch.bmm(score_keys(queries, keys, scaling, padding).softmax(-1), values)
        if self.siblings > 1:
            mixed = mixed.view(self.num_groups, self.key_heads, self.siblings, -1, mixed.shape[-1]).transpose(1, 2)
        return mixed.reshape(query.shape[0], 1, -1, mixed.shape[-1])

    def _by_head(self, states: Tensor) -> Tensor:
        """[rows, heads, 1, width] -> [groups x key heads x siblings, heads of that key head, width]"""
        rows = states.shape[0] * self.key_heads
        if self.siblings > 1:
            states = states.view(self.num_groups, self.siblings, self.key_heads, -1, states.shape[-1]).transpose(1, 2)
        return states.reshape(rows, -1, states.shape[-1])

    def _attend_shared(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """As if the shared prompt stood before each row: the queries of siblings are the rows of one matrix."""
        prompt_keys, prompt_values = self.prompt[0][layer], self.prompt[1][layer]
        together = queries.view(len(prompt_keys), -1, queries.shape[-1])
        of_prompt = score_keys(together, prompt_keys, scaling, self.padding)
        own = score_keys(queries, keys, scaling, None)
        weights = torch.cat([of_prompt, own.view(*together.shape[:2], -1)], -1).softmax(-1)
        mixed = weights[..., self.longest :].reshape(own.shape) @ values
        return mixed.view(together.shape).baddbmm_(weights[..., : self.longest], prompt_values)

    def _attend_prompts(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Causal attention within each prompt; its keys and values are kept."""
        self.key_heads = key.shape[1]
        for kind, states in zip(self.cache, (key, value), strict=True):
            kind.append(states.flatten(0, 1).contiguous())
        sees = None
        if self.padding is not None:
            place = torch.arange(self.longest, device=query.device)
            # Padding sees itself, or it would be nothing divided by nothing.
            sees = self.padding[:, None, None] & (place <= place[:, None]) | (place == place[:, None])
        mixed = F.scaled_dot_product_attention(
            query, key, value, sees, is_causal=sees is None, scale=scaling, enable_gqa=True
        )
        return mixed.transpose(1, 2)
