"""One token a row through a model built like Llama, on a CPU: fewer and larger products than its modules make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.linalg import vector_norm

from coterie.engines.torch.attention import Layout
from coterie.engines.torch.decoder.layers import STEADY_TURNS
from coterie.engines.torch.pretrained import LanguageModel

# Copying the weights costs about what so many tokens do.
WORTH_IT = 1_024
NORMS = ("input_layernorm", "post_attention_layernorm")
PARTS = {
    "": {"self_attn", "mlp", *NORMS},
    "self_attn": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "mlp": {"gate_proj", "up_proj", "down_proj", "act_fn"},
}


def dense(layers: Sequence[Any], scale: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Linear layers side by side: [K, N], as products read it fastest, and [N]; their adapters are merged in.

    With a scale [K] they take what is still to be multiplied by it.
    """
    weights, biases = [], []
    for layer in layers:
        base = getattr(layer, "base_layer", layer)
        weight = base.weight
        if base is not layer and not layer.disable_adapters:
            weight = weight + sum(layer.get_delta_weight(name) for name in layer.active_adapters)
        weights.append(weight)
        biases.append(base.bias if base.bias is not None else weight.new_zeros(len(weight)))
    has_bias = any(getattr(layer, "base_layer", layer).bias is not None for layer in layers)
    whole = torch.cat(weights) if scale is None else torch.cat(weights) * scale
    return whole.t().contiguous(), torch.cat(biases) if has_bias else None


def through(states: Tensor, layer: tuple[Tensor, Tensor | None]) -> Tensor:
    weight, bias = layer
    return torch.mm(states, weight) if bias is None else torch.addmm(bias, states, weight)


def add_through(stream: Tensor, states: Tensor, layer: tuple[Tensor, Tensor | None]) -> None:
    """Add to the stream, where it lies."""
    weight, bias = layer
    stream.addmm_(states, weight)
    if bias is not None:
        stream.add_(bias)


@dataclass(frozen=True)
class Block:
    """A layer's weights, as this step uses them."""

    attention_in: tuple[Tensor, Tensor | None]
    attention_out: tuple[Tensor, Tensor | None]
    inner_in: tuple[Tensor, Tensor | None]
    inner_out: tuple[Tensor, Tensor | None]
    activation: Callable[[Tensor], Tensor]


class LlamaStep:
    """A copy of the weights for the duration of a call, so that it cannot be stale."""

    def __init__(self, model: LanguageModel, num_positions: int) -> None:
        base = model.causal.base_model
        self.base, first = base, base.layers[0].self_attn
        self.width, self.scaling = first.head_dim, first.scaling
        self.query_heads = first.q_proj.out_features // self.width
        self.key_heads = first.k_proj.out_features // self.width
        self.wide = len(base.norm.weight) ** 0.5
        self.last: Tensor = base.norm.weight * self.wide
        self.turns: list[Tensor] = []  # [positions, width] each, where they do not depend on the length
        if getattr(base.rotary_emb, "rope_type", "default") in STEADY_TURNS:
            self.turns = [each[0] for each in self._turns(torch.arange(num_positions)[None])]
        self.blocks = [
            Block(
                attention_in=dense(
                    [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj],
                    layer.input_layernorm.weight * self.wide,
                ),
                attention_out=dense([layer.self_attn.o_proj]),
                inner_in=dense(
                    [layer.mlp.gate_proj, layer.mlp.up_proj], layer.post_attention_layernorm.weight * self.wide
                ),
                inner_out=dense([layer.mlp.down_proj]),
                activation=layer.mlp.act_fn,
            )
            for layer in base.layers
        ]

    def __call__(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """[rows], [rows, 1] -> [rows, width]"""
        embedded = self.base.embed_tokens(tokens)
        rows = tokens.shape[0]
        # A root-mean-square norm divides by the length of the states and of one more number, which stands for its eps;
        # what is multiplied after that is in the weights already.
        longer = F.pad(embedded, (0, 1), value=self.wide * self.base.norm.variance_epsilon**0.5)
        states = longer[:, :-1]
        if self.turns:
            cos, sin = (each.index_select(0, positions[:, 0])[:, None] for each in self.turns)
        else:
            cos, sin = self._turns(positions)
        half = self.width // 2
        turning = self.query_heads + self.key_heads
        for place, block in enumerate(self.blocks):
            heads = through(states / vector_norm(longer, dim=-1, keepdim=True), block.attention_in)
            heads = heads.view(rows, -1, self.width)
            turned = torch.addcmul(heads[:, :turning] * cos, heads[:, :turning].roll(half, -1), sin)
            query, key = turned[:, : self.query_heads, None], turned[:, self.query_heads :, None]
            mixed = layout.attend(place, query, key, heads[:, turning:, None], self.scaling)
            add_through(states, mixed.reshape(rows, -1), block.attention_out)
            inner = through(states / vector_norm(longer, dim=-1, keepdim=True), block.inner_in)
            gate, up = inner.chunk(2, -1)
            add_through(states, block.activation(gate) * up, block.inner_out)
        normed: Tensor = states / vector_norm(longer, dim=-1, keepdim=True)
        return normed * self.last

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """How positions [rows, T] turn: [rows, T, width] each."""
        cos, sin = self.base.rotary_emb(self.base.embed_tokens.weight[:1], positions)
        half = self.width // 2
        # Half of the rotation is the other half's, negated.
        return cos, torch.cat([-sin[..., :half], sin[..., half:]], -1)


class Alone:
    """A layout in which a token sees itself only."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2)


def is_like_llama(causal: Any) -> bool:
    """Whether the layers have Llama's parts and no others."""
    base = causal.base_model
    if not all(hasattr(base, name) for name in ("embed_tokens", "layers", "norm", "rotary_emb")):
        return False
    for layer in base.layers:
        for name, wanted in PARTS.items():
            part = layer.get_submodule(name) if name in ("", *dict(layer.named_children())) else nn.Identity()
            if {child for child, _ in part.named_children()} != wanted:
                return False
    norms = [base.norm, *(layer.get_submodule(name) for layer in base.layers for name in NORMS)]
    return all(getattr(norm, "variance_epsilon", 0) == getattr(base.norm, "variance_epsilon", 1) for norm in norms)


def find_step(model: LanguageModel, num_tokens: int, num_positions: int) -> LlamaStep | None:
    """The step for this model, if it pays for so many tokens and if it computes what the model does."""
    weights = model.causal.get_input_embeddings().weight
    if model.device.type != "cpu" or weights.dtype != torch.float32:
        return None
    if num_tokens < WORTH_IT or model.why_plain or not is_like_llama(model.causal):
        return None
    step = LlamaStep(model, num_positions)
    tokens = torch.arange(1, 5) % model.vocabulary
    positions = 7 * torch.arange(4)[:, None] % num_positions
    wanted = model(tokens[:, None], positions=positions, layout=Alone())[:, 0]
    # Others have the same parts and multiply or rotate otherwise.
    return step if torch.allclose(step(tokens, positions, Alone()), wanted, rtol=1e-3, atol=1e-4) else None
