"""The decoder's operations as Triton kernels; `twins` says in plain PyTorch what each computes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.torch.decoder.attending import attend, turn_prompts
from coterie.engines.torch.decoder.early import early, let_next, wait
from coterie.engines.torch.decoder.narrow import cut_for, fits, product
from coterie.engines.torch.decoder.slots import ENDS, Rows, Slots

__all__ = ["add_norm", "attend", "begin", "draw", "gate", "gated", "linear", "turn_prompts"]
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
