"""Attention over packed rows: flash kernels where the device has them, scaled dot products by the group elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engines.torch.logprobs.packing import Packed
from coterie.engines.torch.transfer import to_device


def flash_runs(device: torch.device, dtype: torch.dtype, head_width: int) -> bool:
    """Whether PyTorch's flash kernels take such queries."""
    halves = dtype in (torch.bfloat16, torch.float16)
    return device.type == "cuda" and halves and head_width % 8 == 0 and head_width <= 256


class PackedLayout:
    """How the tokens of a packed row see each other; made once a pass, used by every layer."""

    def __init__(self, packed: Packed, device: torch.device, dtype: torch.dtype, head_width: int) -> None:
        self.packed = packed
        self.num_trunk = sum(packed.trunks)
        self.num_branch = sum(map(sum, packed.branches))
        self.flash = flash_runs(device, dtype, head_width)
        if self.flash:
            branches = [length for family in packed.branches for length in family]
            self.each = Spans.of([*packed.trunks, *branches, *packed.singles], device)
            self.prompts = Spans.of(packed.trunks, device)
            self.families = Spans.of([sum(family) for family in packed.branches], device)
        else:
            self.sheets = [Sheet.of(family, device) for family in packed.branches]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[1, heads, T, width of a head] -> [1, T, heads, width of a head]."""
        if self.flash:
            flat = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
            mixed: Tensor = FlashAttention.apply(*flat, self, scaling)  # type: ignore[no-untyped-call]
            return mixed[None]
        return self.attend_plainly(query, key, value, scaling)

    def attend_plainly(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """The same without the kernels; no mask is wider than a prompt and an answer."""
        packed = self.packed
        lengths = [*packed.trunks, *map(sum, packed.branches), *packed.singles]
        # Split, not sliced: the gradient of a slice is as large as the whole.
        pieces = list(zip(*(tensor.split(lengths, 2) for tensor in (query, key, value)), strict=True))
        count = len(packed.trunks)
        mixed = [mix(query, key, value, scaling) for query, key, value in pieces[:count]]
        for sheet, prompt, own in zip(self.sheets, pieces[:count], pieces[count : 2 * count], strict=True):
            mixed.append(sheet.attend(own, prompt, scaling))
        mixed += [mix(query, key, value, scaling) for query, key, value in pieces[2 * count :]]
        return torch.cat(mixed, 2).transpose(1, 2)


def mix(query: Tensor, key: Tensor, value: Tensor, scaling: float, seen: Tensor | None = None) -> Tensor:
    """Attention to what is seen; by default to oneself and what came before."""
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, is_causal=seen is None, scale=scaling, enable_gqa=True
    )


@dataclass(frozen=True)
class Spans:
    """Stretches of tokens that lie end to end."""

    ends: Tensor  # [stretches + 1] int32, from 0
    longest: int

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> Spans:
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return cls(to_device(ends, device), max(lengths, default=0))


@dataclass(frozen=True)
class Sheet:
    """The answers to one prompt side by side, padded to the longest of them."""

    places: Tensor  # [answers, longest] among the family's tokens; padding repeats the first
    cells: Tensor  # [tokens of the family] the way back
    num_tokens: int

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> Sheet:
        inside = np.arange(max(lengths))[None] < np.array(lengths)[:, None]
        places = np.zeros(inside.shape, np.int64)
        places[inside] = np.arange(inside.sum())
        return cls(to_device(places, device), to_device(np.flatnonzero(inside), device), int(inside.sum()))

    def attend(self, own: tuple[Tensor, ...], prompt: tuple[Tensor, ...], scaling: float) -> Tensor:
        """From queries, keys and values [1, heads, tokens, d] of the answers and of their prompt."""
        answers, longest = self.places.shape

        def spread(tensor: Tensor) -> Tensor:  # [1, heads, tokens, d] -> [answers, heads, longest, d]
            found = tensor[0].index_select(1, self.places.flatten())
            return found.view(len(found), answers, longest, -1).transpose(0, 1)

        query, *sides = map(spread, own)
        key, value = (
            torch.cat([before.expand(answers, -1, -1, -1), side], 2)
            for before, side in zip(prompt[1:], sides, strict=True)
        )
        # An answer sees all of its prompt, and itself up to where it is.
        seen = torch.ones(longest, key.shape[2], dtype=torch.bool, device=key.device).tril(key.shape[2] - longest)
        mixed = mix(query, key, value, scaling, seen).transpose(0, 1).flatten(1, 2)
        return mixed.index_select(1, self.cells)[None]


class FlashAttention(torch.autograd.Function):
    """Everybody sees itself, causally; then answers see their prompts, and the two are joined by their sums.

    Siblings lie end to end, so to their prompt they are one long stretch of queries without any mask.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, scaling: float) -> Tensor:
        """[T, heads, d] each."""
        mixed, sums = flash(query, key, value, layout.each, layout.each, True, scaling)
        if layout.num_trunk:
            trunk, branch = parts_of(layout)
            more, more_sums = flash(
                query[branch], key[trunk], value[trunk], layout.families, layout.prompts, False, scaling
            )
            both = torch.logaddexp(sums[:, branch], more_sums)
            own_share, share = ((part - both).exp().T[..., None] for part in (sums[:, branch], more_sums))
            mixed[branch] = (own_share * mixed[branch] + share * more).to(mixed.dtype)
            sums[:, branch] = both
        ctx.save_for_backward(query, key, value, mixed, sums)
        ctx.layout, ctx.scaling = layout, scaling
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With the joined result and sums, each part's kernel finds its own share of the gradient."""
        query, key, value, mixed, sums = ctx.saved_tensors
        layout: PackedLayout = ctx.layout
        grad = grad.contiguous()
        found = flash_backward(grad, query, key, value, mixed, sums, layout.each, layout.each, True, ctx.scaling)
        if layout.num_trunk:
            trunk, branch = parts_of(layout)
            more = flash_backward(
                grad[branch],
                query[branch],
                key[trunk],
                value[trunk],
                mixed[branch],
                sums[:, branch].contiguous(),
                layout.families,
                layout.prompts,
                False,
                ctx.scaling,
            )
            for whole, part, places in zip(found, more, (branch, trunk, trunk), strict=True):
                whole[places] += part
        return (*found, None, None)


def parts_of(layout: PackedLayout) -> tuple[slice, slice]:
    """Where shared prompts lie, and where the answers to them."""
    return slice(0, layout.num_trunk), slice(layout.num_trunk, layout.num_trunk + layout.num_branch)


def flash(
    query: Tensor, key: Tensor, value: Tensor, queries: Spans, keys: Spans, causal: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """[T, heads, d], and the logarithms of the sums [heads, T]."""
    mixed, sums, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, queries.ends, keys.ends, queries.longest, keys.longest, 0.0, causal, False, scale=scaling
    )
    return mixed, sums


def flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mixed: Tensor,
    sums: Tensor,
    queries: Spans,
    keys: Spans,
    causal: bool,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value."""
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=grad.device)
    spans = (queries.ends, keys.ends, queries.longest, keys.longest)
    found = torch.ops.aten._flash_attention_backward(
        grad, query, key, value, mixed, sums, *spans, 0.0, causal, no_dropout, no_dropout, scale=scaling
    )
    to_query, to_key, to_value = found
    return to_query, to_key, to_value
