"""Which tasks come next: phases that open as the policy succeeds, and tasks by how hard they are now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.rollouts import Task

TaskOrder = Literal["shuffled", "difficulty"]
# A task that is never or always solved is drawn this much as often as one solved half the time.
LEAST_CHANCE = 0.1
MEMORY = 0.7  # of a task's, and of the phase's, success rate


@dataclass(frozen=True)
class Phase:
    """A stretch of training: which tasks it asks and what it rewards.

    `only` holds tags a task must have: a number's range as [low, high], or a list of words.
    `weights` are weights for parts of the score; none means the world's own total.
    """

    name: str
    open_at: float = 0.0  # success rate in the phase before at which this one opens
    only: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    def admits(self, task: Task) -> bool:
        return all(_has(task.tags.get(name), wanted) for name, wanted in self.only.items())


def read_phases(tables: Sequence[Mapping[str, Any]]) -> list[Phase]:
    """Phases as they stand in a configuration."""
    names = tuple(f.name for f in fields(Phase))
    for number, table in enumerate(tables, 1):
        for name in table:
            if name not in names:
                raise ValueError(f"phase {number} of the curriculum has {name!r}; write {', '.join(names)}")
        if "name" not in table:
            raise ValueError(f"phase {number} of the curriculum needs a name")
        for tag, wanted in table.get("only", {}).items():
            words = isinstance(wanted, list) and all(isinstance(w, str) for w in wanted)
            span = isinstance(wanted, list) and len(wanted) == 2 and all(isinstance(w, int | float) for w in wanted)
            if not (words or span):
                raise ValueError(f"only.{tag} of phase {number} is {wanted!r}; write [low, high] or a list of words")
    return [Phase(**table) for table in tables]


def _has(tag: float | str | None, wanted: Sequence[Any]) -> bool:
    if isinstance(tag, str) or tag is None:
        return tag in wanted
    low, high = wanted
    return bool(low <= tag <= high)


@dataclass
class Standing:
    """All that a curriculum remembers."""

    drawn: int = 0  # tasks of this phase so far
    phase: int = 0
    success: float = 0.0  # recent, in this phase
    observed: int = 0  # steps in this phase
    rates: dict[str, float] = field(default_factory=dict)  # recent success by task


class Curriculum:
    """Hands out tasks and watches how they go."""

    def __init__(
        self, tasks: Sequence[Task], seed: int, phases: Sequence[Phase] = (), order: TaskOrder = "shuffled"
    ) -> None:
        self.phases = list(phases) or [Phase("all")]
        self.seed, self.order = seed, order
        self.standing = Standing()
        self.tasks_of = [[task for task in tasks if phase.admits(task)] for phase in self.phases]
        for phase, admitted in zip(self.phases, self.tasks_of, strict=True):
            if not admitted:
                raise ValueError(f"phase {phase.name!r} of the curriculum admits no task: {dict(phase.only)}")

    @property
    def phase(self) -> Phase:
        return self.phases[self.standing.phase]

    def metrics(self) -> dict[str, float]:
        """Which phase it is, counted from 1; nothing where there is only one."""
        return {"phase": self.standing.phase + 1.0} if len(self.phases) > 1 else {}

    def draw(self, count: int) -> list[Task]:
        """The next tasks; all come from the seed and the standing, so a resumed run draws the same."""
        tasks, standing = self.tasks_of[self.standing.phase], self.standing
        if self.order == "difficulty":
            rng = np.random.default_rng([self.seed, standing.phase, standing.drawn])
            chosen = rng.choice(len(tasks), count, replace=count > len(tasks), p=self._chances(tasks))
        else:
            chosen = np.array([self._shuffled(len(tasks), standing.drawn + i) for i in range(count)])
        standing.drawn += count
        return [tasks[int(i)] for i in chosen]

    def observe(self, tasks: Sequence[Task], success: Sequence[float]) -> None:
        """What share of each task's answers were right; opens the next phase when that is earned."""
        s = self.standing
        for task, rate in zip(tasks, success, strict=True):
            s.rates[task.id] = MEMORY * s.rates.get(task.id, rate) + (1 - MEMORY) * rate
        now = float(np.mean(success))
        s.success = now if s.observed == 0 else MEMORY * s.success + (1 - MEMORY) * now
        s.observed += 1
        following = s.phase + 1
        if following < len(self.phases) and s.success >= self.phases[following].open_at:
            s.phase, s.drawn, s.observed, s.success = following, 0, 0, 0.0

    def _shuffled(self, size: int, place: int) -> int:
        """Every task once an epoch, in a new order each time."""
        epoch, within = divmod(place, size)
        key = (self.standing.phase, epoch)
        if getattr(self, "_key", None) != key:
            self._key = key
            self._order = np.random.default_rng([self.seed, *key]).permutation(size)
        return int(self._order[within])

    def _chances(self, tasks: Sequence[Task]) -> NDArray[np.float64]:
        rates = np.array([self.standing.rates.get(task.id, 0.5) for task in tasks])
        chance = LEAST_CHANCE + (1 - LEAST_CHANCE) * 4 * rates * (1 - rates)
        return np.asarray(chance / chance.sum())
