"""Attention over packed rows: flash kernels where the device has them, scaled dot products by the group elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engines.torch.logprobs.packing import Packed
from coterie.engines.torch.transfer import to_device

LARGEST_SHEET = 2**24  # queries times keys
PADDING_COSTS = 1.5  # so many times as much as without it, at most: fewer sheets are worth that


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
            sheets = list(by_sheet(packed))
            self.sheets = [Sheet.of(stretches, device) for stretches in sheets]
            places = np.concatenate([np.arange(x.begin, x.begin + x.length) for sheet in sheets for x in sheet])
            self.order = None  # of the tokens, as they lie on the sheets; None: as they come
            if (np.diff(places) != 1).any():
                self.order, self.way_back = (to_device(each, device) for each in (places, np.argsort(places)))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[1, heads, T, width of a head] -> [1, T, heads, width of a head]."""
        if self.flash:
            flat = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
            mixed: Tensor = FlashAttention.apply(*flat, self, scaling)  # type: ignore[no-untyped-call]
            return mixed[None]
        return self.attend_plainly(query, key, value, scaling)

    def attend_plainly(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """The same without the kernels: stretches side by side, as many as are alike."""
        trunks = [tensor[:, :, : self.num_trunk] for tensor in (key, value)]
        laid = [query, key, value]
        if self.order is not None:
            laid = [tensor.index_select(2, self.order) for tensor in laid]
        # Split, not sliced: the gradient of a slice is as large as the whole.
        lengths = [sheet.num_tokens for sheet in self.sheets]
        pieces = zip(*(tensor.split(lengths, 2) for tensor in laid), strict=True)
        mixed = torch.cat(
            [sheet.attend(own, trunks, scaling) for sheet, own in zip(self.sheets, pieces, strict=True)], 2
        )
        return (mixed if self.order is None else mixed.index_select(2, self.way_back)).transpose(1, 2)


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
class Stretch:
    """Tokens that see themselves and, all of them, a prompt that lies among the shared ones."""

    begin: int
    length: int
    prompt: int = 0  # where it begins
    prompt_length: int = 0

    @property
    def cells(self) -> int:
        """Queries times keys."""
        return self.length * (self.prompt_length + self.length)


def by_sheet(packed: Packed) -> Iterator[list[Stretch]]:
    """Prompts, then answers to them, then rows for themselves: the longest first, and those together that are alike."""
    begins = np.cumsum(
        [0, *packed.trunks, *(n for family in packed.branches for n in family), *packed.singles]
    ).tolist()
    prompts = [Stretch(*each) for each in zip(begins, packed.trunks, strict=False)]
    of_answers = [(n, prompt) for prompt, family in zip(prompts, packed.branches, strict=True) for n in family]
    answers = [
        Stretch(begin, length, prompt.begin, prompt.length)
        for begin, (length, prompt) in zip(begins[len(prompts) :], of_answers, strict=False)
    ]
    alone = [Stretch(*each) for each in zip(begins[len(prompts) + len(answers) :], packed.singles, strict=False)]
    for kind in (prompts, answers, alone):
        sheet: list[Stretch] = []
        most = cells = 0
        for stretch in sorted(kind, key=lambda each: -each.length):
            longest = sheet[0].length if sheet else stretch.length
            most = max(most, stretch.prompt_length)
            cells += stretch.cells
            padded = (len(sheet) + 1) * longest * (most + longest)
            if sheet and (padded > PADDING_COSTS * cells or padded > LARGEST_SHEET):
                yield sheet
                sheet, most, cells = [], stretch.prompt_length, stretch.cells
            sheet.append(stretch)
        if sheet:
            yield sheet


@dataclass(frozen=True)
class Sheet:
    """Stretches side by side, padded to the longest of them: their prompts on the left, themselves on the right."""

    num_stretches: int
    num_tokens: int
    places: Tensor | None  # [stretches x longest] among their tokens, padding repeats the first; None: there is none
    cells: Tensor  # [tokens] the way back
    prompts: Tensor | None  # [stretches x tokens of the longest prompt] among those of the prompts
    seen: Tensor | None  # [tokens, keys], for each stretch if their prompts differ in length; None: what came before

    @classmethod
    def of(cls, stretches: list[Stretch], device: torch.device) -> Sheet:
        lengths = np.array([each.length for each in stretches])
        before = np.array([each.prompt_length for each in stretches])
        longest, most = int(lengths.max()), int(before.max())
        inside = np.arange(longest) < lengths[:, None]
        places = np.zeros(inside.shape, np.int64)
        places[inside] = np.arange(inside.sum())
        prompts = seen = None
        if most:
            place = np.arange(-most, 0) + before[:, None]  # negative on the left of a shorter one
            prompts = np.maximum(place, 0) + np.array([each.prompt for each in stretches])[:, None]
            seen = np.tri(longest, most + longest, most, dtype=bool)
            if (before < most).any():
                seen = seen & np.pad(place >= 0, ((0, 0), (0, longest)), constant_values=True)[:, None, None]
        return cls(
            len(inside),
            int(inside.sum()),
            None if inside.all() else to_device(places.ravel(), device),
            to_device(np.flatnonzero(inside), device),
            None if prompts is None else to_device(prompts.ravel(), device),
            None if seen is None else to_device(seen, device),
        )

    def attend(self, own: Sequence[Tensor], trunks: Sequence[Tensor], scaling: float) -> Tensor:
        """From queries, keys and values [1, heads, tokens, d] of these stretches, keys and values of all prompts."""
        query, key, value = (self._side_by_side(tensor, self.places) for tensor in own)
        if self.prompts is not None:
            before = (self._side_by_side(tensor, self.prompts) for tensor in trunks)
            key, value = (torch.cat(pair, 2) for pair in zip(before, (key, value), strict=True))
        mixed = mix(query, key, value, scaling, self.seen).transpose(0, 1).flatten(1, 2)
        return (mixed if self.places is None else mixed.index_select(1, self.cells))[None]

    def _side_by_side(self, tensor: Tensor, places: Tensor | None) -> Tensor:
        """[1, heads, tokens, d] -> [stretches, heads, longest, d]"""
        found = tensor[0] if places is None else tensor[0].index_select(1, places)
        return found.view(len(found), self.num_stretches, -1, found.shape[-1]).transpose(0, 1)


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
