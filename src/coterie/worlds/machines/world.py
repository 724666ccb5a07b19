"""The machines world: build what drives, climbs, carries, crosses or throws, judged by physics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.extras import require
from coterie.rollouts import Score, Task
from coterie.worlds.base import Example, MadeExamples, World
from coterie.worlds.machines.blocks import BLOCKS
from coterie.worlds.machines.goals import KINDS, LEVELS, goal_of, tasks_of
from coterie.worlds.machines.language import MachineLanguage
from coterie.worlds.machines.making import make_machine
from coterie.worlds.machines.reward import Scoring, invalid, judge
from coterie.worlds.machines.tree import LARGEST, TreeError, json_schema, print_machine, read_machine
from coterie.worlds.machines.words import instruction

if TYPE_CHECKING:
    from PIL.Image import Image


def hand_built(name: str) -> str:
    """The JSON of a machine that people made: car, catapult or thrower. No policy learns from these."""
    return Path(__file__).with_name("data").joinpath(f"{name}.json").read_text(encoding="utf-8")


@dataclass(frozen=True)
class MachinesWorld(World):
    """Settings of the machines world."""

    name: str = field(default="machines", init=False)
    kinds: str = " ".join(KINDS)  # of goals, as in "car catapult"
    blocks: Literal["first", "all"] = "first"  # those of the first level, or every block of the table
    max_blocks: int = 20  # that the small policy's language can write; a two-ended one counts as two
    catapult_scoring: Scoring = "thrown"
    words_first: bool = True  # whether a language model is asked to think in words; under a grammar it cannot
    layouts: int = 64  # how many examples each training task has

    def __post_init__(self) -> None:
        for wrong, told in (
            (
                not self.kinds.split() or not set(KINDS).issuperset(self.kinds.split()),
                f"kinds is {self.kinds!r}; write some of {' '.join(KINDS)}",
            ),
            (self.blocks not in ("first", "all"), f"blocks is {self.blocks!r}; write 'first' or 'all'"),
            (
                not 2 <= self.max_blocks <= LARGEST,
                f"max_blocks is {self.max_blocks}; write a number from 2 to {LARGEST}",
            ),
            (
                self.catapult_scoring not in ("thrown", "code", "paper"),
                f"catapult_scoring is {self.catapult_scoring!r}; write 'thrown', 'code' or 'paper'",
            ),
            (self.layouts < 1, f"layouts is {self.layouts}; write 1 or more"),
        ):
            if wrong:
                raise ValueError(told)
        require("mujoco", "machines")  # before anything is sampled, and once for all workers

    def tasks(self, split: str) -> Sequence[Task]:
        return self._splits[split]

    @cached_property
    def _splits(self) -> dict[str, list[Task]]:
        return {split: tasks_of(tuple(self.kinds.split()), split) for split in ("train", "heldout")}

    def allowed(self, task: Task) -> Collection[str]:
        """The kinds of blocks that may be used for this task."""
        return BLOCKS if self.blocks == "all" else LEVELS[goal_of(task).kind]

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        return [self._score(task, answer) for answer in answers]

    def _score(self, task: Task, answer: str) -> Score:
        try:
            machine = read_machine(answer, self.allowed(task))
        except TreeError as error:
            return invalid(error)
        return judge(machine, goal_of(task), self.catapult_scoring)

    def language(self) -> MachineLanguage:
        return MachineLanguage(self.max_blocks, self.allowed)

    def instruction(self, task: Task) -> str:
        return instruction(task, self.allowed(task), self.words_first) if task.spec else task.prompt

    def schema(self) -> Mapping[str, Any]:
        """With every block that some task of the world allows; a blank where JSON has one, and nowhere else."""
        kinds = {kind for task in self.tasks("train") for kind in self.allowed(task)}
        return {**json_schema(kinds, self.max_blocks), "x-guidance": {"whitespace_flexible": False}}

    def examples(self) -> Sequence[Example]:
        """Machines for every training task, `layouts` times."""
        return MadeExamples(self.layouts * len(self.tasks("train")), self._make)

    def _make(self, index: int) -> Example:
        tasks = self.tasks("train")
        task = tasks[index % len(tasks)]
        parts = make_machine(
            goal_of(task).kind, self.allowed(task), self.max_blocks, np.random.default_rng([index, 11])
        )
        return Example(task, print_machine(parts))

    def picture(self, task: Task, answer: str) -> Image | None:
        from coterie.worlds.machines.picture import draw_machine

        try:
            machine = read_machine(answer)
        except TreeError:
            return None
        return draw_machine(machine)
