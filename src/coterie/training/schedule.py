"""The learning rate as a function of the step, so that a resumed run needs no state for it."""

from __future__ import annotations

import math


def learning_rate(step: int, steps: int, peak: float, warmup: int, shape: str, final: float) -> float:
    """A linear rise over `warmup` steps, then 'constant', or 'cosine' down to final * peak."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if shape == "constant":
        return peak
    done = (step - warmup) / max(1, steps - warmup)
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))
