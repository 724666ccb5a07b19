"""How a model's own layers read prompts and single tokens when their keys and values lie in slots."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch.nn.functional as F
from torch import Tensor

from coterie.engines.torch.decoder.slots import Rows, Slots


@dataclass(frozen=True)
class PromptLayout:
    """A row is a prompt; its keys and values are kept for all of its siblings."""

    slots: Slots
    which: Tensor  # [rows] where each prompt is kept

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        length = key.shape[2]
        self.slots.prompt_keys[layer][self.which, :, :length] = key
        self.slots.prompt_values[layer][self.which, :, :length] = value
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return mixed.transpose(1, 2)


@dataclass(frozen=True)
class DecodeLayout:
    """A row is the newest token of the answer in its slot."""

    slots: Slots
    rows: Rows
    operations: ModuleType

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        q, k, v = (x.flatten(1, 2) if x.shape[2] == 1 else x for x in (query, key, value))
        mixed: Tensor = self.operations.attend(q, k, v, self.slots, layer, self.rows, scaling)
        return mixed.view(len(q), 1, q.shape[1], q.shape[2])
