"""What machines are asked to do: five kinds of goals, each in variations, some of them held out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coterie.rollouts import Task
from coterie.worlds.machines.blocks import CAR_LEVEL, CATAPULT_LEVEL
from coterie.worlds.machines.terrain import Scene

# What each kind may be built from on its first level.
LEVELS = {
    "car": CAR_LEVEL,
    "catapult": CATAPULT_LEVEL,
    "climb": CAR_LEVEL,
    "carry": CAR_LEVEL | {"30"},
    "cross": CAR_LEVEL,
}
KINDS = tuple(LEVELS)
HELD_OUT_EVERY = 4  # of a kind's variations


@dataclass(frozen=True)
class Goal:
    """One variation of one kind. `target` is how many meters make a success."""

    kind: str
    words: str
    scene: Scene
    target: float
    hard: float  # 0 to 1 within its kind, for a curriculum

    @property
    def name(self) -> str:
        return self.words.replace(" ", "-")


def goals_of(kind: str) -> list[Goal]:
    """The variations of a kind; the first is the plain one, which bears the kind's own name."""
    return list(
        {"car": _cars, "catapult": _catapults, "climb": _climbs, "carry": _carries, "cross": _crossings}[kind]()
    )


def _cars() -> Iterator[Goal]:
    for extra in (0, 1, 2, 3, 4, 6, 8):
        yield Goal("car", f"a car on flat ground with {extra} kg", Scene(extra_mass=extra), 10.0, extra / 16)
    for slope in (2, 4, 6, 8, 10, 12):
        for extra in (0, 2, 4):
            words = f"a car up a slope of {slope} degrees with {extra} kg"
            yield Goal("car", words, Scene(slope=slope, extra_mass=extra), 10.0, slope / 16 + extra / 16)
    for height in (5, 10, 15, 20, 25):
        for extra in (0, 2, 4):
            words = f"a car over ridges of {height} cm with {extra} kg"
            yield Goal("car", words, Scene("ridges", height / 100, extra_mass=extra), 10.0, height / 34 + extra / 16)


def _catapults() -> Iterator[Goal]:
    for mass, target in ((5, 5), *((m, t) for m in (3, 4, 5, 6, 7, 8) for t in (5, 10, 15, 20) if (m, t) != (5, 5))):
        words = f"a catapult that throws a boulder of {mass} kg {target} m"
        yield Goal("catapult", words, Scene(boulder_mass=mass), target, (mass + target) / 28)


def _climbs() -> Iterator[Goal]:
    for height, ahead in ((30, 3), *((h, a) for h in range(10, 100, 10) for a in (2, 3, 5) if (h, a) != (30, 3))):
        words = f"a car up a step of {height} cm {ahead} m ahead"
        yield Goal("climb", words, Scene("step", height / 100, ahead=ahead), ahead + 2.0, height / 90)


def _carries() -> Iterator[Goal]:
    for mass, slope in ((3, 0), *((m, s) for m in range(1, 9) for s in (0, 3, 6) if (m, s) != (3, 0))):
        words = f"a car that carries {mass} kg up a slope of {slope} degrees"
        yield Goal("carry", words, Scene(load_mass=mass, slope=slope), 10.0, mass / 16 + slope / 12)


def _crossings() -> Iterator[Goal]:
    for width, ahead in ((60, 3), *((w, a) for w in range(20, 220, 20) for a in (2, 3, 5) if (w, a) != (60, 3))):
        words = f"a car over a gap of {width} cm {ahead} m ahead"
        yield Goal("cross", words, Scene("gap", width=width / 100, ahead=ahead), ahead + 2.0, width / 200)


def tasks_of(kinds: tuple[str, ...], split: str) -> list[Task]:
    """The tasks of a split; every fourth variation of a kind is held out."""
    tasks = []
    for kind in kinds:
        for i, goal in enumerate(goals_of(kind)):
            if (i % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == (split == "heldout"):
                tags: dict[str, float | str] = {
                    "kind": kind,
                    "terrain": goal.scene.terrain,
                    "hard": goal.hard,
                    "target": goal.target,
                }
                tasks.append(Task(kind if i == 0 else goal.name, goal.words, {"goal": goal}, tags))
    return tasks


def goal_of(task: Task) -> Goal:
    """What a task asks for; one that asks for nothing in particular gets the plain car."""
    goal: Goal = task.spec["goal"] if "goal" in task.spec else goals_of("car")[0]
    return goal
