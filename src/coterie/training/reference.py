"""When the reference follows the policy: never, a little every step, or all at once now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.engines.base import Engine

ReferenceMode = Literal["static", "ema", "periodic"]


@dataclass(frozen=True)
class ReferenceRule:
    """Which reference the KL is measured against.

    `old_share` is the weight of the OLD reference in ema: 1 keeps it as it is. (TRL's
    ref_model_mixup_alpha is the weight of the new policy, 1 - old_share.)
    """

    mode: ReferenceMode = "static"
    old_share: float = 0.99
    every: int = 100

    def follow(self, engine: Engine, steps_done: int) -> None:
        """Called after each step; the engine makes the reference when it is first asked of it."""
        if self.mode == "ema" and self.old_share < 1:
            engine.blend_reference(self.old_share)
        elif self.mode == "periodic" and steps_done % self.every == 0:
            engine.blend_reference(0.0)
