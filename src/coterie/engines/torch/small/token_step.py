"""One token of many rows where every operation counts: weights laid out for it, and a cache that rows leave cheaply."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engines.torch.small.transformer import Block, Cache, Transformer


def lay_out(weight: Tensor, gain: Tensor | None = None) -> Tensor:
    """[N, K] as contiguous [K, N], which a product of few rows reads faster; a norm's gain goes into it."""
    return (weight if gain is None else weight * gain).t().contiguous()


class TokenStep:
    """A copy of the weights, and the keys and values of the prompts; only what is filled and going on is looked at."""

    def __init__(self, model: Transformer, prompts: Cache, siblings: Tensor, room: int) -> None:
        shape = model.shape
        self.heads, self.head_width = shape.heads, shape.width // shape.heads
        # Pairs that are turned together lie together, so that turning is one complex product; q times k stays the same.
        self.order = torch.arange(self.head_width, device=siblings.device).view(2, -1).t().flatten()
        self.embedding, self.frequencies = model.embedding.weight, model.frequencies
        self.floor = torch.tensor((shape.width * torch.finfo(torch.float32).eps) ** 0.5, device=siblings.device)
        root = shape.width**0.5
        self.layers = [self._lay_out(block, root) for block in model.blocks if isinstance(block, Block)]
        self.head = lay_out(model.head.weight, model.norm.weight * root)
        self.filled, self.room = prompts.filled, prompts.filled + room
        self.rows = len(siblings)
        self.keys, self.values = [], []
        for keys, values in prompts.layers:
            self.keys.append(self._grow(keys[siblings][..., self.order]))
            self.values.append(self._grow(values[siblings]))
        hidden = ~prompts.visible[siblings, 0, :, : self.filled]  # [rows, 1, T]
        self.bias = torch.where(hidden, -torch.inf, 0.0) if hidden.any() else None

    def _lay_out(self, block: Block, root: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        qkv = (block.qkv.weight * (block.attention_norm.weight * root)).view(3, self.heads, self.head_width, -1)
        q, k, v = qkv[0][:, self.order] * self.head_width**-0.5, qkv[1][:, self.order], qkv[2]
        return (
            lay_out(torch.cat([q, k, v]).flatten(0, 1)),
            lay_out(block.attention_out.weight),
            lay_out(block.gate_and_up.weight, block.mlp_norm.weight * root),
            lay_out(block.down.weight),
        )

    def _grow(self, filled: Tensor) -> Tensor:
        fresh = filled.new_empty(*filled.shape[:2], self.room, filled.shape[3])
        fresh[:, :, : self.filled] = filled[:, :, : self.filled]
        return fresh

    def logits(self, x: Tensor) -> Tensor:
        """[rows, width] of the stream to [rows, V]"""
        return self._normalized(x) @ self.head

    def _normalized(self, x: Tensor) -> Tensor:
        """RMSNorm but for the gain and the root of the width, which the weights have."""
        return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The stream [rows, width] after these tokens [rows]."""
        if self.filled == self.room:
            self.room *= 2
            self.keys, self.values = ([self._grow(x[: self.rows]) for x in xs] for xs in (self.keys, self.values))
        angles = positions[:, None] * self.frequencies
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]  # [rows, 1, half]
        x, self.filled = self.embedding[tokens], self.filled + 1
        for layer, (qkv, out, gate_and_up, down) in enumerate(self.layers):
            x.addmm_(self._attend(layer, self._normalized(x) @ qkv, turn), out)
            gate, up = (self._normalized(x) @ gate_and_up).chunk(2, dim=-1)
            x.addmm_(F.silu(gate).mul_(up), down)
        return x

    def _attend(self, layer: int, qkv: Tensor, turn: Tensor) -> Tensor:
        rows, heads, width, filled = len(qkv), self.heads, self.head_width, self.filled
        both = qkv.view(rows, 3 * heads, width // 2, 2)[:, : 2 * heads]
        q, k = torch.view_as_real(torch.view_as_complex(both) * turn).view(rows, 2, heads, width).unbind(1)
        keys, values = self.keys[layer], self.values[layer]
        keys[:rows, :, filled - 1], values[:rows, :, filled - 1] = k, qkv.view(rows, 3, heads, width)[:, 2]
        k, v = (x[:rows].flatten(0, 1)[:, :filled] for x in (keys, values))  # [rows * heads, T, width of a head]
        scores = q.reshape(rows * heads, 1, width) @ k.mT
        if self.bias is not None:
            scores.view(rows, heads, -1)[:, :, : self.bias.shape[2]] += self.bias
        return (scores.softmax(-1) @ v).view(rows, -1)

    def drop(self, going: Tensor) -> Tensor:
        """Rows that do not go on leave: the last take their places. Returns which row each one was."""
        left = int(going.sum())
        holes = (~going[:left]).nonzero()[:, 0]
        movers = going[left:].nonzero()[:, 0] + left
        for x in (*self.keys, *self.values):
            x[holes, :, : self.filled] = x[movers, :, : self.filled]
        order = torch.arange(left, device=going.device)
        order[holes] = movers
        if self.bias is not None:
            self.bias = self.bias[order]
        self.rows = left
        return order
