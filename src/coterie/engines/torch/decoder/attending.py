"""Attention to a row's prompt and to what it has written, as Triton kernels; `twins` says what each computes."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.torch.decoder.early import PROCESSORS, ask_for, early, let_next, wait
from coterie.engines.torch.decoder.slots import Rows, Slots
from coterie.engines.torch.decoder.twins import Turning


@triton.jit
def _ready(at, d, WIDTH: tl.constexpr, cos, sin, weight, eps, ok, NORM: tl.constexpr, TURN: tl.constexpr):
    """[lines, width] from these addresses on, normalized and turned where that is wanted."""
    x = tl.load(at + d, mask=ok, other=0.0)
    if TURN:
        kind = x.dtype
        half: tl.constexpr = WIDTH // 2
        other = tl.where(d < half, d + half, d - half)
        full = x.to(tl.float32)
        y = tl.load(at + other, mask=ok, other=0.0).to(tl.float32)
        if NORM:
            scale = tl.rsqrt(tl.sum(full * full, 1) / WIDTH + eps)[:, None]
            w = tl.load(weight + d, mask=d < WIDTH, other=0.0).to(tl.float32)
            w_other = tl.load(weight + other, mask=d < WIDTH, other=0.0).to(tl.float32)
            full = ((full * scale).to(kind).to(tl.float32) * w).to(kind).to(tl.float32)
            y = ((y * scale).to(kind).to(tl.float32) * w_other).to(kind).to(tl.float32)
        x = (full * cos + tl.where(d < half, -y, y) * sin).to(kind)
    return x


@triton.jit
def _turn(
    joined, row_width, cos, sin, q_weight, k_weight, eps, length,
    HEADS: tl.constexpr, BOTH: tl.constexpr, BOTH_PAD: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    d, h = tl.arange(0, WIDTH_PAD)[None, :], tl.arange(0, BOTH_PAD)[:, None]
    ok = (h < BOTH) & (d < WIDTH)
    turn_cos = tl.load(cos + row % length * WIDTH + d, mask=d < WIDTH, other=0.0).to(tl.float32)
    turn_sin = tl.load(sin + row % length * WIDTH + d, mask=d < WIDTH, other=0.0).to(tl.float32)
    at = joined + row * row_width + h * WIDTH
    ready = _ready(at, d, WIDTH, turn_cos, turn_sin, q_weight, eps, ok, NORM, True)
    if NORM:
        keys = _ready(at, d, WIDTH, turn_cos, turn_sin, k_weight, eps, ok, NORM, True)
        ready = tl.where(h < HEADS, ready, keys)
    # All of the row was read before any of it is written.
    tl.debug_barrier()
    tl.store(at + d, ready, mask=ok)


def turn_prompts(joined: Tensor, heads: int, kv_heads: int, length: int, turning: Turning) -> None:
    width, both = turning.cos.shape[1], heads + kv_heads
    norm = turning.query_weight is not None
    _turn[(len(joined),)](
        joined, joined.stride(0), turning.cos, turning.sin,
        turning.query_weight if norm else joined, turning.key_weight if norm else joined, turning.eps, length,
        heads, both, triton.next_power_of_2(both), width, triton.next_power_of_2(width), norm, num_warps=8,
    )  # fmt: skip


@triton.jit
def _look(
    query, keys, values, place, count, looks, best, total, mixed, scaling, d,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Those who look attend to these of `count` places that lie under each other, going on from what was found."""
    ok = (place < count)[:, None] & (d < WIDTH)
    key = tl.load(keys + place[:, None] * WIDTH + d, mask=ok, other=0.0)
    value = tl.load(values + place[:, None] * WIDTH + d, mask=ok, other=0.0)
    score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scaling
    score = tl.where(looks[:, None] & (place < count)[None, :], score, -float("inf"))
    peak = tl.maximum(best, tl.max(score, 1))
    fade = tl.exp(best - peak)
    weight = tl.exp(score - peak[:, None])
    total = total * fade + tl.sum(weight, 1)
    mixed = mixed * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision=PRECISION)
    return peak, total, mixed


@triton.jit
def _either(first, one, other):
    """One stretch or the other: number of its first block, length, who looks at it, its keys, its values."""
    return (
        tl.where(first, one[0], other[0]),
        tl.where(first, one[1], other[1]),
        tl.where(first, one[2], other[2]),
        tl.where(first, one[3], other[3]),
        tl.where(first, one[4], other[4]),
    )


@triton.jit
def _stretches(row_slot, row_prompt, row_before, row_past, at, head, prompt_places, places, row_size):
    """What a row reads: its prompt, how much of it, where; how much of its own, where."""
    prompt = tl.load(row_prompt + at)
    shared = (prompt.to(tl.int64) * tl.num_programs(1) + head) * prompt_places * row_size
    own = (tl.load(row_slot + at).to(tl.int64) * tl.num_programs(1) + head) * places * row_size
    return prompt, tl.load(row_before + at), shared, tl.load(row_past + at), own


@triton.jit
def _attend(
    q, k, v, q_row, k_row, v_row, cos, sin, q_weight, k_weight, eps,
    prompt_keys, prompt_values, keys, values, row_slot, row_prompt, row_before, row_past, out, scaling,
    prompt_places, places, count,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, TOGETHER: tl.constexpr, LINES: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr,
    BLOCK: tl.constexpr, TURN: tl.constexpr, NORM: tl.constexpr, PRECISION: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """A program has one key head of one or two rows, each with GROUP lines; two siblings read their prompt once."""
    let_next()
    first, head = tl.program_id(0) * TOGETHER, tl.program_id(1)
    d, line = tl.arange(0, WIDTH_PAD)[None, :], tl.arange(0, LINES)
    # Every line holds its row's key and value; where there is one row, one line does for all.
    holder = line if TOGETHER > 1 else tl.arange(0, 1)
    row = first + holder // GROUP
    mine = (holder // GROUP < TOGETHER) & (row < count)
    row = tl.where(mine, row, first)
    held = mine[:, None] & (d < WIDTH)
    ok = held & (line < TOGETHER * GROUP)[:, None]
    slot = tl.load(row_slot + row).to(tl.int64)
    which = tl.load(row_prompt + row)
    past = tl.load(row_past + row)
    turn_cos, turn_sin = 0.0, 0.0
    if TURN:
        position = (tl.load(row_before + row) + past).to(tl.int64)[:, None]
        turn_cos = tl.load(cos + position * WIDTH + d, mask=d < WIDTH, other=0.0).to(tl.float32)
        turn_sin = tl.load(sin + position * WIDTH + d, mask=d < WIDTH, other=0.0).to(tl.float32)
    prompt, before, shared, written, own_start = _stretches(
        row_slot, row_prompt, row_before, row_past, first, head, prompt_places, places, WIDTH
    )
    if LANES > 0:
        # What was written before this token can be asked for before the kernels before this one are done.
        ask_for(prompt_keys + shared, before * WIDTH, LANES)
        ask_for(prompt_values + shared, before * WIDTH, LANES)
        ask_for(keys + own_start, written * WIDTH, LANES)
        ask_for(values + own_start, written * WIDTH, LANES)
    wait()
    query = _ready(
        q + (row * q_row + (head * GROUP + line % GROUP) * WIDTH)[:, None],
        d, WIDTH, turn_cos, turn_sin, q_weight, eps, ok, NORM, TURN,
    )  # fmt: skip
    key = _ready(
        k + (row * k_row + head * WIDTH)[:, None], d, WIDTH, turn_cos, turn_sin, k_weight, eps, held, NORM, TURN
    )
    value = tl.load(v + (row * v_row + head * WIDTH)[:, None] + d, mask=held, other=0.0)
    own = ((slot * KV_HEADS + head) * places + past)[:, None] * WIDTH + d
    leads = held & (holder % GROUP == 0)[:, None]
    tl.store(keys + own, key, mask=leads)
    tl.store(values + own, value, mask=leads)
    # The token itself comes first, from registers; then its prompt, then its answer so far.
    best = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scaling
    total = tl.full([LINES], 1.0, tl.float32)
    mixed = tl.zeros([LINES, WIDTH_PAD], tl.float32) + value.to(tl.float32)
    # All stretches in one loop, so that the first of the next is on its way while the last of one is looked at.
    owns = tl.cdiv(before, BLOCK)
    end = owns + tl.cdiv(written, BLOCK)
    if TOGETHER > 1:
        next_row = tl.minimum(first + 1, count - 1)
        next_prompt, next_before, next_shared, next_written, next_own = _stretches(
            row_slot, row_prompt, row_before, row_past, next_row, head, prompt_places, places, WIDTH
        )
        nexts = owns
        owns += tl.where(next_prompt == prompt, 0, tl.cdiv(next_before, BLOCK))
        next_owns = owns + tl.cdiv(written, BLOCK)
        end = next_owns + tl.where(next_row > first, tl.cdiv(next_written, BLOCK), 0)
    for number in range(0, end):
        is_own = number >= owns
        stretch = _either(
            is_own, (owns, written, first, keys + own_start, values + own_start),
            (0, before, prompt, prompt_keys + shared, prompt_values + shared),
        )  # fmt: skip
        if TOGETHER > 1:
            stretch = _either(
                (number >= nexts) & (number < owns),
                (nexts, next_before, next_prompt, prompt_keys + next_shared, prompt_values + next_shared), stretch,
            )  # fmt: skip
            stretch = _either(
                number >= next_owns, (next_owns, next_written, next_row, keys + next_own, values + next_own), stretch
            )
        begin, length, who, key_start, value_start = stretch
        best, total, mixed = _look(
            query, key_start, value_start, (number - begin) * BLOCK + tl.arange(0, BLOCK), length,
            tl.where(is_own, row, which) == who, best, total, mixed, scaling, d, WIDTH, PRECISION,
        )  # fmt: skip
    mixed = mixed / total[:, None]
    lines = (row * KV_HEADS + head).to(tl.int64) * GROUP + line % GROUP
    tl.store(out + lines[:, None] * WIDTH + d, mixed.to(query.dtype), mask=ok)


def attend_tuning(query: Tensor, group: int) -> dict[str, int]:
    """Measured on an H200: what a program holds keeps others from running beside it."""
    rows, heads, width = query.shape
    if query.dtype != torch.bfloat16:
        return {"TOGETHER": 1, "BLOCK": 32, "num_warps": 4, "num_stages": 1}
    programs = rows * heads // group
    if programs <= 2 * PROCESSORS:
        # Wide heads must fit where there is less shared memory, too.
        return {"TOGETHER": 1, "BLOCK": 64 if width <= 128 else 32, "num_warps": 4, "num_stages": 3}
    if programs < 1024 or group > 8:
        return {"TOGETHER": 1, "BLOCK": 32, "num_warps": 1, "num_stages": 3}
    if width > 64:
        return {"TOGETHER": 2, "BLOCK": 16, "num_warps": 1, "num_stages": 2}
    return {"TOGETHER": 2, "BLOCK": 64, "num_warps": 2, "num_stages": 3}


def attend(
    query: Tensor, key: Tensor, value: Tensor, slots: Slots, layer: int, rows: Rows, scaling: float,
    turning: Turning | None = None,
) -> Tensor:  # fmt: skip
    count, heads, width = query.shape
    kv_heads = key.shape[1]
    out = torch.empty(count, heads * width, dtype=query.dtype, device=query.device)
    nothing = query  # stands where a pointer is not read
    norm = turning is not None and turning.query_weight is not None
    tuning = attend_tuning(query, heads // kv_heads)
    together = tuning["TOGETHER"]
    # Others hide by their number that they wait; and only whole sixteens of bytes can be asked for.
    asks = count * kv_heads <= PROCESSORS and width * query.element_size() % 16 == 0
    options: dict[str, Any] = {
        "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads,
        "LINES": max(16, triton.next_power_of_2(together * heads // kv_heads)),
        "WIDTH": width,
        "WIDTH_PAD": max(16, triton.next_power_of_2(width)),
        **tuning,
        "TURN": turning is not None,
        "NORM": norm,
        "LANES": 32 * tuning["num_warps"] if asks else 0,
        "PRECISION": "tf32" if query.dtype == torch.bfloat16 else "ieee",
    }
    _attend[(triton.cdiv(count, together), kv_heads)](
        query, key, value, query.stride(0), key.stride(0), value.stride(0),
        turning.cos if turning else nothing, turning.sin if turning else nothing,
        turning.query_weight if turning and norm else nothing, turning.key_weight if turning and norm else nothing,
        turning.eps if turning else 0.0,
        slots.prompt_keys[layer], slots.prompt_values[layer], slots.keys[layer], slots.values[layer],
        rows.slot, rows.prompt, rows.before, rows.past, out, scaling,
        slots.room.prompt_places, slots.room.places + 1, count, **options, **early(count),
    )  # fmt: skip
    return out
