"""The operations of `stepping.py` in Triton: a token of a small policy of four layers is then 25 launches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from coterie.engines.torch.small import stepping
from coterie.engines.torch.small.stepping import DEAD_END, GOING, LENGTH, STOP, Drawing, Rows


@dataclass(frozen=True)
class Tile:
    """How a product is cut up."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


# Up to so many rows which tile was fastest on an H200 at width 512; None is cuBLAS's.
TILES: dict[int, Tile | None] = {
    192: Tile(16, 32, 64, 4, 4),
    384: None,
    1024: Tile(64, 32, 32, 4, 3),
    1 << 30: Tile(64, 64, 32, 4, 3),
}


@triton.jit
def project_kernel(
    x, weight, gain, out, rows, depth, columns, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A tile of x @ weight.T. Three products of TF32 parts give what float32 gives, on the tensor cores."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row_inside, column_inside = row < rows, column < columns
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    total_up = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for first in range(0, depth, DEPTH):
        k = first + tl.arange(0, DEPTH)
        inside = k < depth
        a = tl.load(x + row[:, None] * depth + k[None, :], mask=row_inside[:, None] & inside[None, :], other=0.0)
        if NORM:  # the scale of a row comes last: it is the same for all columns
            squares += tl.sum(a * a, 1)
            a = a * tl.load(gain + k, mask=inside, other=0.0)[None, :]
        from_weight = weight + column[None, :] * depth + k[:, None]
        there = column_inside[None, :] & inside[:, None]
        total = tl.dot(a, tl.load(from_weight, mask=there, other=0.0), total, input_precision="tf32x3")
        if GATED:
            up = tl.load(from_weight + columns * depth, mask=there, other=0.0)
            total_up = tl.dot(a, up, total_up, input_precision="tf32x3")
    if NORM:
        scale = tl.rsqrt(squares / depth + eps)
        total = total * scale[:, None]
        total_up = total_up * scale[:, None]
    if GATED:
        total = total / (1 + tl.exp(-total)) * total_up
    to = out + row[:, None] * columns + column[None, :]
    both = row_inside[:, None] & column_inside[None, :]
    if ADD:
        total += tl.load(to, mask=both, other=0.0)
    tl.store(to, total, mask=both)


@triton.jit
def attend_kernel(
    qkv, keys, values, out, slots, lengths, finish, cos, sin, scale, room,
    HEADS: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, TIME: tl.constexpr,
):  # fmt: skip
    """One row and head: the new key and value go to their place, and start the running softmax."""
    row, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    place = tl.load(lengths + slot)
    # Of a row that has finished nobody reads the outcome: it looks at nothing.
    seen = tl.where(tl.load(finish + slot) == 0, place, 0)
    j = tl.arange(0, HALF_BLOCK)
    inside = j < HALF
    c = tl.load(cos + place * HALF + j, mask=inside, other=0.0)
    s = tl.load(sin + place * HALF + j, mask=inside, other=0.0)
    width = HEADS * HALF * 2
    mine = qkv + row * 3 * width + head * HALF * 2 + j
    q_a, q_b = tl.load(mine, mask=inside, other=0.0), tl.load(mine + HALF, mask=inside, other=0.0)
    k_a = tl.load(mine + width, mask=inside, other=0.0)
    k_b = tl.load(mine + width + HALF, mask=inside, other=0.0)
    sum_a = tl.load(mine + 2 * width, mask=inside, other=0.0)
    sum_b = tl.load(mine + 2 * width + HALF, mask=inside, other=0.0)
    q_a, q_b = (q_a * c - q_b * s) * scale, (q_a * s + q_b * c) * scale
    k_a, k_b = k_a * c - k_b * s, k_a * s + k_b * c
    start = (slot * HEADS + head) * room * HALF * 2
    new = start + place * HALF * 2 + j
    tl.store(keys + new, k_a, mask=inside)
    tl.store(keys + new + HALF, k_b, mask=inside)
    tl.store(values + new, sum_a, mask=inside)
    tl.store(values + new + HALF, sum_b, mask=inside)
    top = tl.sum(q_a * k_a + q_b * k_b, 0)
    total = top * 0 + 1.0
    for first in range(0, seen, TIME):
        t = first + tl.arange(0, TIME)
        there = (t < seen)[:, None] & inside[None, :]
        old = start + t[:, None] * (HALF * 2) + j[None, :]
        scores = tl.sum(
            tl.load(keys + old, mask=there, other=0.0) * q_a[None, :]
            + tl.load(keys + old + HALF, mask=there, other=0.0) * q_b[None, :],
            1,
        )
        scores = tl.where(t < seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 0))
        weights = tl.exp(scores - higher)
        shrink = tl.exp(top - higher)
        sum_a = sum_a * shrink + tl.sum(weights[:, None] * tl.load(values + old, mask=there, other=0.0), 0)
        sum_b = sum_b * shrink + tl.sum(weights[:, None] * tl.load(values + old + HALF, mask=there, other=0.0), 0)
        total = total * shrink + tl.sum(weights, 0)
        top = higher
    result = out + row * width + head * HALF * 2 + j
    tl.store(result, sum_a / total, mask=inside)
    tl.store(result + HALF, sum_b / total, mask=inside)


@triton.jit
def draw_kernel(
    logits, noise, support, slots, temperature, max_tokens,
    token, length, state, count, finish, drawn, tokens, logprobs, bits,
    transitions, permitted, role, limits, counts,
    end, vocabulary, num_bytes, room, num_counts,
    MASKED: tl.constexpr, TABLES: tl.constexpr, GREEDY: tl.constexpr, WORDS: tl.constexpr,
    GOING: tl.constexpr, STOP: tl.constexpr, LENGTH: tl.constexpr, DEAD_END: tl.constexpr,
):  # fmt: skip
    """One row: what may be drawn, the race, its log-probability, the packed support, and where that leads."""
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    if tl.load(finish + slot) == GOING:
        word = tl.arange(0, WORDS)
        inside = word < vocabulary
        if TABLES:
            now, counted = tl.load(state + slot), tl.load(count + slot)
        if MASKED:
            allowed = tl.load(support + row * vocabulary + word, mask=inside, other=0) != 0
        else:
            closed_by = tl.load(role + now) * num_counts + counted
            allowed = tl.load(permitted + now * vocabulary + word, mask=inside, other=0) != 0
            allowed = allowed & (tl.load(limits + closed_by * vocabulary + word, mask=inside, other=0) != 0)
        if tl.max(allowed.to(tl.int32), 0) == 0:
            tl.store(finish + slot, DEAD_END)
        else:
            x = tl.load(logits + row * vocabulary + word, mask=inside, other=0.0) / tl.load(temperature)
            x = tl.where(allowed, x, float("-inf"))
            x = x - tl.max(x, 0)
            chances = tl.exp(x)
            if GREEDY:
                chosen = tl.argmax(x, 0)
                allowed = word == chosen
                logprob = 0.0
            else:
                wait = tl.load(noise + row * vocabulary + word, mask=inside, other=1.0)
                chosen = tl.argmax(tl.where(allowed, chances / wait, -1.0), 0)
                logprob = tl.sum(tl.where(word == chosen, x, 0.0), 0) - tl.log(tl.sum(chances, 0))
            place = tl.load(drawn + slot)
            tl.store(tokens + slot * room + place, chosen)
            tl.store(logprobs + slot * room + place, logprob)
            packed = tl.sum(tl.reshape(allowed.to(tl.int32) << (7 - word % 8), (WORDS // 8, 8)), 1)
            byte = tl.arange(0, WORDS // 8)
            at = bits + (slot * room + place) * num_bytes + byte
            tl.store(at, packed.to(tl.uint8), mask=byte < num_bytes)
            if TABLES:
                tl.store(state + slot, tl.load(transitions + now * vocabulary + chosen))
                tl.store(count + slot, counted + tl.load(counts + chosen))
            tl.store(token + slot, chosen)
            tl.store(length + slot, tl.load(length + slot) + 1)
            tl.store(drawn + slot, place + 1)
            ended = tl.where(place + 1 == tl.load(max_tokens), LENGTH, GOING)
            tl.store(finish + slot, tl.where(chosen == end, STOP, ended))


def project(
    x: Tensor, weight: Tensor, norm: nn.RMSNorm | None = None, *, gated: bool = False, add_to: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    rows, depth = x.shape
    columns = len(weight) // 2 if gated else len(weight)
    if out is None:
        out = x.new_empty(rows, columns) if add_to is None else add_to
    tile = next((tile for most, tile in TILES.items() if rows <= most), None)
    if tile is None:
        return stepping.project(x, weight, norm, gated=gated, add_to=add_to, out=out)
    # Where there is no norm something has to be passed, and is not looked at.
    gain, eps = (x, 0.0) if norm is None else (norm.weight, torch.finfo(x.dtype).eps if norm.eps is None else norm.eps)
    project_kernel[(triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns))](
        x, weight, gain, out, rows, depth, columns, eps,
        NORM=norm is not None, GATED=gated, ADD=add_to is not None,
        ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def attend(qkv: Tensor, keys: Tensor, values: Tensor, rows: Rows, slots: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    _, heads, room, width = keys.shape
    out = qkv.new_empty(len(qkv), heads * width)
    block = max(triton.next_power_of_2(width // 2), 16)
    attend_kernel[(len(qkv), heads)](
        qkv, keys, values, out, slots, rows.length, rows.finish, cos, sin, width**-0.5, room,
        HEADS=heads, HALF=width // 2, HALF_BLOCK=block, TIME=max(16, 2048 // block), num_warps=4,
    )  # fmt: skip
    return out


def draw(rows: Rows, slots: Tensor, logits: Tensor, noise: Tensor, support: Tensor | None, how: Drawing) -> None:
    tables, vocabulary = how.tables, logits.shape[1]
    # Where there are no tables something has to be passed, and is not looked at.
    nothing = rows.token
    looked_up = (
        (nothing,) * 5
        if tables is None
        else (tables.transitions, tables.permitted.view(torch.uint8), tables.role, tables.limits.view(torch.uint8),
              tables.counts)
    )  # fmt: skip
    draw_kernel[(len(slots),)](
        logits, noise, nothing if support is None else support.view(torch.uint8), slots,
        how.temperature, how.max_tokens,
        rows.token, rows.length, rows.state, rows.count, rows.finish, rows.drawn,
        rows.tokens, rows.logprobs, rows.support, *looked_up,
        how.end, vocabulary, rows.support.shape[2], rows.tokens.shape[1],
        1 if tables is None else tables.limits.shape[1],
        MASKED=support is not None, TABLES=tables is not None, GREEDY=how.greedy,
        WORDS=max(triton.next_power_of_2(vocabulary), 16), GOING=GOING, STOP=STOP, LENGTH=LENGTH, DEAD_END=DEAD_END,
    )  # fmt: skip
