"""Kernels that start while the one before them ends, and meanwhile ask for memory which that one does not write."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

AVAILABLE = torch.cuda.is_available()
# Hopper and later have it.
EARLY = tl.constexpr(AVAILABLE and torch.cuda.get_device_capability() >= (9, 0))
PROCESSORS = torch.cuda.get_device_properties(0).multi_processor_count if AVAILABLE else 132
FEW_ROWS = 64  # with more, kernels are long, and waiting in their places costs more than starting late


def early(rows: int) -> dict[str, Any]:
    """How a kernel is launched."""
    return {"launch_pdl": True} if EARLY.value and rows <= FEW_ROWS else {}


@triton.jit
def let_next():
    """The next kernel may start."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait():
    """From here on all that the kernels before have written is there."""
    if EARLY:
        gdc_wait()


@triton.jit
def ask(pointers, num_bytes):
    """Bring so many bytes, in multiples of 16, from each of these places nearer; nobody waits for them."""
    if EARLY:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.gt.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }",
            "=r,l,r",
            [pointers.to(tl.int64), num_bytes],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def ask_for(start, size, LANES: tl.constexpr):
    """Bring so many numbers from this place on nearer; each lane asks for some."""
    if EARLY:
        width: tl.constexpr = start.dtype.element_ty.primitive_bitwidth // 8
        lane = tl.arange(0, LANES)
        each = (size * width + 128 * LANES - 1) // (128 * LANES) * 128
        ask(start + lane * (each // width), tl.minimum(each, size * width - lane * each))
