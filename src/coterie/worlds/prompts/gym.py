"""reasoning-gym's tasks with its own checkers (extra `gym`)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from coterie.extras import require
from coterie.rollouts import Task
from coterie.worlds.prompts.builtin import DOES_NOT_APPLY, Verdict
from coterie.worlds.prompts.finding import final_answer


def gym_rows(names: str, size: int, seed: int, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """`size` questions of each dataset that is named, with commas between names."""
    for name in filter(None, (part.strip() for part in names.split(","))):
        dataset = open_dataset(name, size, seed, json.dumps(options, sort_keys=True))
        for entry in dataset:
            told = entry["metadata"].items()
            levels = {k: v for k, v in told if isinstance(v, int | float) and k != "source_index"}
            yield {**levels, "prompt": entry["question"], "answer": entry["answer"], "gym": name, "entry": entry}


@cache
def open_dataset(name: str, size: int, seed: int, options: str) -> Any:
    gym, known = require("reasoning_gym", "gym"), require("reasoning_gym.factory", "gym").DATASETS
    if name not in known:
        near = ", ".join(difflib.get_close_matches(name, known, 3)) or "chain_sum and others"
        raise ValueError(f"reasoning-gym has no dataset {name!r}; it has {near}")
    try:
        return gym.create_dataset(name, size=size, seed=seed, **json.loads(options))
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"reasoning-gym's {name} refuses gym_options {options}: {error}") from None


@dataclass(frozen=True)
class Gym:
    """What the dataset's own checker gives for the final answer."""

    size: int
    seed: int
    options: str
    extract: str = ""

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        name, entry = task.spec.get("gym"), task.spec.get("entry")
        if name is None or entry is None:
            return [DOES_NOT_APPLY] * len(answers)
        dataset = open_dataset(name, self.size, self.seed, self.options)
        return [self._check(dataset, entry, final_answer(answer, self.extract)) for answer in answers]

    def _check(self, dataset: Any, entry: Mapping[str, Any], answer: str | None) -> Verdict:
        try:
            value = float(dataset.score_answer(answer=answer, entry=entry))
        except Exception as error:  # some of its hundred checkers raise on what they cannot read
            return Verdict(0.0, f"its checker raised {type(error).__name__}: {error}"[:120])
        return Verdict(value, "" if value >= 1 else "its checker is not satisfied")
