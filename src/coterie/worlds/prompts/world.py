"""The prompts world: questions from a file or from reasoning-gym, and rewards that are named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.rollouts import Score, Task
from coterie.worlds.base import Critic, Example, World
from coterie.worlds.prompts.arithmetic import WORDS, questions
from coterie.worlds.prompts.finding import last_number
from coterie.worlds.prompts.gym import gym_rows
from coterie.worlds.prompts.mixture import Mixture, read_rewards
from coterie.worlds.prompts.reading import Row, held_out, look_up, prompt_text, read_rows, tags_of


@dataclass(frozen=True)
class PromptsWorld(World):
    """Settings of the prompts world. It has no closed vocabulary: language models answer.

    A task's prompt is plain text, or a JSON list of chat messages where the file has such or `system` is set; the
    engine applies its chat template to either.
    """

    name: str = field(default="prompts", init=False)
    data: str = ""  # .json, .jsonl, .csv or .parquet; "": sums in words
    sums: str = "plus,minus,times"  # which ones, where no file is named
    largest: int = 59  # number in them
    heldout_data: str = ""  # "": a share of the prompts in `data`
    heldout_share: float = 0.1
    prompt_column: str = "prompt"
    answer_column: str = "answer"  # dots lead into tables: reward_model.ground_truth
    solution_column: str = "solution"  # an answer at length, to imitate; where there is none, the answer column
    system: str = ""
    rewards: str | Sequence[Mapping[str, Any]] = ""  # "format:0.2,numeric:1:format"; "": what the answers suggest
    reward_tables: Mapping[str, Any] = field(default_factory=dict)  # by name: kind, weight, needs, options
    reasoning_gym: str = ""  # names of its datasets with commas between, instead of `data`
    gym_size: int = 1000
    gym_seed: int = 0
    gym_options: Mapping[str, Any] = field(default_factory=dict)
    unsafe: bool = False  # whether the reward `code` runs programs where the kernel cannot contain them

    def __post_init__(self) -> None:
        for wrong, told in (
            (
                bool(self.data and self.reasoning_gym),
                "data and reasoning_gym are two sources of prompts; write one of them",
            ),
            (
                bool(self.heldout_data and not self.data),
                "heldout_data goes with data; write both",
            ),
            (
                not 0 < self.heldout_share < 1,
                f"heldout_share is {self.heldout_share}; write a share between 0 and 1",
            ),
            (self.gym_size < 2, f"gym_size is {self.gym_size}; write 2 or more"),
            (
                not set(self._sums) <= set(WORDS) or not self._sums,
                f"sums is {self.sums!r}; write some of {', '.join(WORDS)}",
            ),
            (self.largest < 2, f"largest is {self.largest}; write 2 or more"),
        ):
            if wrong:
                raise ValueError(told)
        assert self.tasks("train") and self.tasks("heldout")
        assert self.mixture.parts  # mistakes in the rewards are told at once, not in a worker

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone: a worker that is not forked loads functions and rows for itself."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @property
    def _sums(self) -> list[str]:
        return [word.strip() for word in self.sums.split(",") if word.strip()]

    @cached_property
    def _rows(self) -> dict[str, list[tuple[str, Row]]]:
        """The rows of each split, each with its id."""
        rows = self._numbered(self.data)
        if self.heldout_data:
            later = self._numbered(self.heldout_data)
            both = {self._prompt(row) for _, row in rows} & {self._prompt(row) for _, row in later}
            if both:
                told = f"{len(both)} prompts of {self.heldout_data} are in {self.data} as well"
                raise ValueError(f"{told}, such as {min(both)[:60]!r}; take them out of one")
            return {"train": rows, "heldout": [(f"heldout-{name}", row) for name, row in later]}
        apart = held_out([self._prompt(row) for _, row in rows], self.heldout_share)
        splits: dict[str, list[tuple[str, Row]]] = {"train": [], "heldout": []}
        for name, row in rows:
            splits["heldout" if self._prompt(row) in apart else "train"].append((name, row))
        return splits

    def _numbered(self, data: str) -> list[tuple[str, Row]]:
        rows: Sequence[Row]
        if self.reasoning_gym:
            rows = list(gym_rows(self.reasoning_gym, self.gym_size, self.gym_seed, self.gym_options))
            return [(f"{row['gym']}-{place}", row) for place, row in enumerate(rows, 1)]
        rows = read_rows(data, self.prompt_column) if data else list(questions(self._sums, self.largest))
        stem = Path(data).stem if data else "sum"
        return [(f"{stem}-{place}", row) for place, row in enumerate(rows, 1)]

    def _prompt(self, row: Row) -> str:
        brought = not self.data  # our own rows have our own name for it
        return prompt_text(row["prompt" if brought else self.prompt_column], self.system)

    @cached_property
    def _tasks(self) -> dict[str, list[Task]]:
        without = (self.prompt_column, "prompt", self.answer_column, self.solution_column)
        return {
            split: [Task(name, self._prompt(row), row, tags_of(row, without)) for name, row in rows]
            for split, rows in self._rows.items()
        }

    def tasks(self, split: str) -> Sequence[Task]:
        return self._tasks[split]

    @cached_property
    def mixture(self) -> Mixture:
        options = json.dumps(self.gym_options, sort_keys=True)
        answer = {"column": self.answer_column}
        defaults: dict[str, Mapping[str, Any]] = {
            "exact": answer,
            "numeric": answer,
            "function": {**answer, "prompt_column": self.prompt_column},
            "code": {"unsafe": self.unsafe},
            "gym": {"size": self.gym_size, "seed": self.gym_seed, "options": options},
        }
        asked = self.rewards if self.rewards or self.reward_tables else self._usual_reward()
        return read_rewards(asked, self.reward_tables, defaults)

    def _usual_reward(self) -> str:
        if self.reasoning_gym:
            return "gym"
        answers = [look_up(task.spec, self.answer_column) for task in self.tasks("train")]
        if any(answer is None for answer in answers):
            raise ValueError(
                f"not every row has a column {self.answer_column!r} to hold answers against; "
                "name rewards, as in: --rewards json:1"
            )
        return "numeric" if all(last_number(str(answer)) is not None for answer in answers) else "exact"

    @property
    def compares_siblings(self) -> bool:  # type: ignore[override]
        return self.mixture.compares_siblings

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        return self.mixture.score(task, answers)

    def critics(self) -> Mapping[str, Critic]:
        return self.mixture.critics

    def complete(self, score: Score, verdicts: Mapping[str, float]) -> Score:
        return self.mixture.complete(score, verdicts)

    @cached_property
    def _examples(self) -> list[Example]:
        # By the reward that its answers suggest, an answer is worth all there is; by others, who knows.
        total = None if self.rewards or self.reward_tables else 1.0
        found = ((task, self.solution(task)) for task in self.tasks("train"))
        return [Example(task, answer, total) for task, answer in found if answer is not None]

    def examples(self) -> Sequence[Example]:
        return self._examples

    def solution(self, task: Task) -> str | None:
        for column in (self.solution_column, self.answer_column):
            held = look_up(task.spec, column)
            if isinstance(held, list) and held:
                held = held[0]
            if isinstance(held, str | int | float):
                return str(held)
        return None
