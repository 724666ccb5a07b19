"""Reward functions from a user's file: ours, TRL's and verl's, each by name and never by guessing."""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from coterie.rollouts import Task
from coterie.worlds.base import read_messages
from coterie.worlds.prompts.builtin import Verdict
from coterie.worlds.prompts.reading import look_up

Style = Literal["ours", "trl", "verl"]
STYLES = ("ours", "trl", "verl")


@dataclass(frozen=True)
class FromFile:
    """The function that "file.py:function" names, called in the style it was written for.

    ours: f(task, answers); TRL: f(prompts, completions, **columns); verl: f(data_source, solution_str, ground_truth,
    extra_info). The first two give a number or None an answer, the last one a number or {"score": number}.
    """

    function: str
    style: str = "ours"
    column: str = "answer"  # verl's ground truth, where there is no reward_model.ground_truth
    prompt_column: str = "prompt"

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"{self.function} is in no style {self.style!r}; write one of {', '.join(STYLES)}")
        found = load_function(self.function)
        if self.style == "trl" and "completion_ids" in inspect.signature(found).parameters:
            raise ValueError(f"{self.function} asks for completion_ids, and a world sees texts only; use completions")

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        call = {"ours": self._ours, "trl": self._trl, "verl": self._verl}[self.style]
        values = list(call(load_function(self.function), task, answers))
        if len(values) != len(answers):
            raise ValueError(f"{self.function} gave {len(values)} rewards for {len(answers)} answers")
        return [Verdict(self._number(value)) for value in values]

    def _number(self, value: Any) -> float | None:
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{self.function} gave {value!r}, which is no number") from None
        if not math.isfinite(number):
            raise ValueError(f"{self.function} gave {number}; a reward is a finite number, or None")
        return number

    def _ours(self, function: Callable[..., Any], task: Task, answers: Sequence[str]) -> Any:
        return function(task, list(answers))

    def _trl(self, function: Callable[..., Any], task: Task, answers: Sequence[str]) -> Any:
        """Chat prompts come with chat completions, as there; every column is a list as long as the answers."""
        messages = read_messages(task.prompt)
        prompts = [task.prompt if messages is None else messages] * len(answers)
        completions = [a if messages is None else [{"role": "assistant", "content": a}] for a in answers]
        own = (self.prompt_column, "prompt", "completion", "completion_ids")
        columns = {name: [value] * len(answers) for name, value in task.spec.items() if name not in own}
        return function(prompts=prompts, completions=completions, **columns)

    def _verl(self, function: Callable[..., Any], task: Task, answers: Sequence[str]) -> Any:
        truth = look_up(task.spec, "reward_model.ground_truth")
        fixed = {
            "data_source": task.spec.get("data_source"),
            "ground_truth": look_up(task.spec, self.column) if truth is None else truth,
            "extra_info": task.spec.get("extra_info"),
        }
        for answer in answers:
            given = function(solution_str=answer, **fixed)
            yield given["score"] if isinstance(given, dict) else given


@cache
def load_function(name: str) -> Callable[..., Any]:
    """file.py:function; ValueError says what is missing."""
    file, _, function = name.rpartition(":")
    path = Path(file)
    if not file.endswith(".py") or not path.is_file():
        raise ValueError(f"there is no file {file or name}; name a reward function as file.py:function")
    module_name = f"coterie_user_rewards_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up here
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # anything may be wrong in a user's file; it is told, not traced
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise ValueError(f"{path} has no function {function!r}")
    return found  # type: ignore[no-any-return]
