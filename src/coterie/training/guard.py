"""Notices when a policy pleases its judge at the cost of what the judge stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Guard:
    """Compares means over `window` steps of the reward and of an independent measure.

    They have parted when the measure lies `tolerance` below its best mean so far although the reward is no lower
    than it was then: what was gained since was not the thing itself.
    """

    window: int
    tolerance: float
    recent: list[list[float]] = field(default_factory=list)  # [reward, measure] of the last steps
    best: list[float] = field(default_factory=list)  # [reward, measure], means, where the measure was best
    parted: str = ""

    def observe(self, reward: float, measure: float) -> None:
        """One step's means."""
        self.recent = [*self.recent, [reward, measure]][-self.window :]
        if self.window == 0 or len(self.recent) < self.window or self.parted:
            return
        reward_now, measure_now = (float(x) for x in np.mean(self.recent, axis=0))
        if not self.best or measure_now >= self.best[1]:
            self.best = [reward_now, measure_now]
        elif measure_now < self.best[1] - self.tolerance and reward_now >= self.best[0]:
            self.parted = (
                f"the reward rose from {self.best[0]:.3f} to {reward_now:.3f} while the independent measure fell from "
                f"{self.best[1]:.3f} to {measure_now:.3f}"
            )

    def state(self) -> dict[str, object]:
        return {"recent": self.recent, "best": self.best, "parted": self.parted}

    def restore(self, recent: Sequence[Sequence[float]], best: Sequence[float], parted: str) -> None:
        """The inverse of `state`; one that is switched off forgets that they parted."""
        self.recent, self.best = [list(pair) for pair in recent], list(best)
        self.parted = parted if self.window else ""
