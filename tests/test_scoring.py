"""Worlds that misbehave cost one answer, and say why."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coterie import Score, Task, World
from coterie.worlds.scoring import Scorer

TASK = Task("task", "prompt")
LIMIT_S = 0.5


@dataclass(frozen=True)
class Touchy(World):
    """Fails on answers that ask it to; counts its calls in a file."""

    name: str = field(default="touchy", init=False)
    calls: str = ""

    def tasks(self, split: str) -> Sequence[Task]:
        return [TASK]

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        if self.calls:
            with open(self.calls, "a") as file:
                file.writelines(f"{answer}\n" for answer in answers)
        return [self._score(answer) for answer in answers]

    def _score(self, answer: str) -> Score:
        if answer == "sleep":
            time.sleep(3600)
        if answer == "exit":
            os._exit(7)
        if answer == "raise":
            raise ValueError("no such thing")
        if answer == "nan":
            return Score(float("nan"))
        if answer.startswith("slow"):
            time.sleep(0.3)
        return Score(float(answer[-1]))


@pytest.fixture
def scorer() -> Iterator[Scorer]:
    with Scorer(Touchy(), 2, LIMIT_S) as pool:
        yield pool


@pytest.mark.parametrize(
    ("bad", "fault", "note"),
    [
        ("sleep", "timeout", "the world took longer than 0.5 s"),
        ("exit", "died", "the world died with exit code 7"),
        ("raise", "raised", "the world raised ValueError: no such thing"),
        ("nan", "nonsense", "the world gave a total of nan"),
    ],
)
def test_a_failing_answer_costs_only_itself(scorer: Scorer, bad: str, fault: str, note: str) -> None:
    scores = scorer.score(TASK, ["5", bad, "3", "9"])
    assert [s.total for s in scores] == [5.0, 3.0, 3.0, 9.0]  # the culprit gets its siblings' lowest
    assert [s.fault for s in scores] == ["", fault, "", ""]
    assert (scores[1].valid, scores[1].note) == (False, note)
    assert scorer.score(TASK, ["1", "2"])[1].total == 2.0  # the pool lives on


def test_a_group_in_which_all_fail_has_no_signal(scorer: Scorer) -> None:
    assert [s.total for s in scorer.score(TASK, ["raise", "nan"])] == [0.0, 0.0]


def test_equal_answers_are_scored_once(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with Scorer(Touchy(calls=str(calls)), 2, LIMIT_S) as scorer:
        scorer.prefetch(TASK, ["1", "2"])
        scores = scorer.score(TASK, ["1", "1", "2", "1", "3"])
        scorer.score(TASK, ["3", "2"])
    assert [s.total for s in scores] == [1.0, 1.0, 2.0, 1.0, 3.0]
    assert sorted(calls.read_text().split()) == ["1", "2", "3"]


def test_a_slow_group_is_given_the_limit_an_answer(scorer: Scorer) -> None:
    # Four answers of .3 s take longer than one answer may, yet none fails.
    scores = scorer.score(TASK, ["slow1", "slow2", "slow3", "slow4"])
    assert [s.total for s in scores] == [1.0, 2.0, 3.0, 4.0]
    assert scorer.slow


class Counting(Touchy):
    """Scores an answer by how many it was judged with."""

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        return [Score(float(len(answers))) for _ in answers]


class Comparing(Counting):
    compares_siblings = True


@pytest.mark.parametrize(("world", "together"), [(Counting(), [16] * 32 + [8] * 8), (Comparing(), [40] * 40)])
def test_a_large_group_goes_out_in_shares_unless_siblings_are_compared(world: World, together: list[int]) -> None:
    with Scorer(world, 2, 60.0) as scorer:
        assert [s.total for s in scorer.score(TASK, [str(i) for i in range(40)])] == together


def test_scoring_goes_on_beside_other_work(scorer: Scorer) -> None:
    scorer.prefetch(Task("a", ""), ["slow1"])
    scorer.prefetch(Task("b", ""), ["slow2"])
    time.sleep(1.5)
    assert len(scorer.cache) == 2
    assert all(promise.done() for promise in scorer.cache.values())  # though nobody has asked yet


def test_no_worker_outlives_its_scorer() -> None:
    pool = Scorer(Touchy(), 2, 60.0)
    pool.prefetch(TASK, ["sleep"])
    time.sleep(0.3)
    [worker] = [w for w in pool._workers if w.process is not None]
    assert worker.process is not None
    pid = worker.process.pid
    assert pid is not None
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
