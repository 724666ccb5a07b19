"""What the answers being written have on the device: their tokens, where they are, their keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ENDS = 16  # tokens that may end an answer, at most


@dataclass(frozen=True)
class Room:
    """How much fits. One more prompt and one more slot are nobody's: they take the rows that pad a batch."""

    prompts: int
    prompt_places: int
    slots: int
    places: int  # tokens an answer may have

    def holds(self, other: Room) -> bool:
        return all(getattr(self, name) >= getattr(other, name) for name in self.__dataclass_fields__)


@dataclass(frozen=True)
class Rows:
    """[rows] each: what a token's work needs to know of every row, looked up once for all layers."""

    slot: Tensor
    prompt: Tensor
    before: Tensor  # tokens of the prompt, but for its last
    past: Tensor  # tokens after those

    @property
    def position(self) -> Tensor:
        return self.before + self.past


class Slots:
    """One slot an answer. Entry 0 of its keys is the last token of the prompt, entry n + 1 its own token n."""

    def __init__(self, room: Room, layers: int, kv_heads: int, width: int, dtype: torch.dtype, device: torch.device):
        self.room = room

        def cache(owners: int, places: int) -> list[Tensor]:
            size = (owners, kv_heads, places, width)
            return [torch.zeros(size, dtype=dtype, device=device) for _ in range(layers)]

        self.prompt_keys, self.prompt_values = (cache(room.prompts + 1, room.prompt_places) for _ in range(2))
        self.keys, self.values = (cache(room.slots + 1, room.places + 1) for _ in range(2))

        def numbers(*size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.prompt_length = numbers(room.prompts + 1)  # without the prompt's last token
        slots = room.slots + 1
        self.prompt, self.token, self.length, self.limit = (numbers(slots) for _ in range(4))
        self.answer = numbers(slots)  # which answer is written here
        self.finished = torch.ones(slots, dtype=torch.int32, device=device)
        self.tokens = numbers(slots, room.places)
        self.logprobs = numbers(slots, room.places, dtype=torch.float32)
        self.support: Tensor | None = None  # [slots, places + 1, bytes] where something narrows what can be drawn
        self.ends = torch.full((ENDS,), -1, dtype=torch.int32, device=device)
        self.seed = numbers(1, dtype=torch.int64)
        self.temperature = torch.ones(1, device=device)

    @property
    def num_bytes(self) -> int:
        """Of keys, values and, where it is kept, support: the rest is little."""
        caches = (self.prompt_keys, self.prompt_values, self.keys, self.values)
        kept = [tensor for cache in caches for tensor in cache] + ([] if self.support is None else [self.support])
        return sum(tensor.nbytes for tensor in kept)

    def rows(self, active: Tensor) -> Rows:
        """Where the rows of a batch stand: one row a slot."""
        prompt = self.prompt.index_select(0, active)
        return Rows(active, prompt, self.prompt_length.index_select(0, prompt), self.length.index_select(0, active))

    def keep_support(self, num_bytes: int) -> Tensor:
        """Where the support of every token is kept, made when first wanted."""
        if self.support is None:
            size = (self.room.slots + 1, self.room.places + 1, num_bytes)
            self.support = torch.zeros(size, dtype=torch.uint8, device=self.token.device)
        return self.support


def bytes_a_place(layers: int, kv_heads: int, width: int, dtype: torch.dtype) -> int:
    """Of keys and values, for one token."""
    return 2 * layers * kv_heads * width * dtype.itemsize
