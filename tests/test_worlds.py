"""Every world keeps the contract, and the checker notices when one does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from coterie import Characters, Example, Score, Task, World, load_world
from coterie.worlds.check import check_world
from coterie.worlds.load import WORLDS, WorldError

OURS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in WORLDS] + [
    ("bricks", {"legality": "attached"}),
    ("bricks", {"legality": "format"}),
    ("bricks", {"legality": "geometry", "actions": "two_step"}),
    ("bricks", {"actions": "two_step", "sizes": "1x1 2x2 2x4"}),
    ("machines", {"kinds": "catapult carry", "blocks": "all", "catapult_scoring": "paper"}),
]


@pytest.mark.parametrize(("name", "settings"), OURS, ids=str)
def test_our_worlds_keep_the_contract(name: str, settings: dict[str, Any]) -> None:
    assert [f.problem for f in check_world(load_world(name, settings)) if f.problem] == []


def test_the_documented_world_keeps_the_contract(sums: World) -> None:
    assert [finding.problem for finding in check_world(sums) if finding.problem] == []


@dataclass(frozen=True)
class Flawed(World):
    """A world with one flaw, by name."""

    name: str = field(default="flawed", init=False)
    flaw: str = ""

    def tasks(self, split: str) -> Sequence[Task]:
        if self.flaw == "empty" and split == "heldout":
            return []
        return [Task("same" if self.flaw == "ids" else f"{split}-{i}", "ab") for i in range(3)]

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        if self.flaw == "raises" and "nonsense" in answers:
            raise RuntimeError("I only take sense")
        totals = [float(len(answer) % 7) for answer in answers]
        if self.flaw == "nan":
            totals = [float("nan")] * len(answers)
        if self.flaw == "flat":
            totals = [1.0] * len(answers)
        scores = [Score(total) for total in totals]
        return scores[1:] if self.flaw == "short" else scores

    def language(self) -> Characters:
        language = Characters("ab", max_tokens=6)
        return replace(language, alphabet="a") if self.flaw == "alphabet" else language

    def examples(self) -> Sequence[Example]:
        return [Example(self.tasks("train")[0], "abab", total=3.0 if self.flaw == "total" else 4.0)]


def test_a_world_without_a_flaw_passes() -> None:
    assert [finding.problem for finding in check_world(Flawed()) if finding.problem] == []


@pytest.mark.parametrize(
    ("flaw", "told"),
    [
        ("empty", "tasks('heldout') is empty"),
        ("ids", "task id 'same' is in train and again in train"),
        ("raises", "it raised RuntimeError: I only take sense"),
        ("nan", "is nan"),
        ("flat", "there is nothing to learn from"),
        ("short", "scores for"),
        ("alphabet", "is not in the alphabet"),
        ("total", "should get 3.0, got 4.0"),
    ],
)
def test_the_checker_names_the_flaw(flaw: str, told: str) -> None:
    problems = [finding.problem for finding in check_world(Flawed(flaw))]
    assert any(told in problem for problem in problems), problems


def test_an_unknown_world_is_answered_with_the_nearest() -> None:
    with pytest.raises(WorldError, match="did you mean 'bricks'"):
        load_world("brick")


@pytest.mark.parametrize(
    ("text", "told"),
    [("1/0", "cannot be imported: ZeroDivisionError"), ("x = 1", "it has none"), ("def broken(:", "SyntaxError")],
)
def test_a_file_without_a_world_says_so(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(WorldError, match=told):
        load_world(str(path))
