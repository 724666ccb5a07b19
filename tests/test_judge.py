"""The judge: what it learns, how it is examined, and what happens when it fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.engines.base import Judge, Sampling, Specimen
from coterie.engines.torch.fill import FillEngine
from coterie.engines.torch.judge import MARGIN, NetworkJudge
from coterie.engines.torch.learner import LearnerSettings
from coterie.engines.torch.small.transformer import PolicyShape
from coterie.grpo.rewards import replaced_amount
from coterie.rollouts import Completion, Finish, Group, Task
from coterie.training.guard import Guard
from coterie.training.judging import (
    JudgedScorer,
    JudgeLesson,
    ask,
    auc,
    calibration,
    examine,
    heated,
    specimens_of,
    train_judge,
)
from coterie.worlds.fill import FillWorld
from coterie.worlds.scoring import Scorer

WORLD = FillWorld(block_size=32, masks="random", ratio_low=0.4)
LANGUAGE = WORLD.language()
SHAPE = PolicyShape(len(LANGUAGE.vocabulary), 32, 1, 2, causal=False)


def make_engine() -> FillEngine:
    return FillEngine(LANGUAGE, SHAPE, LearnerSettings(), 0)


def test_the_transform_by_hand() -> None:
    # x = 1/2: 1/16 - 2/8 + 1 = .8125; x = .1: .0001 - .002 + .2.
    np.testing.assert_allclose(replaced_amount(np.array([0, 0.1, 0.5, 1])), [0, 0.1981, 0.8125, 1])


def test_a_specimen_knows_which_tokens_are_not_the_true_ones() -> None:
    tokens = np.array(LANGUAGE.encode_prompt("abd"))
    blank = np.zeros(4, np.float32)
    group = Group(Task("t", "a□□"), [Completion(tokens, tokens > 99, blank, None, "abd", Finish.STOP)])
    [specimen] = specimens_of([group], ["acd"], LANGUAGE)
    assert specimen.replaced.tolist() == [False, False, True, False]


def test_the_verdict_stays_within_the_margin_and_does_not_depend_on_the_company() -> None:
    judge = NetworkJudge(LANGUAGE, SHAPE, 0)
    with torch.no_grad():
        judge.network.amount.weight.normal_(generator=torch.Generator().manual_seed(0))
    texts = ["a", "the value of the expression", "zzzz" * 8] * 30  # more than one batch
    verdicts = judge(texts, [Task("t", "")] * 90)
    assert min(verdicts) >= -MARGIN - 1e-6 and max(verdicts) <= 1 + MARGIN + 1e-6
    assert len({round(v, 4) for v in verdicts}) == 3
    [alone] = judge(texts[:1], [Task("t", "")])
    assert alone == pytest.approx(verdicts[0], abs=1e-5)


def test_a_judge_learns_to_tell_true_texts_from_filled_ones() -> None:
    engine, judge = make_engine(), NetworkJudge(LANGUAGE, SHAPE, 0)
    judge.begin_from(engine.model)
    state = engine.generator.get_state()
    told: list[tuple[str, int]] = []
    lesson = JudgeLesson(40, 32, 5e-3, 0, Sampling())
    train_judge(judge, WORLD, LANGUAGE, engine, lesson, lambda phase, done, *_: told.append((phase, done)), lambda: 0.0)
    assert told == [("judge", step) for step in range(1, 41)]
    assert torch.equal(engine.generator.get_state(), state)  # the engine is as it was
    tasks = WORLD.tasks("heldout")[:80]
    groups = [group for _, group in engine.sample(tasks, 1, Sampling(seed=1))]
    report = examine(judge, WORLD, LANGUAGE, groups)
    # An untrained generator fills in noise: easy to tell.
    assert report.auc > 0.95 and report.real > report.filled + 0.3 and report.num_texts == 80
    assert "AUC 0.9" in next(report.lines()) or "AUC 1.0" in next(report.lines())
    wanted = [b for _, b, _ in report.bins]
    assert sum(count for *_, count in report.bins) == 160 and wanted[0] < wanted[-1]


def test_texts_are_drawn_hotter_at_first_and_then_as_they_will_be() -> None:
    rng, sampling = np.random.default_rng(0), Sampling(0.8, 0.95, seed=3)
    first = [heated(sampling, 0.0, rng) for _ in range(200)]
    assert 0.8 < min(s.temperature for s in first) < 0.85 and 1.9 < max(s.temperature for s in first) < 2.0
    assert all((s.top_p, s.seed) == (1.0, 3) for s in first)
    assert max(heated(sampling, 0.3, rng).temperature for _ in range(200)) < 0.8 * (1 + 1.5 / 2)
    assert heated(sampling, 0.6, rng) == heated(sampling, 0.9, rng) == sampling


def test_a_judge_is_the_same_after_saving_and_refuses_another_language(tmp_path: Path) -> None:
    judge = NetworkJudge(LANGUAGE, SHAPE, 0)
    specimen = Specimen(np.array(LANGUAGE.encode_prompt("abcd")), np.array([False, True, False, True, True]))
    first = judge.learn([specimen], 1e-2)["judge_error"]
    # Nothing learned, it says 1/2; three of four replaced is .75^4 - 2 * .75^3 + 1.5 = .97265625.
    assert first == pytest.approx(0.47265625, abs=1e-6)
    for _ in range(30):
        last = judge.learn([specimen], 1e-2)["judge_error"]
    assert last < first / 4
    judge.save(tmp_path)
    again = NetworkJudge.load(tmp_path, LANGUAGE)
    assert again(["abcd"], [Task("t", "")]) == judge(["abcd"], [Task("t", "")])
    assert not any(p.requires_grad for p in again.network.parameters())
    other = FillWorld(block_size=32, corpus=str(write_corpus(tmp_path / "other.txt"))).language()
    with pytest.raises(ValueError, match="reads another vocabulary"):
        NetworkJudge.load(tmp_path, other)


def write_corpus(path: Path) -> Path:
    path.write_text("\n\n".join(f"paragraph {i} says that {i * i} is {i} squared and no less" for i in range(300)))
    return path


def test_the_auc_by_hand() -> None:
    # 3 beats both, 1 beats none of 2 and ties 1: (2 + 0 + 1/2) of 4.
    assert auc([3.0, 1.0], [2.0, 1.0]) == pytest.approx(2.5 / 4)
    assert auc([1.0], [0.0]) == 1.0 and auc([0.0], [1.0]) == 0.0


def test_the_calibration_puts_like_verdicts_together() -> None:
    verdicts, wanted = np.array([0.9, 0.1, 0.5, 0.3, 0.7]), np.array([1.0, 0.0, 0.5, 0.2, 0.6])
    expected = [(0.1, 0.0, 1), (0.3, 0.2, 1), (0.5, 0.5, 1), (0.7, 0.6, 1), (0.9, 1.0, 1)]
    np.testing.assert_allclose(calibration(verdicts, wanted), expected)


def touchy(texts: Sequence[str], tasks: Sequence[Task]) -> list[float]:
    """Takes offence at 'bad', loses count with 'many', and says nonsense about 'nan'."""
    if "bad" in texts:
        raise RuntimeError("no")
    if "many" in texts:
        return [1.0]
    return [float("nan") if text == "nan" else float(len(text)) for text in texts]


def test_a_judge_that_fails_on_one_text_is_asked_about_the_others_alone() -> None:
    tasks = [Task("t", "")] * 3
    assert ask(touchy, ["a", "bb", "ccc"], tasks) == [1.0, 2.0, 3.0]
    assert ask(touchy, ["a", "bad", "ccc"], tasks) == [1.0, "raised RuntimeError: no", 3.0]
    assert ask(touchy, ["a", "nan", "b"], tasks) == [1.0, "gave nan", 1.0]
    assert ask(touchy, ["a", "many", "b"], tasks) == ["gave 1 numbers for 3 texts"] * 3


def group_of(task: Task, answers: Sequence[str]) -> Group:
    empty = np.zeros(0, np.int64)
    made = [Completion(empty, empty > 0, empty.astype(np.float32), None, text, Finish.STOP) for text in answers]
    return Group(task, made)


def test_the_judges_verdict_counts_and_the_worlds_is_only_measured() -> None:
    task = WORLD.tasks("heldout")[0]
    truth = WORLD.solution(task)
    assert truth is not None
    made: list[int] = []

    def source() -> Judge:
        made.append(1)
        return lambda texts, tasks: [0.25 if text == truth else 0.75 for text in texts]

    filled = task.prompt.replace("□", "e")
    with JudgedScorer(Scorer(WORLD, 1, 10.0), source) as scorer:
        assert made == []
        groups = [group_of(task, [truth, filled, "another text"])] * 2
        [best, worse, invalid], again = scorer.score_groups(groups)
        scorer.prepare()
    assert made == [1]
    assert again == [best, worse, invalid]
    assert (best.total, best.parts["judge"], best.parts["independent"], best.parts["match"]) == (0.25, 0.25, 1.0, 1.0)
    assert worse.total == 0.75 and worse.parts["independent"] < 0.7
    assert (invalid.total, invalid.valid) == (0.0, False)


def test_a_text_that_the_judge_failed_on_gets_its_siblings_lowest() -> None:
    task = WORLD.tasks("heldout")[0]
    truth = WORLD.solution(task)
    assert truth is not None
    filled = task.prompt.replace("□", "e")

    def judge(texts: Sequence[str], tasks: Sequence[Task]) -> list[float]:
        if filled in texts:
            raise ValueError("not that one")
        return [0.5] * len(texts)

    with JudgedScorer(Scorer(WORLD, 1, 10.0), lambda: judge) as scorer:
        [[fine, faulty]] = scorer.score_groups([group_of(task, [truth, filled])])
    assert (fine.total, fine.fault) == (0.5, "")
    assert (faulty.total, faulty.fault, faulty.valid) == (0.5, "judge", False)
    assert faulty.note == "the judge raised ValueError: not that one"


def test_the_guard_stops_when_the_reward_rises_and_the_measure_falls() -> None:
    guard = Guard(window=3, tolerance=0.05)
    for step in range(10):
        guard.observe(0.5 + 0.02 * step, 0.6 - 0.02 * step)
        # Means of three: .58 at best; .52 is the first more than .05 below, after the sixth step.
        assert bool(guard.parted) == (step >= 5)
    assert guard.parted == (
        "the reward rose from 0.520 to 0.580 while the independent measure fell from 0.580 to 0.520"
    )


@pytest.mark.parametrize(
    ("rewards", "measures"),
    [
        ([0.1 * i for i in range(12)], [0.05 * i for i in range(12)]),  # both rise
        ([0.5 - 0.01 * i for i in range(12)], [0.6 - 0.02 * i for i in range(12)]),  # both fall
        ([0.1 * i for i in range(12)], [0.6, 0.58] * 6),  # one rises, the other only trembles
    ],
)
def test_the_guard_lets_be_what_does_not_part(rewards: list[float], measures: list[float]) -> None:
    guard, off = Guard(window=3, tolerance=0.05), Guard(window=0, tolerance=0.05)
    for reward, measure in zip(rewards, measures, strict=True):
        guard.observe(reward, measure)
        off.observe(reward, -reward)
    assert guard.parted == "" and off.parted == ""


def test_the_guard_goes_on_from_what_was_saved() -> None:
    first, second = Guard(3, 0.05), Guard(3, 0.05)
    for step in range(4):
        first.observe(0.5 + 0.02 * step, 0.6 - 0.02 * step)
    second.restore(**first.state())  # type: ignore[arg-type]
    for step in range(4, 8):
        first.observe(0.5 + 0.02 * step, 0.6 - 0.02 * step)
        second.observe(0.5 + 0.02 * step, 0.6 - 0.02 * step)
    assert first == second and first.parted
    off = Guard(0, 0.05)
    off.restore(**first.state())  # type: ignore[arg-type]
    assert off.parted == ""
