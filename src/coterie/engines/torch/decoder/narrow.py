"""Products of few rows with large matrices: what they cost is reading the matrix, so that is what they are made for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.torch.decoder.early import FEW_ROWS, PROCESSORS, ask, early, let_next, wait

AHEAD = tl.constexpr(512)  # bytes of every output's weights that are asked for early
AT_ONCE = tl.constexpr(PROCESSORS)  # programs that start together
SHARED_BYTES = 200_000  # that a program may take
MOST_PARTS, MOST_STAGES = 4, 8


@triton.jit
def _lines(weight, first, size, depth, COUNT: tl.constexpr, GATED: tl.constexpr):
    """Where the weights of so many outputs lie, and whether they are there: each gate's before its up's."""
    line = tl.arange(0, COUNT)
    output = first + line
    place = output
    if GATED:
        output = first + line // 2
        place = output + line % 2 * size
    return weight + place.to(tl.int64) * depth, output < size


@triton.jit
def _keep(total, bias, out, first, rows, size, is_first, kind: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr):
    """Write the outputs from this one on."""
    if GATED:
        ROWS: tl.constexpr = total.shape[0]
        gates, ups = tl.split(tl.reshape(total, [ROWS, total.shape[1] // 2, 2]))
        # Rounded where two kernels would round.
        gates = gates.to(kind).to(tl.float32)
        total = (gates / (1.0 + tl.exp(-gates))).to(kind).to(tl.float32) * ups.to(kind).to(tl.float32)
    row = tl.arange(0, total.shape[0])
    output = first + tl.arange(0, total.shape[1])
    inside = output < size
    if BIAS:
        total += tl.load(bias + output, mask=inside & is_first, other=0.0).to(tl.float32)[None, :]
    place = out + row[:, None] * size + output[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=(row < rows)[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["steps"])
def _narrow(
    x, weight, bias, out, rows, size, depth, x_row, steps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, EXTRA: tl.constexpr, DEPTH: tl.constexpr, GATED: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    let_next()
    each: tl.constexpr = 2 if GATED else 1
    part = tl.program_id(1)
    first = tl.program_id(0) * (BLOCK + EXTRA)
    begin = part * steps * DEPTH
    end = tl.minimum(begin + steps * DEPTH, depth)
    matrix, inside = _lines(weight, first, size, depth, BLOCK * each, GATED)
    total = tl.zeros([ROWS, BLOCK * each], tl.float32)
    if EXTRA:
        rest, rest_inside = _lines(weight, first + BLOCK, size, depth, EXTRA * each, GATED)
        more = tl.zeros([ROWS, EXTRA * each], tl.float32)
    if tl.program_id(0) + part * tl.num_programs(0) < AT_ONCE:
        num_bytes = tl.minimum(AHEAD, (end - begin) * 2)
        ask(matrix + begin, tl.where(inside, num_bytes, 0))
        if EXTRA:
            ask(rest + begin, tl.where(rest_inside, num_bytes, 0))
    wait()
    row, d = tl.arange(0, ROWS), tl.arange(0, DEPTH)
    states = x + row[:, None] * x_row + d[None, :]
    for at in range(begin, end, DEPTH):
        given = tl.load(states + at, mask=(row < rows)[:, None], other=0.0)
        w = tl.load(matrix[:, None] + at + d[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(given, tl.trans(w), total)
        if EXTRA:
            w = tl.load(rest[:, None] + at + d[None, :], mask=rest_inside[:, None], other=0.0)
            more = tl.dot(given, tl.trans(w), more)
    out += part * rows * size
    _keep(total, bias, out, first, rows, size, part == 0, x.dtype.element_ty, GATED, BIAS)
    if EXTRA:
        _keep(more, bias, out, first + BLOCK, rows, size, part == 0, x.dtype.element_ty, GATED, BIAS)


@dataclass(frozen=True)
class Cut:
    """How a product is cut: each program makes `block + extra` outputs of every row from its part of the depth."""

    block: int
    depth: int  # read at once
    stages: int = 3
    parts: int = 1
    extra: int = 0  # outputs that make programs as many as processors


def cut_for(outputs: int, depth: int, gated: bool = False, in_parts: bool = False) -> Cut:
    """As many programs as processors, or somewhat fewer, each with much under way: measured on an H200 with 64 rows."""
    if gated:
        share = triton.cdiv(outputs // 2, PROCESSORS)
        block = 128 if share > 128 else 64
        extra = triton.next_power_of_2(max(4, share - block)) if share > block else 0
        return staged(Cut(block, 64, extra=extra) if extra <= 16 else Cut(64, 64), lines=2)
    if outputs > 65_536:
        return Cut(64, 64, 4)
    # What comes after a small product begins beside it.
    room = SHARED_BYTES if outputs >= 1536 else SHARED_BYTES * 2 // 3
    if not in_parts:
        return staged(Cut(64, 128), room)
    cuts = [Cut(b, 128 if b <= 64 else 64, parts=n) for b in (64, 32, 128) for n in range(1, MOST_PARTS + 1)]
    programs = {cut: triton.cdiv(outputs, cut.block) * cut.parts for cut in cuts}
    return staged(max(cuts, key=lambda cut: programs[cut] if programs[cut] <= PROCESSORS else -programs[cut]), room)


def staged(cut: Cut, room: int = SHARED_BYTES, lines: int = 1) -> Cut:
    """With as much under way as there is room for."""
    each = 2 * cut.depth * (FEW_ROWS + lines * (cut.block + cut.extra))
    return replace(cut, stages=min(MOST_STAGES, room // each))


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether a product is narrow and of a kind that these kernels know."""
    return len(x) <= FEW_ROWS and x.shape[1] % 128 == 0 and weight.is_contiguous() and have_room(x.device, x.dtype)


@cache
def have_room(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether these kernels run there, in this precision."""
    if dtype != torch.bfloat16 or device.type != "cuda":
        return False
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0) >= SHARED_BYTES


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, cut: Cut, gated: bool = False, out: Tensor | None = None
) -> Tensor:
    """[rows, depth] x [outputs, depth]^T; in float32 and by parts [parts, rows, outputs] where there are some."""
    rows, depth = x.shape
    size = len(weight) // (2 if gated else 1)
    if out is None:
        out = x.new_empty(rows, size) if cut.parts == 1 else x.new_empty(cut.parts, rows, size, dtype=torch.float32)
    steps = triton.cdiv(depth // cut.depth, cut.parts)
    _narrow[(triton.cdiv(size, cut.block + cut.extra), cut.parts)](
        x, weight, weight if bias is None else bias, out, rows, size, depth, x.stride(0), steps,
        FEW_ROWS, cut.block, cut.extra, cut.depth, gated, bias is not None,
        num_warps=4, num_stages=cut.stages, **early(rows),
    )  # fmt: skip
    return out
