"""The trainer's memory: curriculum, replay, reference, baseline, redraws, hindsight, steering."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import Characters, GRPOConfig, GRPOTrainer, Score, Task, World
from coterie.engines.base import Metrics
from coterie.rollouts import Completion, Finish, Group
from coterie.training.baseline import RunningBaseline
from coterie.training.curriculum import Curriculum, Phase, read_phases
from coterie.training.reference import ReferenceRule
from coterie.training.replay import Replay, ReplayRule

TASKS = [Task(str(i), "", tags={"size": i, "kind": "odd" if i % 2 else "even"}) for i in range(10)]


def test_every_task_comes_once_an_epoch_in_a_new_order() -> None:
    curriculum = Curriculum(TASKS, seed=3)
    epochs = [[t.id for t in curriculum.draw(10)] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(t.id for t in TASKS)
    assert epochs[0] != epochs[1]
    late = Curriculum(TASKS, seed=3)
    late.standing.drawn = 13
    assert [t.id for t in late.draw(4)] == epochs[1][3:7]


def test_a_phase_opens_when_the_success_rate_is_reached() -> None:
    phases = [
        Phase("small", only={"size": [0, 3]}, weights={"valid": 1.0}),
        Phase("odd", open_at=0.5, only={"kind": ["odd"]}),
        Phase("all", open_at=0.9),
    ]
    curriculum = Curriculum(TASKS, 0, phases)
    assert {t.id for t in curriculum.draw(8)} == {"0", "1", "2", "3"}
    curriculum.observe(TASKS[:2], [0.2, 0.4])
    assert curriculum.phase.name == "small"
    # Recent success: .3, then .7 x .3 + .3 x 1 = .51.
    curriculum.observe(TASKS[:2], [1.0, 1.0])
    assert curriculum.phase.name == "odd"
    assert {int(t.id) % 2 for t in curriculum.draw(5)} == {1}
    curriculum.observe(TASKS[:2], [0.8, 0.8])
    assert curriculum.phase.name == "odd"
    curriculum.observe(TASKS[:2], [1.0, 1.0])  # .86
    curriculum.observe(TASKS[:2], [1.0, 1.0])  # .902
    assert curriculum.phase.name == "all"


def test_a_phase_without_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="phase 'huge' of the curriculum admits no task"):
        Curriculum(TASKS, 0, [Phase("huge", only={"size": [99, 100]})])


@pytest.mark.parametrize(
    ("phase", "told"),
    [
        ({"title": "a"}, "phase 1 of the curriculum has 'title'; write name, open_at, only, weights"),
        ({"open_at": 0.5}, "phase 1 of the curriculum needs a name"),
        ({"name": "a", "only": {"size": 3}}, "only.size of phase 1 is 3; write \\[low, high\\] or a list of words"),
    ],
)
def test_a_wrong_phase_is_named(phase: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_phases([phase])


def test_tasks_that_always_or_never_succeed_are_drawn_less() -> None:
    curriculum = Curriculum(TASKS, 0, order="difficulty")
    for _ in range(20):
        curriculum.observe(TASKS[:6], [0.0, 0.0, 1.0, 1.0, 0.5, 0.5])
    counts = dict.fromkeys((t.id for t in TASKS), 0)
    for _ in range(400):
        for task in curriculum.draw(2):
            counts[task.id] += 1
    extreme = np.mean([counts[t] for t in "0123"])
    middling = np.mean([counts[t] for t in "456789"])
    assert extreme * 4 < middling
    assert extreme > 0


def make_group(task: Task, totals: Sequence[float], logprob: float = -1.0) -> tuple[Group, list[Score]]:
    completion = Completion(
        np.array([1, 2]), np.array([False, True]), np.array([0, logprob], np.float32), None, "x", Finish.STOP
    )
    return Group(task, [completion] * len(totals)), [Score(t, {"p": t}, success=t > 0) for t in totals]


def test_replay_keeps_what_differs_up_to_its_capacity_and_age() -> None:
    replay = Replay(ReplayRule(capacity=3, max_age=5))
    for step, totals in enumerate([[0, 1], [2, 2], [0, 3], [1, 2], [0, 9]]):
        group, scores = make_group(TASKS[step], totals)
        replay.add(step, [group], [scores])
    assert [entry.step for entry in replay.kept] == [2, 3, 4]  # 1 had no signal, 0 was pushed out
    assert replay.metrics(4) == {"replay/size": 3, "replay/reward": 2.5, "replay/success": 4 / 6, "replay/age": 1}
    drawn, weights = replay.draw(8, 5, np.random.default_rng(0))
    assert sorted(entry.step for entry in drawn) == [3, 4]
    assert weights.max() == 1.0
    assert replay.draw(99, 5, np.random.default_rng(0))[0] == []


def test_replay_prefers_priority_and_corrects_for_it() -> None:
    rule = ReplayRule(capacity=9, priority="reward", exponent=1.0, correction=1.0)
    replay = Replay(rule)
    for i, spread in enumerate([1.0, 3.0]):
        group, scores = make_group(TASKS[i], [0.0, spread])
        replay.add(0, [group], [scores])
    first = 0
    for seed in range(400):
        [entry], _ = replay.draw(0, 1, np.random.default_rng(seed))
        first += entry.group.task.id == "0"
    assert 0.19 < first / 400 < 0.31  # a quarter
    drawn, weights = replay.draw(0, 2, np.random.default_rng(0))
    # Fully corrected, a group drawn a third as often weighs three times as much.
    by_task = {entry.group.task.id: weight for entry, weight in zip(drawn, weights, strict=True)}
    assert by_task["0"] == 1.0
    assert by_task["1"] == pytest.approx(1 / 3)


def test_surprise_prefers_good_answers_that_were_unlikely() -> None:
    likely, unlikely = make_group(TASKS[0], [0, 1], -0.1), make_group(TASKS[1], [0, 1], -5.0)
    replay = Replay(ReplayRule(capacity=9))
    replay.add(0, [likely[0], unlikely[0]], [likely[1], unlikely[1]])
    low, high = (entry.priority("surprise") for entry in replay.kept)
    assert high == pytest.approx(50 * low)


def test_replay_survives_its_file(tmp_path: Path) -> None:
    replay = Replay(ReplayRule(capacity=9))
    group, scores = make_group(TASKS[4], [0, 1])
    replay.add(7, [group], [scores])
    replay.save(tmp_path)
    other = Replay(ReplayRule(capacity=9))
    other.load(tmp_path, {task.id: task for task in TASKS})
    [entry] = other.kept
    assert (entry.step, entry.group.task, list(entry.scores)) == (7, TASKS[4], scores)
    np.testing.assert_array_equal(entry.group.completions[1].tokens, group.completions[1].tokens)


def test_the_running_baseline_is_what_a_task_earned_before() -> None:
    baseline = RunningBaseline(memory=0.5)
    first = baseline.of(TASKS[:2], np.array([[1.0], [3.0]]))
    assert first.tolist() == [2.0, 2.0]  # nothing is known yet: the mean of all
    assert baseline.of(TASKS[:2], np.array([[5.0], [3.0]])).tolist() == [1.0, 3.0]
    assert baseline.means == {"0": 3.0, "1": 3.0}


class CountingEngine:
    """Notes what the reference was told to do."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def blend_reference(self, old_share: float) -> None:
        self.told.append(old_share)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (ReferenceRule("static"), []),
        (ReferenceRule("ema", old_share=0.9), [(step, 0.9) for step in range(1, 10)]),
        (ReferenceRule("ema", old_share=1.0), []),  # which is static
        (ReferenceRule("periodic", every=4), [(4, 0.0), (8, 0.0)]),
    ],
)
def test_the_reference_follows_exactly_on_its_steps(rule: ReferenceRule, expected: list[tuple[int, float]]) -> None:
    found = []
    for step in range(1, 10):
        engine = CountingEngine()
        rule.follow(engine, step)  # type: ignore[arg-type]
        found += [(step, share) for share in engine.told]
    assert found == expected


class Picky(World):
    """Rewards 'a's for one task and nothing at all for the others."""

    name = "picky"

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"{split}-{i}", "x", {"pays": i == 0}) for i in range(4)]

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        pays = task.spec["pays"]
        return [
            Score(float(answer.count("a")) * pays, {"a": answer.count("a"), "b": answer.count("b")})
            for answer in answers
        ]

    def language(self) -> Characters:
        return Characters("ab", max_tokens=6)

    def relabel(self, task: Task, answer: str) -> Task | None:
        return self.tasks("train")[1] if answer.startswith("ab") else None


def train(steps: int, small: dict[str, Any], **settings: Any) -> tuple[GRPOTrainer, list[Metrics]]:
    logged: list[Metrics] = []

    def watch(phase: str, done: int, total: int, metrics: Metrics) -> None:
        logged.append(metrics)

    config = GRPOConfig(steps=steps, prompts_per_step=4, group_size=4, **small, **settings)
    trainer = GRPOTrainer(config, world=Picky(), watchers=[watch])
    with trainer.scorer:
        trainer.train()
    return trainer, logged


def test_groups_without_signal_are_drawn_again_and_counted(small: dict[str, Any]) -> None:
    _, plain = train(6, small)
    _, redrawn = train(6, small, redraws=3)
    assert all(metrics["redrawn"] == 0 for metrics in plain)
    assert all(1 <= metrics["redrawn"] <= 12 for metrics in redrawn)
    assert np.mean([m["frac_reward_zero_std"] for m in redrawn]) < np.mean([m["frac_reward_zero_std"] for m in plain])


def test_signal_may_be_asked_of_another_metric(small: dict[str, Any]) -> None:
    _, logged = train(3, small, signal="success")
    assert all(metrics["frac_reward_zero_std"] == 1 for metrics in logged)  # nothing ever succeeds
    assert all(metrics["grad_norm"] == 0 for metrics in logged)


def test_parts_can_be_weighted_otherwise_than_by_the_world(small: dict[str, Any]) -> None:
    trainer, logged = train(25, small, reward_parts={"b": 1.0}, learning_rate=1e-2)
    assert logged[-1]["rewards/b"] > logged[0]["rewards/b"] + 0.5
    normalized, _ = train(1, small, reward_parts={"a": 1.0, "b": 100.0}, reward_sum="normalized_sum")
    scores = [[Score(0, {"a": 0, "b": 1}), Score(0, {"a": 1, "b": 0})]]
    # Standardized, b counts 100 times a whatever the scale.
    assert normalized.compute_advantages(scores)[0, 0] > 0
    assert trainer.compute_advantages([[Score(0.0), Score(1.0)]])[0, 1] > 0


def test_answers_are_relabeled_and_learned_in_hindsight(small: dict[str, Any]) -> None:
    _, logged = train(4, small, hindsight=3)
    assert all(0 <= metrics["hindsight"] <= 3 for metrics in logged)
    assert sum(metrics["hindsight"] for metrics in logged) > 0


def test_replayed_groups_are_learned_from(small: dict[str, Any]) -> None:
    trainer, logged = train(5, small, replay_capacity=8, replay_share=0.5, importance_cap=2.0)
    assert logged[-1]["replay/size"] > 0
    again, advantages = trainer._draw_replay()
    assert len(again) == 2
    assert advantages.shape == (2, 4)
    assert np.abs(advantages).max() > 0


def test_coefficients_follow_their_targets(small: dict[str, Any]) -> None:
    _, logged = train(8, small, kl_coef=0.1, kl_target=1e-6, entropy_coef=0.01, entropy_target=5.0, learning_rate=1e-2)
    assert logged[-1]["kl_coef"] > 0.1  # the KL is above so small a target
    assert logged[-1]["entropy_coef"] > 0.01  # and the entropy below so high a one


def test_kl_can_count_in_the_reward(small: dict[str, Any]) -> None:
    _, logged = train(6, small, kl_coef=0.5, kl_in="reward", kl="k1", learning_rate=1e-2)
    assert logged[0]["rewards/kl"] == pytest.approx(0.0, abs=1e-4)
    assert logged[-1]["rewards/kl"] != 0.0
    assert "kl" not in logged[-1]  # the loss has none


@pytest.mark.parametrize("overlong", ["mask", "shape"])
def test_overlong_answers_are_masked_or_penalized(small: dict[str, Any], overlong: str) -> None:
    _, logged = train(2, small, overlong=overlong, overlong_buffer=2, max_tokens=4)
    assert logged[0]["completions/clipped_ratio"] > 0
    assert ("rewards/overlong" in logged[0]) == (overlong == "shape")


def test_an_ema_of_one_equals_static(small: dict[str, Any]) -> None:
    ends = []
    for settings in ({"reference": "static"}, {"reference": "ema", "reference_old_share": 1.0}):
        trainer, _ = train(5, small, kl_coef=0.3, learning_rate=1e-2, **settings)
        ends.append([p.detach().numpy().copy() for p in trainer.engine.model.parameters()])  # type: ignore[attr-defined]
    assert all((a == b).all() for a, b in zip(*ends, strict=True))
