"""Keeps whole groups of earlier steps, to learn from the good or surprising ones again.

A group comes back as it was sampled: its log-probabilities are those of the policy that sampled it, so
the ratio in the loss is the true one, and the objective truncates it. Drawing by priority is biased
towards what has priority; importance weights, normalized to a largest of 1, take part of that back
(Schaul et al., arXiv 1511.05952).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from coterie.engines.base import Metrics
from coterie.rollouts import Completion, Finish, Group, Score, Task

Priority = Literal["reward", "surprise", "uniform"]


@dataclass(frozen=True)
class ReplayRule:
    """How much is kept, what is preferred, and how old it may be."""

    capacity: int = 0  # groups; 0: nothing is kept
    share: float = 0.25  # of a step's groups that come from here
    priority: Priority = "reward"
    exponent: float = 0.6  # 0 draws evenly, 1 in proportion to priority
    correction: float = 0.4  # of the bias that drawing by priority brings: 0 none, 1 all of it
    max_age: int = 50  # steps


@dataclass(frozen=True)
class Kept:
    """A group with its scores, as of the step that sampled it."""

    step: int
    group: Group
    scores: tuple[Score, ...]

    def priority(self, kind: Priority) -> float:
        totals = np.array([score.total for score in self.scores])
        if kind == "reward":
            return float(totals.max() - totals.min())
        if kind == "surprise":
            # Answers that beat their siblings although the policy thought them unlikely.
            ratings = totals - totals.mean()
            unlikely = np.array([-c.logprobs.sum() for c in self.group.completions])
            return float(np.maximum(ratings * unlikely, 0).mean())
        return 1.0


class Replay:
    """A bounded memory of groups, oldest out first."""

    def __init__(self, rule: ReplayRule) -> None:
        self.rule = rule
        self.kept: list[Kept] = []

    def add(self, step: int, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Keep the groups that have something to teach."""
        for group, verdicts in zip(groups, scores, strict=True):
            entry = Kept(step, group, tuple(verdicts))
            if entry.priority("reward") > 1e-6:
                self.kept.append(entry)
        del self.kept[: max(0, len(self.kept) - self.rule.capacity)]

    def draw(self, step: int, count: int, rng: np.random.Generator) -> tuple[list[Kept], NDArray[np.float64]]:
        """Up to `count` different groups that are young enough, and the weight of each."""
        self.kept = [entry for entry in self.kept if step - entry.step <= self.rule.max_age]
        count = min(count, len(self.kept))
        if count == 0:
            return [], np.zeros(0)
        priority = np.array([entry.priority(self.rule.priority) for entry in self.kept]) ** self.rule.exponent
        chance = (priority + 1e-8) / (priority + 1e-8).sum()
        chosen = rng.choice(len(self.kept), count, replace=False, p=chance)
        weights = (len(self.kept) * chance[chosen]) ** -self.rule.correction
        return [self.kept[i] for i in chosen], weights / weights.max()

    def metrics(self, step: int) -> Metrics:
        if not self.kept:
            return {"replay/size": 0.0}
        scores = [score for entry in self.kept for score in entry.scores]
        return {
            "replay/size": float(len(self.kept)),
            "replay/reward": float(np.mean([score.total for score in scores])),
            "replay/success": float(np.mean([score.success for score in scores])),
            "replay/age": float(np.mean([step - entry.step for entry in self.kept])),
        }

    def save(self, folder: Path) -> None:
        arrays: dict[str, NDArray[np.generic]] = {}
        entries = []
        for i, entry in enumerate(self.kept):
            for j, c in enumerate(entry.group.completions):
                arrays |= {f"{i}.{j}.{name}": getattr(c, name) for name in ("tokens", "chosen", "logprobs")}
                optional = {"legal": c.legal, "passes": c.passes}
                arrays |= {f"{i}.{j}.{name}": array for name, array in optional.items() if array is not None}
            entries.append(
                {
                    "step": entry.step,
                    "task": entry.group.task.id,
                    "answers": [[c.text, c.finish.value] for c in entry.group.completions],
                    "scores": [asdict(score) for score in entry.scores],
                }
            )
        save_file(arrays, folder / "replay.safetensors")
        (folder / "replay.json").write_text(json.dumps(entries))

    def load(self, folder: Path, tasks: dict[str, Task]) -> None:
        """The inverse of `save`; tasks are found by their ids."""
        arrays = load_file(folder / "replay.safetensors")
        self.kept = []
        for i, entry in enumerate(json.loads((folder / "replay.json").read_text())):
            completions = [
                Completion(
                    arrays[f"{i}.{j}.tokens"],
                    arrays[f"{i}.{j}.chosen"],
                    arrays[f"{i}.{j}.logprobs"],
                    arrays.get(f"{i}.{j}.legal"),
                    text,
                    Finish(finish),
                    arrays.get(f"{i}.{j}.passes"),
                )
                for j, (text, finish) in enumerate(entry["answers"])
            ]
            scores = tuple(Score(**score) for score in entry["scores"])
            self.kept.append(Kept(entry["step"], Group(tasks[entry["task"]], completions), scores))
