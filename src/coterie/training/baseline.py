"""A running mean of each task's reward, for groups too small to be their own measure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.rollouts import Task


class RunningBaseline:
    """Remembers what each task usually earns; a task never seen is measured by the mean of all."""

    def __init__(self, memory: float) -> None:
        self.memory = memory
        self.means: dict[str, float] = {}

    def of(self, tasks: Sequence[Task], rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """[P]: the baseline of each task before these rewards [P, G]; then they are remembered."""
        usual = float(np.mean(list(self.means.values()))) if self.means else float(rewards.mean())
        baseline = np.array([self.means.get(task.id, usual) for task in tasks])
        for task, row in zip(tasks, rewards, strict=True):
            old = self.means.get(task.id, float(row.mean()))
            self.means[task.id] = self.memory * old + (1 - self.memory) * float(row.mean())
        return baseline
