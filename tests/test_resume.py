"""Kill it anywhere: it resumes, and ends with the same bytes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie import GRPOConfig, GRPOTrainer
from coterie.config import write_toml
from coterie.runs.checkpoints import damage
from coterie.runs.folder import RunFolder

KILLABLE = Path(__file__).parent / "killable.py"


def run_killable(run: Path, how: str, when: float = 0) -> int:
    command = [sys.executable, str(KILLABLE), str(run), how, str(when)]
    return subprocess.run(command, check=False, timeout=300).returncode


def final_bytes(run: Path) -> dict[str, bytes]:
    last = run / "checkpoints/last"
    return {path.name: path.read_bytes() for path in last.iterdir()}


def comparable(run: Path) -> list[dict[str, float]]:
    """All metrics but the ones that tell time."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = ("time", "tokens_per_s")
    return [{k: v for k, v in record.items() if not any(t in k for t in timed)} for record in records]


def test_twenty_kills_leave_the_same_bytes_as_none(sums_file: Path, tmp_path: Path, small: dict[str, Any]) -> None:
    config = GRPOConfig(
        world=str(sums_file),
        steps=240,
        prompts_per_step=4,
        epochs=2,
        minibatch_size=6,
        kl_coef=0.05,
        kl_target=0.01,
        reference="ema",
        reference_old_share=0.9,
        entropy_coef=0.01,
        entropy_target=1.0,
        replay_capacity=12,
        replay_priority="surprise",
        redraws=1,
        baseline_memory=0.9,
        task_order="difficulty",
        curriculum=[{"name": "low", "only": {"goal": [2, 20]}}, {"name": "all", "open_at": 0.02}],
        cold_start_steps=40,
        save_every=3,
        eval_every=50,
        eval_tasks=4,
        **small,
    )
    calm, harried = tmp_path / "calm", tmp_path / "harried"
    for path in (calm, harried):
        RunFolder.create(path, write_toml(config))
    assert run_killable(calm, "never") == 0

    rng = random.Random(0)
    moments: list[tuple[str, float]] = [("seconds", rng.uniform(0.0, 0.7)) for _ in range(12)]
    # Inside the writing: while files are hashed, while they are flushed, before the link is set, in pruning.
    moments += [("_digest", 2), ("_digest", 6), ("_sync", 1), ("_sync", 4), ("_sync", 16)]
    moments += [("point", 1), ("point", 3), ("prune", 2)]
    rng.shuffle(moments)
    for how, when in moments:
        assert run_killable(harried, how, when) == -signal.SIGKILL
    assert run_killable(harried, "never") == 0
    assert final_bytes(harried) == final_bytes(calm)
    assert comparable(harried) == comparable(calm)


@pytest.fixture
def finished(sums_file: Path, tmp_path: Path, small: dict[str, Any]) -> RunFolder:
    config = GRPOConfig(
        world=str(sums_file),
        steps=4,
        prompts_per_step=4,
        cold_start_steps=2,
        save_every=2,
        out=str(tmp_path / "r"),
        **small,
    )
    trainer = GRPOTrainer(config)
    with trainer.scorer:
        trainer.train()
    assert trainer.run is not None
    return trainer.run


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    finished: RunFolder, sums_file: Path, small: dict[str, Any]
) -> None:
    newest = finished.checkpoints / "step-000004" / "policy.safetensors"
    blob = bytearray(newest.read_bytes())
    blob[len(blob) // 2] ^= 1
    newest.write_bytes(bytes(blob))
    config = GRPOConfig(world=str(sums_file), steps=4, prompts_per_step=4, cold_start_steps=2, save_every=2, **small)
    trainer = GRPOTrainer(config, run=finished)
    told: list[str] = []
    with trainer.scorer:
        assert trainer.resume(told.append)
        assert trainer.progress.step == 2
        trainer.train()
    [warning] = told
    assert warning.startswith("checkpoint step-000004 is damaged (policy.safetensors was changed")
    assert damage(finished.checkpoints / "step-000004") == ""


@pytest.mark.parametrize("name", ["manifest.json", "policy.safetensors"])
def test_a_missing_file_is_damage(finished: RunFolder, name: str) -> None:
    (finished.checkpoints / "step-000004" / name).unlink()
    assert name in damage(finished.checkpoints / "step-000004")
    assert finished.find_checkpoint(lambda _: None).name == "step-000002"
