"""The sizes of language models, from their configuration alone: weights, adapters, memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLOAT = 4  # bytes
LOGIT_COPIES = 6  # logits, log-probabilities and the entropy's terms, with their gradients


@dataclass(frozen=True)
class ModelShape:
    """Of a decoder as nearly all of them are: attention with grouped keys, a gated MLP."""

    width: int
    depth: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool  # whether the head is the embedding
    head_width: int = 0  # 0: width / heads

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Of a layer: how many go in and come out."""
        each = self.head_width or self.width // self.heads
        queries, keys = self.heads * each, self.kv_heads * each
        return {
            "q_proj": (self.width, queries),
            "k_proj": (self.width, keys),
            "v_proj": (self.width, keys),
            "o_proj": (queries, self.width),
            "gate_proj": (self.width, self.inner),
            "up_proj": (self.width, self.inner),
            "down_proj": (self.inner, self.width),
        }

    @property
    def parameters(self) -> int:
        layer = sum(a * b for a, b in self.matrices.values()) + 2 * self.width
        return self.vocabulary * self.width * (1 if self.tied else 2) + self.depth * layer + self.width

    def adapter(self, rank: int, targets: str) -> int:
        """Parameters of LoRA on these layers."""
        named = {name.strip() for name in targets.split(",")}
        met = [m for name, m in self.matrices.items() if named == {"all-linear"} or name in named]
        return self.depth * sum(rank * (a + b) for a, b in met)

    @property
    def cached(self) -> int:
        """Numbers that a token's keys and values are."""
        return 2 * self.depth * self.matrices["k_proj"][1]

    def kept(self, checkpointing: bool) -> int:
        """Numbers that a token leaves behind for the gradient, as the engine estimates it too."""
        layer = 14 * self.width + 4 * self.inner
        return self.depth * self.width + layer if checkpointing else self.depth * layer


# Those that one may want to plan for before they are on the disk.
KNOWN = {
    "smollm2": ModelShape(576, 30, 1536, 9, 3, 49_152, tied=True),
    "Qwen/Qwen2.5-0.5B-Instruct": ModelShape(896, 24, 4_864, 14, 2, 151_936, tied=True),
    "Qwen/Qwen2.5-1.5B-Instruct": ModelShape(1_536, 28, 8_960, 12, 2, 151_936, tied=True),
    "Qwen/Qwen2.5-7B-Instruct": ModelShape(3_584, 28, 18_944, 28, 4, 152_064, tied=False),
    "Qwen/Qwen2.5-14B-Instruct": ModelShape(5_120, 48, 13_824, 40, 8, 152_064, tied=False),
}


def find_shape(model: str) -> ModelShape | None:
    """From a folder's config.json, or known by name; None where neither says."""
    if model in KNOWN:
        return KNOWN[model]
    try:
        told: dict[str, Any] = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    told = told.get("text_config") or told
    try:
        width, heads = told["hidden_size"], told["num_attention_heads"]
        return ModelShape(
            width,
            told["num_hidden_layers"],
            told.get("intermediate_size") or 4 * width,
            heads,
            told.get("num_key_value_heads") or heads,
            told["vocab_size"],
            bool(told.get("tie_word_embeddings", False)),
            told.get("head_dim") or 0,
        )
    except KeyError:
        return None
