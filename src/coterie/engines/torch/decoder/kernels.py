"""The decoder's operations as Triton kernels; `twins` says in plain PyTorch what each computes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.torch.decoder.early import PROCESSORS, ask_for, early, let_next, wait
from coterie.engines.torch.decoder.narrow import cut_for, fits, product
from coterie.engines.torch.decoder.slots import ENDS, Rows, Slots
from coterie.engines.torch.decoder.twins import Turning

CHUNK = 4096  # logits a program of `_weigh` reads


@triton.jit
def _begin(
    active, token, prompt, length, prompt_length, embedding, row_prompt, row_before, row_past, stream, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    let_next()
    wait()
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    slot = tl.load(active + row)
    mine = tl.load(prompt + slot)
    tl.store(row_prompt + row, mine)
    tl.store(row_before + row, tl.load(prompt_length + mine))
    tl.store(row_past + row, tl.load(length + slot))
    states = tl.load(embedding + tl.load(token + slot).to(tl.int64) * width + at, mask=at < width)
    tl.store(stream + row * width + at, states, mask=at < width)


def begin(slots: Slots, active: Tensor, embedding: Tensor) -> tuple[Rows, Tensor]:
    count, width = len(active), embedding.shape[1]
    prompt, before, past = (torch.empty_like(active) for _ in range(3))
    stream = embedding.new_empty(count, width)
    _begin[(count,)](
        active, slots.token, slots.prompt, slots.length, slots.prompt_length, embedding, prompt, before, past, stream,
        width, triton.next_power_of_2(width), num_warps=4, **early(count),
    )  # fmt: skip
    return Rows(active, prompt, before, past), stream


@triton.jit
def _add_norm(stream, more, weight, out, width, part, eps, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    let_next()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    w = tl.load(weight + at, mask=inside, other=0.0)
    wait()
    x = tl.load(stream + row * width + at, mask=inside, other=0.0)
    if PARTS > 0:
        y = tl.load(more + row * width + at, mask=inside, other=0.0).to(tl.float32)
        for number in tl.static_range(1, PARTS):
            y += tl.load(more + number * part + row * width + at, mask=inside, other=0.0)
        # What a product in parts would have been in one is rounded like that.
        x = (x.to(tl.float32) + y.to(x.dtype).to(tl.float32)).to(x.dtype)
        tl.store(stream + row * width + at, x, mask=inside)
    full = x.to(tl.float32)
    full = full * tl.rsqrt(tl.sum(full * full) / width + eps)
    tl.store(out + row * width + at, (full.to(x.dtype).to(tl.float32) * w.to(tl.float32)).to(x.dtype), mask=inside)


def add_norm(stream: Tensor, more: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    rows, width = stream.shape
    out = torch.empty_like(stream)
    block = triton.next_power_of_2(width)
    parts = 0 if more is None else more.shape[0] if more.dim() == 3 else 1
    # The first of a token is not early: attention reads what `begin` wrote without waiting for it.
    launch = early(rows) if parts else {}
    _add_norm[(rows,)](
        stream, stream if more is None else more, weight, out, width, stream.numel(), eps, parts, block,
        num_warps=4 if block <= 2048 else 8, **launch,
    )  # fmt: skip
    return out


@triton.jit
def _gate(gate_up, out, inner, BLOCK: tl.constexpr):
    let_next()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < inner
    wait()
    g = tl.load(gate_up + row * 2 * inner + at, mask=inside, other=0.0)
    u = tl.load(gate_up + row * 2 * inner + inner + at, mask=inside, other=0.0)
    full = g.to(tl.float32)
    gated = (full / (1.0 + tl.exp(-full))).to(g.dtype)
    tl.store(out + row * inner + at, (gated.to(tl.float32) * u.to(tl.float32)).to(g.dtype), mask=inside)


def gate(gate_up: Tensor) -> Tensor:
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, inner)
    _gate[(rows, triton.cdiv(inner, 1024))](gate_up, out, inner, 1024, num_warps=4, **early(rows))
    return out


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, in_parts: bool = False, out: Tensor | None = None
) -> Tensor:
    if fits(x, weight):
        return product(x, weight, bias, cut_for(len(weight), x.shape[1], in_parts=in_parts), out=out)
    return F.linear(x, weight, bias) if out is None else torch.mm(x, weight.T, out=out)


def gated(x: Tensor, weight: Tensor) -> Tensor:
    if fits(x, weight):
        return product(x, weight, None, cut_for(len(weight), x.shape[1], gated=True), gated=True)
    return gate(F.linear(x, weight))


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
        begin = tl.where(is_own, owns, 0)
        length, who = tl.where(is_own, written, before), tl.where(is_own, first, prompt)
        key_start = tl.where(is_own, keys + own_start, prompt_keys + shared)
        value_start = tl.where(is_own, values + own_start, prompt_values + shared)
        if TOGETHER > 1:
            is_next = (number >= nexts) & (number < owns)
            begin, length = tl.where(is_next, nexts, begin), tl.where(is_next, next_before, length)
            who = tl.where(is_next, next_prompt, who)
            key_start = tl.where(is_next, prompt_keys + next_shared, key_start)
            value_start = tl.where(is_next, prompt_values + next_shared, value_start)
            is_next = number >= next_owns
            begin, length = tl.where(is_next, next_owns, begin), tl.where(is_next, next_written, length)
            who = tl.where(is_next, next_row, who)
            key_start = tl.where(is_next, keys + next_own, key_start)
            value_start = tl.where(is_next, values + next_own, value_start)
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
        return {"TOGETHER": 1, "BLOCK": 64, "num_warps": 4, "num_stages": 3}
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


@triton.jit
def _scaled(logits, support, row, at, vocabulary, num_bytes, temperature, MASKED: tl.constexpr):
    """Logits at these places over the temperature; what cannot be drawn is minus infinity."""
    inside = at < vocabulary
    x = tl.load(logits + row * vocabulary + at, mask=inside, other=-float("inf")).to(tl.float32) / temperature
    if MASKED:
        bits = tl.load(support + row * num_bytes + at // 8, mask=inside, other=0).to(tl.int32)
        x = tl.where((bits >> (7 - at % 8)) & 1 == 1, x, -float("inf"))
    return x


@triton.jit
def _weigh(
    logits, support, temperatures, peaks, sums, bests, vocabulary, num_bytes,
    GREEDY: tl.constexpr, MASKED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Of every chunk of a row's logits: its peak, the sum of its weights, where its peak is."""
    let_next()
    wait()
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = 1.0
    if not GREEDY:
        temperature = tl.load(temperatures)
    x = _scaled(logits, support, row, chunk * CHUNK + tl.arange(0, CHUNK), vocabulary, num_bytes, temperature, MASKED)
    peak = tl.max(x, 0)
    safe = tl.where(peak == -float("inf"), 0.0, peak)
    place = row * tl.num_programs(1) + chunk
    tl.store(peaks + place, peak)
    tl.store(sums + place, tl.sum(tl.exp(x - safe), 0))
    tl.store(bests + place, chunk * CHUNK + tl.argmax(x, 0))


@triton.jit
def _draw(
    logits, support, temperatures, peaks, sums, bests, vocabulary, num_bytes, num_chunks,
    active, seed, answer, length, limit, finished, token, tokens, logprobs, ends, places,
    GREEDY: tl.constexpr, MASKED: tl.constexpr, CHUNK: tl.constexpr, CHUNKS_PAD: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Choose a chunk, then a token in it; note both the token and what it means for its slot."""
    let_next()
    wait()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(active + row).to(tl.int64)
    place = tl.load(length + slot)
    c = tl.arange(0, CHUNKS_PAD)
    peak = tl.load(peaks + row * num_chunks + c, mask=c < num_chunks, other=-float("inf"))
    part = tl.load(sums + row * num_chunks + c, mask=c < num_chunks, other=0.0)
    top = tl.max(peak, 0)
    weight = tl.where(part > 0, part * tl.exp(peak - top), 0.0)
    total = tl.sum(weight, 0)
    temperature = 1.0
    if GREEDY:
        chosen = tl.load(bests + row * num_chunks + tl.argmax(peak, 0))
        value = top
    else:
        temperature = tl.load(temperatures)
        stream = tl.load(seed)
        offset = tl.load(answer + slot) * places + place
        chunk_goal, goal, _, _ = tl.rand4x(stream, offset)
        chunk = tl.sum((tl.cumsum(weight, 0) <= chunk_goal * total).to(tl.int32), 0)
        # Rounding may leave a goal beyond the last that can be drawn.
        chunk = tl.minimum(chunk, tl.max(tl.where(weight > 0, c, 0), 0))
        at = tl.arange(0, CHUNK)
        x = _scaled(logits, support, row, chunk * CHUNK + at, vocabulary, num_bytes, temperature, MASKED)
        here = tl.exp(x - top)
        cumulated = tl.cumsum(here, 0)
        found = tl.sum((cumulated <= goal * tl.max(cumulated, 0)).to(tl.int32), 0)
        found = tl.minimum(found, tl.max(tl.where(here > 0, at, 0), 0))
        value = tl.max(tl.where(at == found, x, -float("inf")), 0)
        chosen = chunk * CHUNK + found
    if tl.load(finished + slot) == 0:
        tl.store(tokens + slot * places + place, chosen)
        tl.store(logprobs + slot * places + place, value - top - tl.log(total))
        tl.store(token + slot, chosen)
        tl.store(length + slot, place + 1)
        e = tl.load(ends + tl.arange(0, ENDS))
        ended = tl.max((e == chosen).to(tl.int32), 0) | (place + 1 >= tl.load(limit + slot)).to(tl.int32)
        tl.store(finished + slot, ended)


def draw(logits: Tensor, slots: Slots, active: Tensor, greedy: bool, support: Tensor | None = None) -> None:
    rows, vocabulary = logits.shape
    chunks = triton.cdiv(vocabulary, CHUNK)
    peaks = torch.empty(rows, chunks, device=logits.device)
    sums, bests = torch.empty_like(peaks), torch.empty(rows, chunks, dtype=torch.int32, device=logits.device)
    masks = logits if support is None else support
    num_bytes = 0 if support is None else support.shape[1]
    masked = support is not None
    _weigh[(rows, chunks)](
        logits, masks, slots.temperature, peaks, sums, bests, vocabulary, num_bytes, greedy, masked, CHUNK, num_warps=4,
        **early(rows),
    )  # fmt: skip
    _draw[(rows,)](
        logits, masks, slots.temperature, peaks, sums, bests, vocabulary, num_bytes, chunks,
        active, slots.seed, slots.answer, slots.length, slots.limit, slots.finished, slots.token, slots.tokens,
        slots.logprobs, slots.ends, slots.room.places,
        greedy, masked, CHUNK, triton.next_power_of_2(chunks), ENDS, num_warps=4, **early(rows),
    )  # fmt: skip
