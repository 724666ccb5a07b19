"""The decoder's operations in plain PyTorch: what its kernels must compute, and what runs where they do not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engines.torch.decoder.slots import Rows, Slots
from coterie.engines.torch.transfer import unpack


@dataclass(frozen=True)
class Turning:
    """How queries and keys are made ready: turned by their positions and, in some families, normalized before."""

    cos: Tensor  # [positions, width of a head]
    sin: Tensor
    query_weight: Tensor | None = None  # [width of a head]
    key_weight: Tensor | None = None
    eps: float = 1e-6


def begin(slots: Slots, active: Tensor, embedding: Tensor) -> tuple[Rows, Tensor]:
    """Where the rows of a batch stand, and the states that their newest tokens begin as."""
    return slots.rows(active), F.embedding(slots.token.index_select(0, active), embedding)


def add_norm(stream: Tensor, more: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """Add to the stream, in place, and return it normalized (RMSNorm)."""
    if more is not None:
        stream.add_(more)
    return normalize(stream, weight, eps)


def normalize(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm, in float32, rounded before its weight."""
    full = x.float()
    return weight * (full * torch.rsqrt(full.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def gate(gate_up: Tensor) -> Tensor:
    """[rows, 2 inner] -> [rows, inner]: silu(gate) * up."""
    gates, up = gate_up.chunk(2, -1)
    return F.silu(gates) * up


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, in_parts: bool = False, out: Tensor | None = None
) -> Tensor:
    """A product, which may come as parts to be added: [parts, rows, outputs] in float32."""
    return F.linear(x, weight, bias) if out is None else torch.mm(x, weight.T, out=out)


def gated(x: Tensor, weight: Tensor) -> Tensor:
    """The gate of a product."""
    return gate(F.linear(x, weight))


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on [rows, heads, width]; halves belong together."""
    a, b = x.float().chunk(2, -1)
    return (x.float() * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]).to(x.dtype)


def turn_prompts(joined: Tensor, heads: int, kv_heads: int, length: int, turning: Turning) -> None:
    """[rows x length, (heads + 2 kv heads) width], in place: make the queries and keys of whole prompts ready."""
    width = turning.cos.shape[1]
    position = torch.arange(len(joined), device=joined.device) % length
    both = joined[:, : (heads + kv_heads) * width].unflatten(-1, (-1, width))
    ready = both
    if turning.query_weight is not None and turning.key_weight is not None:
        query, key = both.split([heads, kv_heads], 1)
        query = normalize(query, turning.query_weight, turning.eps)
        ready = torch.cat([query, normalize(key, turning.key_weight, turning.eps)], 1)
    both.copy_(turn(ready, turning.cos[position].float(), turning.sin[position].float()))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Slots,
    layer: int,
    rows: Rows,
    scaling: float,
    turning: Turning | None = None,
) -> Tensor:
    """[rows, heads, width], one token a row: keep its key and value in its slot, attend to its prompt and its past."""
    active, prompt, before, past = (x.long() for x in (rows.slot, rows.prompt, rows.before, rows.past))
    if turning is not None:
        if turning.query_weight is not None and turning.key_weight is not None:
            query = normalize(query, turning.query_weight, turning.eps)
            key = normalize(key, turning.key_weight, turning.eps)
        position = before + past
        query, key = (turn(x, turning.cos[position].float(), turning.sin[position].float()) for x in (query, key))
    slots.keys[layer][active, :, past] = key
    slots.values[layer][active, :, past] = value
    keys = torch.cat([slots.prompt_keys[layer][prompt], slots.keys[layer][active]], 2)
    values = torch.cat([slots.prompt_values[layer][prompt], slots.values[layer][active]], 2)
    places = torch.arange(slots.room.prompt_places, device=query.device)
    own = torch.arange(slots.room.places + 1, device=query.device)
    visible = torch.cat([places < before[:, None], own <= past[:, None]], 1)
    mixed = F.scaled_dot_product_attention(
        query[:, :, None], keys, values, attn_mask=visible[:, None, None], scale=scaling, enable_gqa=True
    )
    return mixed[:, :, 0].reshape(len(query), -1)


def draw(logits: Tensor, slots: Slots, active: Tensor, greedy: bool, support: Tensor | None = None) -> None:
    """A token a row, by its slot's own stream of random numbers; notes it, its log-probability, and whether it ends.

    The likeliest token comes with its log-probability at temperature 1. `support` [rows, bytes] is packed.
    """
    scaled = logits.float() / (1.0 if greedy else slots.temperature)
    if support is not None:
        scaled = scaled.masked_fill(~unpack(support, logits.shape[-1]), -torch.inf)
    table = scaled.log_softmax(-1)
    token = scaled.argmax(-1) if greedy else race(table, slots, active)
    note(slots, active, token, table.gather(-1, token[:, None])[:, 0])


def race(table: Tensor, slots: Slots, active: Tensor) -> Tensor:
    """The first token at which the cumulated probability passes a number that answer and place decide."""
    drawn = []
    for row, slot in enumerate(active.tolist()):
        place = int(slots.answer[slot]) * slots.room.places + int(slots.length[slot])
        stream = torch.Generator().manual_seed((int(slots.seed) + 0x9E3779B97F4A7C15 * place) % 2**63)
        goal = torch.rand((), generator=stream).to(table.device)
        probs = table[row].exp()
        cumulated = probs.cumsum(0)
        # Rounding may leave the goal beyond the last token that can be drawn.
        last = int(probs.nonzero()[-1])
        drawn.append((cumulated <= goal * cumulated[-1]).sum().clamp(max=last))
    return torch.stack(drawn)


def note(slots: Slots, active: Tensor, token: Tensor, logprob: Tensor) -> None:
    """Write down what was drawn; a slot that is finished stays as it is."""
    going = slots.finished[active] == 0
    where, token, logprob = active[going], token[going].int(), logprob[going]
    place = slots.length[where].long()
    slots.tokens[where, place], slots.logprobs[where, place] = token, logprob
    slots.token[where], slots.length[where] = token, slots.length[where] + 1
    ended = torch.isin(token, slots.ends) | (slots.length[where] >= slots.limit[where])
    slots.finished[where] = ended.int()
