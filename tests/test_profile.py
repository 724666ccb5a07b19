"""Where the time of a step goes."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.phases import Phases, listening, phase


def test_a_phase_inside_another_counts_for_itself_alone() -> None:
    now = 0.0
    phases = Phases(clock=lambda: now)
    with listening(phases):
        now = 1.0
        with phase("sample"):
            now = 3.0
            for _ in range(2):
                with phase("masks"):
                    now += 0.5
                now += 0.25
        now += 10
        phases.count()
    with phase("nobody listens"):
        now += 100
    assert phases.seconds == {"rest": 11.0, "sample": 2.5, "masks": 1.0}
    assert phases.calls == {"sample": 1, "masks": 2}


def test_a_phase_ends_when_it_raises() -> None:
    now = 0.0
    phases = Phases(clock=lambda: now)
    with listening(phases):
        with suppress(KeyError), phase("score"):
            now = 2.0
            raise KeyError
        now = 5.0
        phases.count()
    assert phases.seconds == {"rest": 3.0, "score": 2.0}


def test_train_profile_writes_phases_and_operations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    small = ["--cold-start-steps", "1", "--width", "16", "--heads", "2", "--depth", "1", "--workers", "1"]
    more = ["--prompts-per-step", "2", "--group-size", "2", "--max-tokens", "9", "--threads", "1"]
    assert main(["train", "bricks", "--profile", "--steps", "4", "--out", str(out), *small, *more]) == 0
    found = json.loads((out / "profile.json").read_text())
    assert found["steps"] == 2
    assert {"sample", "score", "pack", "save"} <= found["seconds_a_step"].keys()
    assert found["calls_a_step"]["sample"] == 1
    seconds = [each["seconds"] for each in found["operations_of_a_step"]]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 0
    assert "aten::" in (out / "profile.txt").read_text()
    assert "2 steps" in capsys.readouterr().out


def test_too_few_steps_for_a_profile_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--cold-start-steps", "0", "--width", "16", "--heads", "2", "--prompts-per-step", "1", "--workers", "1"]
    main(["train", "bricks", "--profile", "--steps", "1", "--out", str(tmp_path / "run"), "--max-tokens", "9", *small])
    assert "set steps to 3 or more" in capsys.readouterr().err
