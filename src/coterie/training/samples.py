"""Answers for a person to read, now and then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coterie.rollouts import Group, Score, Task
from coterie.worlds.base import Passage, World

NUM_SAMPLES = 3


@dataclass(frozen=True)
class Sample:
    """An answer, its score, and the world's way of showing it."""

    task: Task
    score: Score
    passages: Sequence[Passage]


class Reader(Protocol):
    """Shown some answers now and then: a terminal, a page in the run folder."""

    def __call__(self, step: int, samples: Sequence[Sample]) -> None: ...


def read_samples(world: World, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> list[Sample]:
    """The first answer of each group."""
    return [
        Sample(group.task, verdicts[0], world.passages(group.task, group.answers[0]))
        for group, verdicts in zip(groups, scores, strict=True)
    ]


def has_passages(world: World) -> bool:
    """Whether this world has anything for a person to read."""
    return type(world).passages is not World.passages
