"""The four phases by hand, the loop, and evaluation."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie import Characters, GRPOConfig, GRPOTrainer, Score, Task, World
from coterie.engines.base import Metrics, OutOfStep
from coterie.training.evaluate import evaluate_groups, pass_at_k
from coterie.training.schedule import learning_rate


def weights(trainer: GRPOTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.engine.model.parameters()])  # type: ignore[attr-defined]


def test_the_four_phases_can_be_called_by_hand(sums_trainer: GRPOTrainer) -> None:
    with sums_trainer.scorer:
        tasks = sums_trainer.curriculum.draw(16)
        rollouts = sums_trainer.generate_rollouts(tasks)
        scores = sums_trainer.compute_rewards(rollouts)
        advantages = sums_trainer.compute_advantages(scores)
        before = weights(sums_trainer)
        metrics = sums_trainer.train_on_rollouts(rollouts, advantages)
    assert [group.task for group in rollouts] == tasks
    assert [len(group.completions) for group in rollouts] == [4] * 16
    assert advantages.shape == (16, 4)
    np.testing.assert_allclose(advantages.sum(1), 0, atol=1e-9)
    assert {"loss", "grad_norm", "approx_kl", "entropy", "learning_rate"} <= metrics.keys()
    assert not torch.equal(before, weights(sums_trainer))


def test_training_raises_the_reward(sums_file: Path, small: dict[str, Any]) -> None:
    settings: dict[str, Any] = {**small, "width": 32}
    config = GRPOConfig(
        world=str(sums_file), steps=40, prompts_per_step=8, cold_start_steps=20, learning_rate=3e-3, **settings
    )
    rewards: list[float] = []

    def watch(phase: str, done: int, total: int, metrics: Metrics) -> None:
        if phase == "train":
            rewards.append(metrics["reward"])

    trainer = GRPOTrainer(config, watchers=[watch])
    with trainer.scorer:
        trainer.train()
    assert len(rewards) == 40
    assert np.mean(rewards[-10:]) > 2 * np.mean(rewards[:10])


def test_evaluation_does_not_disturb_training(sums_file: Path, small: dict[str, Any]) -> None:
    ends = []
    for every in (0, 1):
        config = GRPOConfig(
            world=str(sums_file),
            steps=4,
            prompts_per_step=4,
            cold_start_steps=3,
            eval_every=every,
            eval_tasks=5,
            **small,
        )
        trainer = GRPOTrainer(config)
        with trainer.scorer:
            metrics = trainer.train()
        assert ("eval/pass@1" in metrics) == bool(every)
        ends.append(weights(trainer))
    assert torch.equal(ends[0], ends[1])


def test_evaluation_tells_pass_at_k_and_every_part(sums_trainer: GRPOTrainer) -> None:
    with sums_trainer.scorer:
        metrics = sums_trainer.evaluate(num_tasks=6, num_samples=4)
        again = sums_trainer.evaluate(num_tasks=6, num_samples=4)
        groups = sums_trainer.answer(sums_trainer.pick_tasks("heldout", 6), 4)
        scores = sums_trainer.compute_rewards(groups)
    assert metrics == again
    assert metrics == evaluate_groups(groups, scores)
    assert {"pass@1", "pass@4", "valid", "success", "distinct", "rewards/near"} <= metrics.keys()
    assert metrics["pass@1"] == pytest.approx(metrics["success"])
    assert metrics["pass@4"] == np.mean([any(score.success for score in group) for group in scores])
    assert metrics["best@4"] == np.mean([max(score.total for score in group) for group in scores])


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 2, 2) == pytest.approx(1 - 1 / 6)
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 3, 2) == 1.0


def test_the_learning_rate_rises_then_falls_along_a_cosine() -> None:
    rates = [learning_rate(step, 104, 1.0, 4, "cosine", 0.1) for step in range(105)]
    assert rates[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert rates[54] == pytest.approx(0.55)
    assert rates[104] == pytest.approx(0.1)
    assert learning_rate(90, 100, 1.0, 4, "constant", 0.1) == 1.0


@dataclass(frozen=True)
class Bad(World):
    """One answer in ten makes it sleep, exit, raise or return NaN."""

    name: str = field(default="bad", init=False)

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{i}", "ab") for i in range(4)]

    def score(self, task: Task, answers: Any) -> list[Score]:
        return [self._score(answer) for answer in answers]

    def _score(self, answer: str) -> Score:
        import os
        import time
        import zlib

        draw = zlib.crc32(answer.encode()) % 40
        if draw == 0:
            time.sleep(3600)
        if draw == 1:
            os._exit(1)
        if draw == 2:
            raise RuntimeError("no")
        return Score(float("nan") if draw == 3 else float(answer.count("a")))

    def language(self) -> Characters:
        return Characters("abcd", max_tokens=12)


def test_a_bad_world_does_not_stop_a_run(small: dict[str, Any], tmp_path: Path) -> None:
    config = GRPOConfig(
        steps=6,
        prompts_per_step=4,
        group_size=8,
        answer_limit_s=0.3,
        out=str(tmp_path / "run"),
        rollouts_logged=4,
        **small,
    )
    faults: list[Metrics] = []
    trainer = GRPOTrainer(config, world=Bad(), watchers=[lambda phase, done, total, metrics: faults.append(metrics)])
    with trainer.scorer:
        trainer.train()
    assert trainer.run is not None
    logged = trainer.run.metrics()
    assert len(logged) == 6
    kinds = {name for metrics in logged for name in metrics if name.startswith("faults/")}
    assert kinds == {"faults/timeout", "faults/died", "faults/raised", "faults/nonsense"}
    share = sum(metrics["faults"] for metrics in logged) / (6 * 32)
    assert 0.02 < share < 0.4
    assert all(np.isfinite(metrics["reward"]) for metrics in logged)
    notes = {row["note"] for row in trainer.run.rollouts() if row["fault"]}
    assert "the world raised RuntimeError: no" in notes


def test_a_run_that_cannot_go_on_names_the_last_good_checkpoint(
    sums_file: Path, small: dict[str, Any], tmp_path: Path
) -> None:
    config = GRPOConfig(
        world=str(sums_file),
        steps=30,
        prompts_per_step=4,
        cold_start_steps=1,
        save_every=2,
        out=str(tmp_path / "r"),
        **small,
    )
    trainer = GRPOTrainer(config)
    advantages = trainer.compute_advantages

    def poisoned(scores: Any, tasks: Any = None) -> Any:
        return advantages(scores, tasks) * (np.nan if trainer.progress.step >= 4 else 1)

    trainer.compute_advantages = poisoned  # type: ignore[method-assign]
    told = r"10 updates in a row.*last good checkpoint is .*step-0000\d\d"
    with trainer.scorer, pytest.raises(OutOfStep, match=told):
        trainer.train()


def test_a_run_folder_holds_what_it_should(sums_file: Path, small: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = GRPOConfig(
        world=str(sums_file),
        steps=7,
        prompts_per_step=4,
        cold_start_steps=3,
        save_every=2,
        keep_checkpoints=2,
        kl_coef=0.1,
        out=str(out),
        rollouts_logged=5,
        **small,
    )
    trainer = GRPOTrainer(config)
    with trainer.scorer:
        trainer.train()
    names = {path.name for path in (out / "checkpoints").iterdir()}
    best = (out / "checkpoints/best").resolve().name
    assert names == {"step-000006", "step-000007", "last", "best", best}
    assert (out / "checkpoints/last").resolve().name == "step-000007"
    files = {path.name for path in (out / "checkpoints/last").iterdir()}
    wanted = {
        "policy.safetensors",
        "learner.safetensors",
        "reference.safetensors",
        "policy.json",
        "replay.safetensors",
        "replay.json",
        "memory.json",
        "progress.json",
        "manifest.json",
    }
    assert files == wanted
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics] == list(range(1, 8))
    assert {"reward", "kl", "entropy", "grad_norm", "frac_reward_zero_std", "tokens_per_s"} <= metrics[0].keys()
    rollouts = [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]
    assert len(rollouts) == 7 * 5
    assert {"step", "task", "answer", "finish", "total", "parts", "valid", "advantage"} <= rollouts[0].keys()
    assert json.loads((out / "training_stats.json").read_text())["step"] == 7
