"""Every kernel of the decoder against its twin: on a GPU, or by Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from coterie.engines.torch.decoder import twins
from coterie.engines.torch.decoder.slots import Room, Slots
from coterie.engines.torch.transfer import pack

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and no TRITON_INTERPRET=1", allow_module_level=True)

from coterie.engines.torch.decoder import attending, kernels, narrow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter multiplies no bfloat16.
DTYPES = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]


def random(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, device=DEVICE).to(dtype)


def same(mine: torch.Tensor, twin: torch.Tensor) -> None:
    tolerance = 1e-5 if mine.dtype == torch.float32 else 1e-2
    assert float((mine.float() - twin.float()).norm() / twin.float().norm()) < tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 100, 3584])
def test_add_norm(dtype: torch.dtype, width: int) -> None:
    stream, more, weight = random(5, width, dtype=dtype), random(5, width, dtype=dtype), random(width, dtype=dtype)
    mine, twin = stream.clone(), stream.clone()
    same(kernels.add_norm(mine, more, weight, 1e-6), twins.add_norm(twin, more, weight, 1e-6))
    same(mine, twin)
    same(kernels.add_norm(mine, None, weight, 1e-6), twins.add_norm(twin, None, weight, 1e-6))
    parts = random(3, 5, width)
    whole = parts.sum(0).to(dtype)
    same(kernels.add_norm(mine, parts, weight, 1e-6), twins.add_norm(twin, whole, weight, 1e-6))
    same(mine, twin)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 900])
def test_begin(dtype: torch.dtype, width: int) -> None:
    slots = Slots(Room(3, 150, 6, 140), 1, 1, 16, dtype, DEVICE)
    slots.prompt_length.copy_(torch.tensor([9, 149, 65, 0]))
    slots.prompt.copy_(torch.tensor([0, 1, 2, 1, 0, 2, 3]))
    slots.length.copy_(torch.tensor([0, 3, 139, 64, 65, 1, 0]))
    slots.token.copy_(torch.tensor([5, 0, 99, 7, 8, 6, 1]))
    table = random(100, width, dtype=dtype)
    active = torch.tensor([4, 0, 2, 3, 6], dtype=torch.int32, device=DEVICE)
    (rows, states), (twin, wanted) = (do.begin(slots, active, table) for do in (kernels, twins))
    assert torch.equal(states, wanted)
    for name in ("slot", "prompt", "before", "past"):
        assert torch.equal(getattr(rows, name), getattr(twin, name)), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate(dtype: torch.dtype) -> None:
    both = random(3, 3000, dtype=dtype)
    same(kernels.gate(both), twins.gate(both))


@pytest.mark.parametrize("rows", [1, 8, 24, 64])
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("extra", [0, 16])
def test_narrow_products(rows: int, parts: int, extra: int) -> None:
    dtype = DTYPES[-1]
    x, weight, bias = random(rows, 256, dtype=dtype), random(200, 256, dtype=dtype), random(200, dtype=dtype)
    poisoned = torch.full((parts, rows, 200), torch.nan, device=DEVICE, dtype=dtype if parts == 1 else torch.float32)
    narrow.product(x, weight, bias, narrow.Cut(32, 64, 3, parts, extra), out=poisoned)
    same(poisoned.sum(0).to(dtype), twins.linear(x, weight, bias))


@pytest.mark.parametrize("rows", [3, 64])
@pytest.mark.parametrize("extra", [0, 4, 16])
def test_narrow_products_that_gate(rows: int, extra: int) -> None:
    dtype = DTYPES[-1]
    x, weight = random(rows, 256, dtype=dtype), random(2 * 100, 256, dtype=dtype) / 16
    poisoned = torch.full((rows, 100), torch.nan, device=DEVICE, dtype=dtype)
    narrow.product(x, weight, None, narrow.Cut(32, 64, 3, extra=extra), gated=True, out=poisoned)
    same(poisoned, twins.gated(x, weight))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="the library multiplies what is no bfloat16")
@pytest.mark.parametrize("outputs", [896, 3584, 70_000])
@pytest.mark.parametrize("rows", [2, 64, 65])
def test_products_are_cut_where_they_are_narrow(outputs: int, rows: int) -> None:
    x, weight = random(rows, 1024, dtype=torch.bfloat16), random(outputs, 1024, dtype=torch.bfloat16) / 32
    wanted = twins.linear(x, weight)
    same(kernels.linear(x, weight), wanted)
    parts = kernels.linear(x, weight, in_parts=True)
    same(parts if parts.dim() == 2 else parts.sum(0).bfloat16(), wanted)
    same(kernels.linear(x, weight, out=torch.full_like(wanted, torch.nan)), wanted)
    same(kernels.gated(x, weight), twins.gated(x, weight))


SHAPES = [
    (4, 2, 64, True, False),
    (14, 2, 64, True, True),
    (6, 6, 96, True, False),
    (2, 1, 256, True, False),
    (8, 1, 32, False, False),
    (4, 2, 8, True, False),
    (3, 1, 20, True, False),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "width", "turns", "norms"), SHAPES)
@pytest.mark.parametrize("together", [1, 2])
def test_attend(
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    width: int,
    turns: bool,
    norms: bool,
    together: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = attending.attend_tuning
    monkeypatch.setattr(attending, "attend_tuning", lambda query, group: {**chosen(query, group), "TOGETHER": together})

    def make() -> Slots:
        torch.manual_seed(1)
        slots = Slots(Room(3, 150, 6, 140), 2, kv_heads, width, dtype, DEVICE)
        for cache in (slots.prompt_keys, slots.prompt_values, slots.keys, slots.values):
            cache[1].normal_()
        slots.prompt_length.copy_(torch.tensor([0, 149, 65, 0]))
        slots.prompt.copy_(torch.tensor([0, 1, 2, 1, 0, 2, 0]))
        slots.length.copy_(torch.tensor([0, 3, 139, 64, 65, 1, 0]))
        return slots

    mine, twin = make(), make()
    joined = random(5, (heads + 2 * kv_heads) * width, dtype=dtype)
    query, key, value = (
        part.unflatten(-1, (-1, width))
        for part in joined.split([heads * width, kv_heads * width, kv_heads * width], -1)
    )
    turning = None
    if turns:
        angles = torch.arange(400)[:, None] * 10_000.0 ** (-torch.arange(width // 2) / (width // 2))
        angles = torch.cat([angles, angles], -1).to(DEVICE)
        weights = [random(width, dtype=dtype) for _ in range(2)] if norms else [None, None]
        turning = twins.Turning(angles.cos().to(dtype), angles.sin().to(dtype), *weights)
    # Siblings beside each other, strangers beside each other, and one alone.
    active = torch.tensor([4, 0, 2, 3, 6], dtype=torch.int32, device=DEVICE)
    found = kernels.attend(query, key, value, mine, 1, mine.rows(active), width**-0.5, turning)
    wanted = twins.attend(query, key, value, twin, 1, twin.rows(active), width**-0.5, turning)
    same(found, wanted)
    same(mine.keys[1], twin.keys[1])
    same(mine.values[1], twin.values[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norms", [True, False])
def test_turn_prompts(dtype: torch.dtype, norms: bool) -> None:
    angles = torch.rand(9, 64, device=DEVICE)
    weights = [random(64, dtype=dtype) for _ in range(2)] if norms else [None, None]
    turning = twins.Turning(angles.cos().to(dtype), angles.sin().to(dtype), *weights)
    mine = random(2 * 7, (6 + 2 * 3) * 64, dtype=dtype)
    twin = mine.clone()
    kernels.turn_prompts(mine, 6, 3, 7, turning)
    twins.turn_prompts(twin, 6, 3, 7, turning)
    same(mine, twin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_draw(dtype: torch.dtype, greedy: bool, masked: bool) -> None:
    torch.manual_seed(2)
    logits = 3 * random(4, 9001, dtype=dtype)
    legal = torch.rand(4, 9001, device=DEVICE) < 0.3
    support: Any = pack(legal) if masked else None
    slots = Slots(Room(3, 150, 6, 140), 1, 1, 16, dtype, DEVICE)
    for buffer, filled in ((slots.finished, 0), (slots.limit, 9), (slots.temperature, 0.7), (slots.tokens, -7)):
        buffer.fill_(filled)
    slots.logprobs.fill_(torch.nan)
    active = torch.tensor([0, 3, 2, 5], dtype=torch.int32, device=DEVICE)
    kernels.draw(logits, slots, active, greedy, support)
    table = logits.float() / (1 if greedy else 0.7)
    table = (table.masked_fill(~legal, -torch.inf) if masked else table).log_softmax(-1)
    for row, slot in enumerate(active.tolist()):
        token = int(slots.tokens[slot, 0])
        assert float(slots.logprobs[slot, 0]) == pytest.approx(float(table[row, token]), abs=1e-4)
        assert not masked or legal[row, token]
        assert not greedy or token == int(table[row].argmax())
        assert (int(slots.length[slot]), int(slots.token[slot]), int(slots.finished[slot])) == (1, token, 0)
    assert int(slots.length[1]) == 0
