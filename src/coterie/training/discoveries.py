"""What a run has found: successes counted by identity, so that finding the same again is worth less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from coterie.engines.base import Metrics
from coterie.rollouts import Group, Score
from coterie.training.shaping import Numbers, Scores
from coterie.worlds.base import World


class Discoveries:
    """A count of every identity met so far."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def novelty(self, scores: Scores) -> Numbers:
        """[P, G]: 1 / sqrt(how often this was found by now, this step included); 0 for what is no success."""
        now = Counter(s.identity for group in scores for s in group)
        return np.array(
            [
                [(self.counts.get(s.identity, 0) + now[s.identity]) ** -0.5 if s.identity else 0.0 for s in group]
                for group in scores
            ]
        )

    def add(self, world: World, rollouts: Sequence[Group], scores: Scores) -> list[dict[str, object]]:
        """Count a step's successes; what is new comes back as the world describes it."""
        new = []
        for group, verdicts in zip(rollouts, scores, strict=True):
            for answer, score in zip(group.answers, verdicts, strict=True):
                if score.identity and score.identity not in self.counts:
                    new.append({"identity": score.identity, **world.record(group.task, answer)})
                if score.identity:
                    self.counts[score.identity] = self.counts.get(score.identity, 0) + 1
        return new

    def metrics(self) -> Metrics:
        return {"discoveries": float(len(self.counts))} if self.counts else {}


def distinct_share(scores: Sequence[Sequence[Score]]) -> Metrics:
    """Of the successes, the share that would be left if each identity counted once."""
    found = [s.identity for group in scores for s in group if s.identity]
    return {"distinct_successes": len(set(found)) / len(found)} if found else {}
