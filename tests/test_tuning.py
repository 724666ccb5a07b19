"""Searching settings: ranges, trials in folders, giving up early, going on after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from coterie import tuning
from coterie.config import ConfigError, parse_settings, read_toml
from coterie.tuning import Hopeless, Scout, finished, first_choice, open_study, read_ranges, tune


@pytest.fixture
def settings(sums_file: Path, small: dict[str, Any]) -> dict[str, Any]:
    quick = {"steps": 6, "prompts_per_step": 2, "group_size": 4, "cold_start_steps": 2, "eval_tasks": 3}
    return {"world": str(sums_file), **quick, **small}


def test_ranges_are_read_from_a_table_and_from_words() -> None:
    table = {"lr": {"low": 1e-5, "high": 1e-3, "log": True}, "group_size": [4, 8], "max_bricks": {"low": 5, "high": 9}}
    assert read_ranges(table, "group-size=4,8,16 schedule=cosine,constant clip_low=1:2", {}) == {
        "learning_rate": FloatDistribution(1e-5, 1e-3, log=True),
        "group_size": CategoricalDistribution((4, 8, 16)),
        "max_bricks": IntDistribution(5, 9),
        "schedule": CategoricalDistribution(("cosine", "constant")),
        "clip_low": FloatDistribution(1, 2),  # no whole number, whatever its ends are
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "there is nothing to search: write a [tune] table, or --ranges 'group_size=4,8,16'"),
        ("gruop_size=4,8", "there is no setting 'gruop_size'; did you mean group_size?"),
        ("group_size", "'group_size' names no range: write NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C"),
        ("group_size=", "the range of group_size is empty: write group_size = [A, B, …]"),
        ("clip_low=0.3:0.1", "the range of clip_low runs from 0.3 to 0.1: write the smaller number first"),
        ("clip_low=0.3:0.3", "the range of clip_low runs from 0.3 to 0.3: write the smaller number first"),
        ("kl_coef=0:1:log", "the range of kl_coef starts at 0: with log it must start above 0"),
        ("kl_coef=0:1:exp", "'0:1:exp' is no range: write LOW:HIGH or LOW:HIGH:log"),
        ("kl_coef=a:b", "the range of kl_coef needs numbers for low and high, not 'a' and 'b'"),
        ("group_size=1.5:4", "group_size = 1.5 will not do"),
        ("schedule=linear,cosine", "schedule = 'linear' will not do"),
        ("out=a,b", "out cannot be searched: write it once, outside of the ranges"),
    ],
)
def test_mistakes_in_ranges_are_answered_with_one_sentence(words: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_ranges({}, words, {})
    assert str(error.value).startswith(told)


def test_ranges_need_to_go_together_not_with_what_they_replace() -> None:
    settings = {"advantage": "pass_at_k", "pass_k": 16, "group_size": 16}
    assert len(read_ranges({}, "group_size=4,8 pass_k=2,4", settings)) == 2
    with pytest.raises(ConfigError, match="pass_k 8 is more than group_size 4"):
        read_ranges({}, "group_size=4,8 pass_k=2,8", settings)


def test_each_trial_is_a_run_and_the_best_comes_first(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranges = read_ranges({"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}, "group_size=2,4", settings)
    study = tune(settings, ranges, 2, tmp_path, quiet=True)
    table = capsys.readouterr().out
    values = [trial.value or 0.0 for trial in study.trials]
    best = f"trial-{values.index(max(values)):04d}"
    rows = [line for line in table.splitlines() if "trial-" in line]
    assert best in rows[0] and f"{max(values):.4f}" in rows[0] and "done" in rows[0]
    for trial in study.trials:
        run = tmp_path / f"trial-{trial.number:04d}"
        written = read_toml(run / "config.toml")
        assert {name: written[name] for name in trial.params} == trial.params
        assert len((run / "metrics.jsonl").read_text().splitlines()) == 6
        assert sorted(trial.intermediate_values) == [5]
    rewards = [json.loads(line)["reward"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert trial.intermediate_values[5] == pytest.approx(sum(rewards[:5]) / 5)


def test_the_count_is_of_all_trials_and_a_study_keeps_to_its_ranges(settings: dict[str, Any], tmp_path: Path) -> None:
    ranges = read_ranges({}, "learning_rate=1e-4:1e-2", settings)
    for count in (1, 1, 2):
        halves = tune(settings, ranges, count, tmp_path / "halves", quiet=True)
        assert len(halves.trials) == count
    whole = tune(settings, ranges, 2, tmp_path / "whole", quiet=True)
    assert [(trial.params, trial.value) for trial in halves.trials] == [(t.params, t.value) for t in whole.trials]
    with pytest.raises(ConfigError, match="holds a study with other ranges"):
        tune(settings, read_ranges({}, "learning_rate=1e-4:1e-1", settings), 3, tmp_path / "halves", quiet=True)
    with pytest.raises(ConfigError, match="holds a study with other settings"):
        tune({**settings, "steps": 7}, ranges, 3, tmp_path / "halves", quiet=True)


def test_a_trial_below_the_median_is_given_up() -> None:
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(2))
    for reward in (0.4, 0.6):
        scout = Scout(study.ask())
        for step in range(1, 11):
            scout("train", step, 11, {"reward": reward})
        study.tell(scout.trial, reward)
    scout = Scout(study.ask())
    scout("cold start", 5, 5, {})
    for step in range(1, 5):
        scout("train", step, 11, {"reward": 0.0})
    with pytest.raises(Hopeless):
        scout("train", 5, 11, {"reward": 2.4})  # the mean so far is 0.48, the median 0.5
    assert scout.trial.study.trials[-1].intermediate_values == {5: pytest.approx(0.48)}


def test_a_trial_given_up_leaves_no_worker_and_no_thread(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuning, "FREE_TRIALS", 0)
    ranges = {"cold_start_steps": CategoricalDistribution((60, 0))}  # who does not imitate first earns nothing
    study = open_study(tmp_path, parse_settings(first_choice(settings, ranges), {}), ranges)
    for steps in (60, 0):
        study.enqueue_trial({"cold_start_steps": steps})
    tune(settings, ranges, 2, tmp_path, quiet=True)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    assert not (tmp_path / "trial-0001/checkpoints/last").exists()
    assert "given up at 5" in capsys.readouterr().out
    deadline = time.monotonic() + 5
    while any(thread.name.startswith("scoring") for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("scoring")]


def test_choices_that_do_not_go_together_are_passed_over(settings: dict[str, Any], tmp_path: Path) -> None:
    ranges = read_ranges({}, "heads=2,3", settings)  # the width is 16
    study = tune(settings, ranges, 2, tmp_path / "some", quiet=True)
    assert [trial.params["heads"] for trial in finished(study)] == [2, 2]
    with pytest.raises(ConfigError, match="the ranges allow heads 5, but width 16 does not divide into 5 heads"):
        tune(settings, {"heads": CategoricalDistribution((5,))}, 1, tmp_path / "none", quiet=True)


def test_a_killed_study_goes_on_and_tries_the_lost_trial_again(settings: dict[str, Any], tmp_path: Path) -> None:
    endless = {**settings, "steps": 100_000}
    code = (
        "import sys, json; from pathlib import Path; from coterie.tuning import read_ranges, tune;"
        "settings = json.loads(sys.argv[1]);"
        "tune(settings, read_ranges({}, 'learning_rate=1e-4:1e-2', settings), 2, Path(sys.argv[2]), quiet=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, json.dumps(endless), str(tmp_path)])
    deadline = time.monotonic() + 60
    while not (tmp_path / "trial-0000/metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.kill()
    process.wait()
    ranges = read_ranges({}, "learning_rate=1e-4:1e-2", endless)
    study = open_study(tmp_path, parse_settings(first_choice(endless, ranges), {}), ranges)
    lost, again = study.trials
    assert (lost.state.name, again.state.name) == ("FAIL", "WAITING")
    assert study.ask(dict(ranges)).params == lost.params
    for _ in range(3):  # settings that kill their trial every time are left alone in the end
        study = open_study(tmp_path, parse_settings(first_choice(endless, ranges), {}), ranges)
        study.ask(dict(ranges))
    assert sum(trial.params == lost.params for trial in study.trials) == tuning.MAX_TRIES
