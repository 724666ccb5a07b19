"""What a configuration adds to a world's verdicts before answers are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coterie.rollouts import Group, Score

Scores = Sequence[Sequence[Score]]  # [P][G]
Numbers = NDArray[np.float64]  # [P, G]


def totals_of(scores: Scores) -> Numbers:
    return np.array([[score.total for score in group] for group in scores])


def part_of(scores: Scores, name: str) -> Numbers:
    """One metric of every answer: success, valid, or a part of the score; 0 where it has none."""
    read: dict[str, Callable[[Score], float]] = {
        "success": lambda score: float(score.success),
        "valid": lambda score: float(score.valid),
    }

    def part(score: Score) -> float:
        return score.parts.get(name, 0.0)

    of = read.get(name, part)
    return np.array([[of(score) for score in group] for group in scores])


def weigh_parts(scores: Scores, weights: Mapping[str, float]) -> list[list[Score]]:
    """The total of each answer as a weighted sum of its parts."""
    return [
        [replace(s, total=sum(w * s.parts.get(name, 0.0) for name, w in weights.items())) for s in group]
        for group in scores
    ]


def add_part(scores: Scores, name: str, values: Numbers) -> list[list[Score]]:
    """A further part, which also counts in the total."""
    return with_part(scores, name, values, 1.0)


def with_part(scores: Scores, name: str, values: Numbers, weight: float) -> list[list[Score]]:
    """A further part, which counts in the total with this weight."""
    return [
        [
            replace(score, total=score.total + weight * float(value), parts={**score.parts, name: float(value)})
            for score, value in zip(group, row, strict=True)
        ]
        for group, row in zip(scores, values, strict=True)
    ]


def answer_lengths(groups: Sequence[Group]) -> Numbers:
    """[P, G] chosen tokens."""
    return np.array([[float(c.chosen.sum()) for c in group.completions] for group in groups])
