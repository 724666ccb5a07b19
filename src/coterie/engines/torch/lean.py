"""A model as sampling on a CPU wants it, for the duration of a call: the same function with less to do a token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.engines.torch.pretrained import LanguageModel

# Copying the weights costs about what so many tokens do.
WORTH_IT = 1_024


def plain_norm(module: Any) -> Any:
    """The same norm in one operation; None if this module is none, or another one."""
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if eps is None or weight is None or weight.dtype != torch.float32:
        return None
    given = torch.linspace(-1, 2, 3 * len(weight)).view(3, -1)
    quick = partial(F.rms_norm, normalized_shape=weight.shape, weight=weight, eps=eps)
    return quick if torch.allclose(module(given), quick(given), rtol=1e-6, atol=1e-7) else None


@contextmanager
def lean(model: LanguageModel, num_tokens: int) -> Iterator[None]:
    """Adapters merged into copies of their weights, matrices stored as their products read them, norms in one piece.

    The copies live as long as the call, so they cannot be stale; what learns is never written to. Where there are few
    tokens to draw, or the device is no CPU, the model stays as it is.
    """
    if model.device.type != "cpu" or model.autocast is not None or num_tokens < WORTH_IT:
        yield
        return
    tied = model.causal.get_input_embeddings().weight
    originals: dict[Any, Tensor] = {}
    merged: list[Any] = []
    norms: list[Any] = []
    try:
        with torch.no_grad():
            for module in model.causal.modules():
                if isinstance(module, nn.Linear) and module.weight.dtype == torch.float32 and module.weight is not tied:
                    originals[module] = module.weight.data
                    # [N, K] as before, but each input's weights side by side.
                    module.weight.data = module.weight.data.t().contiguous().t()
            for module in model.causal.modules():
                if hasattr(module, "merged_adapters") and module.base_layer in originals:
                    module.merge()
                    merged.append(module)
                elif (quick := plain_norm(module)) is not None:
                    module.forward = quick
                    norms.append(module)
        yield
    finally:
        for module in merged:
            module.merged_adapters.clear()
        for module, weight in originals.items():
            module.weight.data = weight
        for module in norms:
            del module.forward
