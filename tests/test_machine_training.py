"""Machines under training: a step of GRPO, what its metrics say, the fuzzer, and the study's table."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np

from coterie import GRPOConfig, GRPOTrainer

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_a_small_policy_trains_on_machines(small: dict[str, Any]) -> None:
    config = GRPOConfig(
        world="machines",
        world_options={"kinds": "car", "max_blocks": 8},
        steps=2,
        prompts_per_step=2,
        group_size=4,
        cold_start_steps=8,
        cold_start_batch=8,
        advantage="pass_at_k",
        pass_k=2,
        answer_limit_s=60,
        **small,
    )
    trainer = GRPOTrainer(config)
    with trainer.scorer:
        metrics = trainer.train()
        judged = trainer.evaluate(num_tasks=2, num_samples=2)
    assert metrics["valid"] == 1.0 and metrics["faults"] == 0.0
    assert metrics["rewards/invalid/overlap"] == 0.0
    assert metrics["rewards/distance"] == metrics["reward"] > 0
    assert abs(metrics["ratio_max"] - 1) < 1e-4
    assert np.isfinite(judged["reward"])


def test_random_and_mutated_trees_are_scored_without_a_fault() -> None:
    result = runpy.run_path(str(BENCHMARKS / "machine_fuzz.py"))["fuzz"]((0, 90, 7))
    assert result["wrong"] == []
    assert sum(result["reasons"].values()) == 90
    assert result["reasons"]["valid"] > 5 and len(result["reasons"]) > 4


def milestone(step: int, best: float) -> dict[str, Any]:
    judged = {"mean": best / 2, "best": best, "valid": 1.0, "success": 0.25, "distinct": 0.5}
    return {"step": step, "answers": 256 * step, **judged}


def test_the_studys_table_compares_what_every_run_reached() -> None:
    results = [
        {"arm": arm, "kinds": "car", "rate": "5e-4", "seed": seed, "milestones": milestones}
        for arm, seed, milestones in (
            ("standardized", 0, [milestone(0, 10.0), milestone(20, 20.0), milestone(40, 99.0)]),
            ("standardized", 1, [milestone(0, 12.0), milestone(20, 24.0)]),
            ("pass@4", 0, [milestone(0, 10.0), milestone(20, 30.0)]),
        )
    ]
    table = runpy.run_path(str(BENCHMARKS / "passk.py"))["table"](results, "car")
    rest = "100.0 ± 0.0 | 25.0 ± 0.0 | 50.0 ± 0.0 |"
    assert table.splitlines()[2:] == [
        f"| cold start | 0 | 2 | 11.0 ± 1.0 | 5.5 ± 0.5 | {rest}",
        f"| standardized, learning rate 5e-4 | 5,120 | 2 | 22.0 ± 2.0 | 11.0 ± 1.0 | {rest}",
        f"| pass@4, learning rate 5e-4 | 5,120 | 1 | 30.0 ± 0.0 | 15.0 ± 0.0 | {rest}",
    ]


def test_what_an_example_comes_to_is_told_before_and_after() -> None:
    before = {"best@64": 7.0, "reward": 1.25, "valid": 1.0, "success": 0.05}
    after = {"best@64": 21.0, "reward": 9.5, "valid": 0.99, "success": 0.5}
    tell = runpy.run_path(str(BENCHMARKS / "machine_training.py"))["tell"]
    assert tell(before, after, 64).splitlines() == [
        "| | best of 64 | mean | valid % | success % |",
        "|---|---|---|---|---|",
        "| cold start | 7.0 | 1.2 | 100.0 | 5.0 |",
        "| trained | 21.0 | 9.5 | 99.0 | 50.0 |",
    ]
