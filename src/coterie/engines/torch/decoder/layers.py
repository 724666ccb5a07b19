"""LLaMA-shaped models, layer by layer with fewer and larger operations; every other model runs its own layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engines.torch.decoder.reading import PromptLayout
from coterie.engines.torch.decoder.slots import Slots
from coterie.engines.torch.decoder.twins import Turning

KNOWN = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
STEADY_TURNS = ("default", "linear", "llama3", "yarn")  # rotary positions that do not depend on the length


def lay_together(weights: Sequence[Tensor]) -> Tensor:
    """One tensor of weights under each other; each remains a parameter of its layer and is a view of it."""
    if len(weights) == 1:
        return weights[0].data
    first = weights[0].data
    ends = [weight.data_ptr() + weight.nbytes for weight in weights]
    one_storage = len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    if one_storage and all(weight.data_ptr() == end for weight, end in zip(weights[1:], ends, strict=False)):
        rows = sum(len(weight) for weight in weights)
        return first.as_strided((rows, *first.shape[1:]), first.stride())  # they lie together already
    whole = torch.cat([weight.data for weight in weights])
    for weight, part in zip(weights, whole.split([len(weight) for weight in weights]), strict=True):
        weight.data = part
    return whole


@dataclass(frozen=True)
class Lora:
    """What an adapter adds to one of the joined layers."""

    up: Tensor  # [outputs, rank]
    scaling: float


class Joined:
    """Linear layers that read the same input, as one product."""

    def __init__(self, parts: Sequence[Any]) -> None:
        bases = [getattr(part, "base_layer", part) for part in parts]
        self.weight = lay_together([base.weight for base in bases])
        self.sizes = [len(base.weight) for base in bases]
        biases = [base.bias for base in bases if base.bias is not None]
        assert len(biases) in (0, len(bases)), "either all joined layers have a bias or none"
        self.bias = lay_together(biases) if biases else None
        self.adapters: list[Lora | None] = [self._adapter(part) for part in parts]
        downs = [part.lora_A[part.active_adapters[0]].weight for part in parts if hasattr(part, "lora_A")]
        self.down = lay_together(downs) if downs else None

    @staticmethod
    def _adapter(part: Any) -> Lora | None:
        if not hasattr(part, "lora_A"):
            return None
        name = part.active_adapters[0]
        return Lora(part.lora_B[name].weight.data, part.scaling[name])

    def __call__(self, x: Tensor, do: ModuleType, in_parts: bool = False) -> Tensor:
        y: Tensor = do.linear(x, self.weight, self.bias, in_parts and self.down is None)
        if self.down is None:
            return y
        low = F.linear(x, self.down)
        column = place = 0
        for size, adapter in zip(self.sizes, self.adapters, strict=True):
            if adapter is not None:
                rank = adapter.up.shape[1]
                part = y[:, column : column + size]
                part.addmm_(low[:, place : place + rank], adapter.up.T, alpha=adapter.scaling)
                place += rank
            column += size
        return y

    def gated(self, x: Tensor, do: ModuleType) -> Tensor:
        """The product's first half gates the second."""
        if self.down is None and self.bias is None:
            return cast(Tensor, do.gated(x, self.weight))
        return cast(Tensor, do.gate(self(x, do)))


@dataclass(frozen=True)
class Layer:
    """One layer's operations."""

    first_norm: Tensor
    qkv: Joined
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Joined
    second_norm: Tensor
    gate_up: Joined
    down: Joined


class FusedLayers:
    """The same function as the model's own layers, one token a row."""

    def __init__(self, causal: Any, positions: int, operations: ModuleType) -> None:
        base = causal.base_model
        self.operations, self.embedding = operations, base.embed_tokens
        attention = base.layers[0].self_attn
        self.width, self.scaling = attention.head_dim, attention.scaling
        self.eps, self.last_norm = base.norm.variance_epsilon, base.norm.weight.data
        self.layers = [self._layer(layer) for layer in base.layers]
        every = torch.arange(positions, device=causal.device)[None]
        cos, sin = base.rotary_emb(self.embedding.weight[:1], every)
        self.cos, self.sin = cos[0].contiguous(), sin[0].contiguous()

    @staticmethod
    def _layer(layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        query_norm, key_norm = (None if norm is None else norm.weight.data for norm in norms)
        return Layer(
            layer.input_layernorm.weight.data,
            Joined([attention.q_proj, attention.k_proj, attention.v_proj]),
            query_norm,
            key_norm,
            Joined([attention.o_proj]),
            layer.post_attention_layernorm.weight.data,
            Joined([mlp.gate_proj, mlp.up_proj]),
            Joined([mlp.down_proj]),
        )

    def __call__(self, slots: Slots, active: Tensor) -> Tensor:
        """[rows] -> [rows, width]: hidden states after each row's newest token."""
        rows, stream = self.operations.begin(slots, active, self.embedding.weight.data)

        def attend(number: int, qkv: Tensor) -> Tensor:
            q, k, v = (x.unflatten(-1, (-1, self.width)) for x in qkv.split(self.layers[number].qkv.sizes, -1))
            found = self.operations.attend(q, k, v, slots, number, rows, self.scaling, self._turning(number))
            return cast(Tensor, found)

        more = self._through(stream, attend)
        return cast(Tensor, self.operations.add_norm(stream, more, self.last_norm, self.eps))

    def read(self, tokens: Tensor, layout: PromptLayout) -> None:
        """[prompts, length]: keep the keys and values of whole prompts."""
        count, length = tokens.shape

        def attend(number: int, qkv: Tensor) -> Tensor:
            sizes = self.layers[number].qkv.sizes
            heads, kv_heads = sizes[0] // self.width, sizes[1] // self.width
            self.operations.turn_prompts(qkv, heads, kv_heads, length, self._turning(number))
            q, k, v = (x.view(count, length, -1, self.width).transpose(1, 2) for x in qkv.split(sizes, -1))
            return layout.attend(number, q, k, v, self.scaling).reshape(count * length, -1)

        self._through(self.embedding(tokens.flatten()), attend, to_last_keys=True)

    def _turning(self, number: int) -> Turning:
        layer = self.layers[number]
        return Turning(self.cos, self.sin, layer.query_norm, layer.key_norm, self.eps)

    def _through(
        self, stream: Tensor, attend: Callable[[int, Tensor], Tensor], to_last_keys: bool = False
    ) -> Tensor | None:
        """[tokens, width] with this attention over [tokens, queries, keys and values]; what is still to be added."""
        do, more = self.operations, None
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(do.add_norm(stream, more, layer.first_norm, self.eps), do)
            mixed = attend(number, qkv)
            if to_last_keys and layer is self.layers[-1]:
                return None
            mixed = layer.out(mixed, do, in_parts=True)
            inner = layer.gate_up.gated(do.add_norm(stream, mixed, layer.second_norm, self.eps), do)
            more = layer.down(inner, do, in_parts=True)
        return more


def why_not_fused(causal: Any) -> str:
    """Why a model's layers cannot be fused; empty if they can."""
    base = causal.base_model
    if type(base).__name__ not in KNOWN:
        return f"{type(base).__name__} is not one of {', '.join(KNOWN)}"
    if causal.config.hidden_act not in ("silu", "swish"):
        return f"it gates by {causal.config.hidden_act}"
    if getattr(base.rotary_emb, "rope_type", "default") not in STEADY_TURNS:
        return f"its positions turn by {base.rotary_emb.rope_type}"
    if type(base.embed_tokens) is not torch.nn.Embedding:
        return "its embedding is more than a table"
    adapted = {weight.dtype for name, weight in causal.named_parameters() if "lora_" in name}
    if adapted - {causal.dtype}:
        return "its adapter has another precision"
    return ""
