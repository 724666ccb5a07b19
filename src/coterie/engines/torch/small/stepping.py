"""One token for many rows whose cache stays where it is: the operations of a step, in plain torch.

`kernels.py` has the same functions for a GPU. A row works on a slot of the cache and of `Rows`; which one,
`slots` says, so that rows leave without anything being moved. The last slot is scratch, for rows that fill up a bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.engines.torch.small.tables import DeviceTables
from coterie.engines.torch.transfer import pack

GOING, STOP, LENGTH, DEAD_END = 0, 1, 2, 3  # what `finish` holds


@dataclass(frozen=True)
class Rows:
    """What is known of every slot."""

    numbers: Tensor  # [6, S] int32, the six below
    tokens: Tensor  # [S, A] int32, the answers
    logprobs: Tensor  # [S, A]
    support: Tensor  # [S, A, ceil(V/8)] packed: what each token could have been

    @property
    def token(self) -> Tensor:
        """The last one, which the model has not seen yet."""
        return self.numbers[0]

    @property
    def length(self) -> Tensor:
        """How many it has seen."""
        return self.numbers[1]

    @property
    def state(self) -> Tensor:
        """Of the constraint, where it is in tables."""
        return self.numbers[2]

    @property
    def count(self) -> Tensor:
        return self.numbers[3]

    @property
    def finish(self) -> Tensor:
        return self.numbers[4]

    @property
    def drawn(self) -> Tensor:
        """How many tokens the answer has."""
        return self.numbers[5]

    @property
    def report(self) -> Tensor:
        """[2, S] what the host asks for: finish and drawn."""
        return self.numbers[4:]


@dataclass(frozen=True)
class Drawing:
    """How the next token is drawn."""

    temperature: Tensor  # [1]
    max_tokens: Tensor  # [1] int32
    end: int
    greedy: bool
    tables: DeviceTables | None


def project(
    x: Tensor, weight: Tensor, norm: nn.RMSNorm | None = None, *, gated: bool = False, add_to: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """[B, K] to [B, N], of a normalized copy if asked, through SwiGLU if gated, added to a tensor or put into one."""
    y = F.linear(x if norm is None else norm(x), weight)
    if gated:
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    if add_to is not None:
        return add_to.add_(y)
    return y if out is None else out.copy_(y)


def attend(qkv: Tensor, keys: Tensor, values: Tensor, rows: Rows, slots: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn q and k of [B, 3 * width], append k and v to the slots [S, heads, L, D], attend: [B, width]."""
    place = rows.length[slots]
    q, k, v = qkv.view(len(qkv), 3, keys.shape[1], keys.shape[3]).unbind(1)  # [B, heads, D]
    c, s = cos[place][:, None], sin[place][:, None]

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * c - b * s, a * s + b * c], dim=-1)

    keys[slots, :, place], values[slots, :, place] = turn(k), v
    longest = int(place.max()) + 1
    seen = (torch.arange(longest, device=qkv.device) <= place[:, None])[:, None, None]
    # Where nothing has been written yet anything may stand, and NaN times 0 is NaN.
    k, v = (x[slots, :, :longest].masked_fill(~seen.mT, 0.0) for x in (keys, values))
    return F.scaled_dot_product_attention(turn(q)[:, :, None], k, v, attn_mask=seen).flatten(1)


def draw(rows: Rows, slots: Tensor, logits: Tensor, noise: Tensor, support: Tensor | None, how: Drawing) -> None:
    """Choose a token for every row that goes on, by a race of exponential `noise`, and note all about it.

    Without `support` [B, V] the tables say what may be drawn.
    """
    going = (rows.finish[slots] == GOING).nonzero()[:, 0]
    slots, logits, noise = slots[going], logits[going], noise[going]
    if support is None:
        assert how.tables is not None
        support = how.tables.legal(rows.state[slots], rows.count[slots])
    else:
        support = support[going]
    open_ = support.any(1)
    rows.finish[slots[~open_]] = DEAD_END
    slots, logits, noise, support = slots[open_], logits[open_], noise[open_], support[open_]
    logprobs = (logits / how.temperature).masked_fill(~support, -torch.inf).log_softmax(-1)
    token = (logprobs if how.greedy else logprobs.exp() / noise).argmax(-1)
    if how.greedy:
        support = F.one_hot(token, support.shape[1]).bool()
        logprobs = torch.zeros_like(logprobs)
    place = rows.drawn[slots]
    rows.tokens[slots, place] = token.int()
    rows.logprobs[slots, place] = logprobs.gather(-1, token[:, None])[:, 0]
    rows.support[slots, place] = pack(support)
    if how.tables is not None:
        rows.count[slots] += how.tables.counts[token]
        rows.state[slots] = how.tables.transitions[rows.state[slots], token]
    rows.token[slots] = token.int()
    rows.length[slots] += 1
    rows.drawn[slots] = place + 1
    ended = torch.where(place + 1 == how.max_tokens, LENGTH, GOING)
    rows.finish[slots] = torch.where(token == how.end, STOP, ended).int()
