"""Which tasks come next: every task once an epoch, in a fresh order each time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.rollouts import Task


class TaskCursor:
    """A place in an endless shuffled stream of tasks; the place is all its state."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        assert tasks, "a world has at least one training task"
        self.tasks, self.seed = tasks, seed
        self.drawn = 0

    def draw(self, count: int) -> list[Task]:
        """The next tasks; an epoch that ends within them goes over into the next."""
        chosen = []
        for _ in range(count):
            epoch, place = divmod(self.drawn, len(self.tasks))
            chosen.append(self.tasks[self._order(epoch)[place]])
            self.drawn += 1
        return chosen

    def _order(self, epoch: int) -> Sequence[int]:
        if getattr(self, "_known", None) != epoch:
            self._known = epoch
            self._permutation = np.random.default_rng([self.seed, epoch]).permutation(len(self.tasks))
        order: Sequence[int] = self._permutation.tolist()
        return order
