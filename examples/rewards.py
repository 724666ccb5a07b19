"""Reward functions in the three styles that the prompts world takes; nothing here is needed, copy what you like.

coterie check prompts --rewards "numeric:1, examples/rewards.py:shows_work:0.2"
coterie check prompts --rewards "numeric:1, trl:examples/rewards.py:short_reward:0.1"
coterie check prompts --rewards "verl:examples/rewards.py:compute_score:1"

The same in a TOML file, where a reward may have a name of its own, need another one, and have a bar to pass:

    [[rewards]]
    name = "work"
    function = "examples/rewards.py:shows_work"   # style = "trl" or "verl" for those
    weight = 0.2
    passes_at = 0.5

    [[rewards]]
    name = "numeric"
    needs = "work"
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from coterie import Task


def shows_work(task: Task, answers: Sequence[str]) -> list[float | None]:
    """Ours: a task and all answers to it. Questions without a product need no working, so it does not apply there."""
    if "times" not in task.prompt:
        return [None] * len(answers)
    return [float("=" in answer) for answer in answers]


def agrees(task: Task, answers: Sequence[str]) -> list[float | None]:
    """Ours again: without knowing what is right, the share of siblings that come to the same number."""
    ends = [re.findall(r"-?\d+", answer)[-1:] for answer in answers]
    votes = Counter(end[0] for end in ends if end)
    return [votes[end[0]] / len(answers) if end else 0.0 for end in ends]


def near(task: Task, answers: Sequence[str]) -> list[float | None]:
    """Ours: a column of the file, here the answer, held against what was written; half for being one off."""
    right = int(task.spec["answer"])
    numbers = [[int(number) for number in re.findall(r"-?\d+", answer)] for answer in answers]
    return [1 / (1 + abs(found[-1] - right)) if found else 0.0 for found in numbers]


def short_reward(prompts: list[Any], completions: list[Any], **columns: list[Any]) -> list[float | None]:
    """TRL's: lists as long as the answers, with every column of the file; chat prompts bring chat completions."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [max(0.0, 1 - len(text) / 400) for text in texts]


def compute_score(data_source: Any, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """verl's: one answer at a time, held against the row's ground truth."""
    numbers = re.findall(r"-?\d+", solution_str)
    return float(bool(numbers) and numbers[-1] == str(ground_truth))
