"""The reward of a program: the share of its tests that it passes, in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.rollouts import Task
from coterie.worlds.prompts.builtin import DOES_NOT_APPLY, Verdict
from coterie.worlds.prompts.finding import fenced
from coterie.worlds.prompts.reading import look_up
from coterie.worlds.prompts.sandbox import Limits, SandboxRefused, probe, run_program

LEAST_MEMORY_MB = 64


@dataclass(frozen=True)
class Code:
    """Python that passes tests (a text or texts that assert) or cases (inputs and what is to be printed).

    Cases are compared out here, where a program cannot reach; tests run among its own names, which it could bend.
    """

    tests: str = "tests"
    cases: str = "cases"
    seconds: float = 2.0
    memory_mb: int = 512
    output_kb: int = 64
    unsafe: bool = False

    def __post_init__(self) -> None:
        for wrong, told in (
            (self.seconds <= 0, f"seconds is {self.seconds}; write a number above 0"),
            (
                self.memory_mb < LEAST_MEMORY_MB,
                f"memory_mb is {self.memory_mb}; Python takes {LEAST_MEMORY_MB}",
            ),
            (self.output_kb < 1, f"output_kb is {self.output_kb}; write 1 or more"),
        ):
            if wrong:
                raise ValueError(told)
        if not self.unsafe:
            try:
                probe()
            except SandboxRefused as refusal:
                raise ValueError(str(refusal)) from None

    def judge(self, task: Task, answers: Sequence[str]) -> list[Verdict]:
        tests, cases = look_up(task.spec, self.tests), look_up(task.spec, self.cases)
        if not tests and not cases:
            return [DOES_NOT_APPLY] * len(answers)
        asserted = [tests] if isinstance(tests, str) else [str(test) for test in tests or ()]
        known: dict[str, Verdict] = {}
        for answer in answers:
            if answer not in known:
                program = fenced(answer, ("python", "py", "python3", ""))
                known[answer] = self._share(self._test(program, asserted) + self._try(program, cases or ()))
        return [known[answer] for answer in answers]

    def _limits(self) -> Limits:
        return Limits(self.seconds, self.memory_mb, self.output_kb)

    def _test(self, program: str, tests: Sequence[str]) -> list[str]:
        """What is wrong, test by test."""
        if not tests:
            return []
        outcome = run_program(program, tests, limits=self._limits(), unsafe=self.unsafe)
        if outcome.reason and not any(note == "" for note in outcome.tests):
            return [outcome.reason] * len(tests)
        # What was not reached has the same cause as the end.
        return [outcome.reason or note if note == "it was not reached" else note for note in outcome.tests]

    def _try(self, program: str, cases: Sequence[Mapping[str, Any]]) -> list[str]:
        """What is wrong, case by case."""
        problems: list[str] = []
        for case in cases:
            if problems and problems[-1].startswith("it ran longer"):  # it would again, and time is short
                problems.append(problems[-1])
            else:
                problems.append(self._try_case(program, str(case.get("input", "")), str(case.get("output", ""))))
        return problems

    def _try_case(self, program: str, given: str, expected: str) -> str:
        outcome = run_program(program, stdin=given, limits=self._limits(), unsafe=self.unsafe)
        if outcome.reason:
            return outcome.reason
        return "" if _lines(outcome.output) == _lines(expected) else f"it printed {outcome.output.strip()[:60]!r}"

    def _share(self, problems: Sequence[str]) -> Verdict:
        wrong = [problem for problem in problems if problem]
        return Verdict(1 - len(wrong) / len(problems), wrong[0] if wrong else "")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
