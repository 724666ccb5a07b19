"""Rewards that a model gives: asked here, in the training process, and joined with the world's own verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, Self

from coterie.engines.base import Judge
from coterie.rollouts import Group, Score, Task
from coterie.training.judging import Scoring, ask
from coterie.worlds.base import World


class TaskScoring(Scoring, Protocol):
    """Who also scores the answers to a single task."""

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]: ...


class CriticScorer:
    """Workers score what needs no model; the world joins their verdict with its critics'."""

    def __init__(self, world: World, world_scorer: TaskScoring, source: Callable[[], Mapping[str, Judge]]) -> None:
        self.world, self.world_scorer, self.source = world, world_scorer, source
        self.critics: Mapping[str, Judge] | None = None

    def prepare(self) -> None:
        if self.critics is None:
            self.critics = self.source()
        self.world_scorer.prepare()

    def prefetch(self, task: Task, answers: Sequence[str]) -> None:
        self.world_scorer.prefetch(task, answers)

    def score_groups(self, groups: Sequence[Group]) -> list[list[Score]]:
        return self._score([(group.task, group.answers) for group in groups])

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        return self._score([(task, answers)])[0]

    def _score(self, asked: Sequence[tuple[Task, Sequence[str]]]) -> list[list[Score]]:
        """All texts of a step go to a critic at once, while the workers are at them too."""
        self.prepare()
        assert self.critics is not None
        for task, answers in asked:
            self.prefetch(task, answers)
        texts = [answer for _, answers in asked for answer in answers]
        tasks = [task for task, answers in asked for _ in answers]
        columns = {name: iter(ask(critic, texts, tasks)) for name, critic in self.critics.items()}
        found = []
        for task, answers in asked:
            own = self.world_scorer.score(task, answers)
            scores = [self._joined(score, {name: next(column) for name, column in columns.items()}) for score in own]
            lowest = min((s.total for s in scores if not s.fault), default=0.0)
            found.append([replace(s, total=lowest) if s.fault else s for s in scores])
        return found

    def _joined(self, score: Score, verdicts: Mapping[str, float | str]) -> Score:
        if score.fault:
            return score
        for name, verdict in verdicts.items():
            if isinstance(verdict, str):
                return replace(score, valid=False, success=False, note=f"{name} {verdict}", fault="critic")
        return self.world.complete(score, {name: float(verdict) for name, verdict in verdicts.items()})

    def close(self) -> None:
        self.world_scorer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
