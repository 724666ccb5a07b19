"""One attention for every transformers model: a call says how its tokens lie, and the layers stay as they are."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "coterie"


class Layout(Protocol):
    """How the tokens of a call lie: who sees whom, and where keys and values are kept."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[rows, heads, T, width of a head] each, rotated already -> [rows, T, heads, width of a head]."""
        ...


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    layout: Layout | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """What a layer calls: the layout's attention, or without one transformers' own."""
    if layout is None:
        mixed, _ = sdpa_attention_forward(module, query, key, value, mask, **more)
        return mixed, None
    return layout.attend(module.layer_idx, query, key, value, more.get("scaling") or query.shape[-1] ** -0.5), None


def take_over(causal: Any) -> None:
    """Let a model's layers call `attend`."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    causal.set_attn_implementation(NAME)


def why_not(causal: Any) -> str:
    """Why the layers of this model cannot take a layout; empty if they can."""
    config = causal.config.get_text_config()
    if getattr(config, "attn_logit_softcapping", None):
        return "it caps its attention's scores"
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        return "some of its layers see a window only"
    if any(hasattr(module, "sinks") for module in causal.modules()):
        return "its attention has sinks"
    if not any(hasattr(module, "layer_idx") and hasattr(module, "q_proj") for module in causal.modules()):
        return "its attention is of another kind"
    return ""


def no_mask(device: torch.device) -> Tensor:
    """With a layout nobody needs a mask; one of four dimensions is handed down as it is instead of being made."""
    return torch.zeros(1, 1, 1, 1, device=device)
