"""Searches settings: many short runs over named ranges, the hopeless ones cut short, by Optuna."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.aliases import ALIASES
from coterie.build import GRPOTrainer
from coterie.config import ConfigError, GRPOConfig, parse_settings
from coterie.display import Display, show_table
from coterie.engines.base import Metrics, OutOfStep
from coterie.extras import require
from coterie.worlds.load import world_fields

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

Settings = Mapping[str, Any]
Ranges = Mapping[str, "BaseDistribution"]

REPORT_EVERY = 5  # steps between looks at a trial's reward
FREE_TRIALS = 5  # that run to their end before any is cut short
MAX_TRIES = 3  # of settings whose trial was killed: they may be what killed it
MAX_REFUSED = 10  # choices that do not go together, such as a width that the heads do not divide
NEVER_SEARCHED = ("out", "world", "world_options")
# What may change when a study goes on, for example on another machine.
FREE_TO_CHANGE = {"out", "device", "threads", "workers", "log_every", "track"}


class Hopeless(Exception):
    """A trial that does worse than most did by now."""


def read_ranges(table: Any, text: str, settings: Settings) -> dict[str, BaseDistribution]:
    """The ranges of a [tune] table and of the command line, which counts where both name a setting.

    In the table: learning_rate = {low = 1e-5, high = 1e-3, log = true}, group_size = [4, 8, 16]; as text:
    "learning_rate=1e-5:1e-3:log group_size=4,8,16".
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"tune = {table!r} will not do: write a table, as in [tune] and group_size = [4, 8]")
    wanted = {_plain(name): value for name, value in table.items()}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word!r} names no range: write NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C")
        wanted[_plain(name)] = _read_text(value)
    if not wanted:
        raise ConfigError("there is nothing to search: write a [tune] table, or --ranges 'group_size=4,8,16'")
    fields = world_fields(settings.get("world", "bricks"))
    defaults = {**fields, **{name: field.default for name, field in GRPOConfig.model_fields.items()}}
    ranges = {name: _read_range(name, value, defaults.get(name)) for name, value in wanted.items()}
    for name, found in ranges.items():
        for value in _ends(found):
            parse_settings({**first_choice(settings, ranges), name: value}, fields)
    return ranges


def first_choice(settings: Settings, ranges: Ranges) -> dict[str, Any]:
    """The settings with each range at its first value; the settings alone need not go together."""
    return {**settings, **{name: _ends(found)[0] for name, found in ranges.items()}}


def _plain(name: str) -> str:
    name = name.replace("-", "_")
    return ALIASES.get(name, name)


def _ends(found: Any) -> tuple[Any, ...]:
    """The choices, or the least and the most."""
    choices = isinstance(found, require("optuna", "tune").distributions.CategoricalDistribution)
    return found.choices if choices else (found.low, found.high)


def _read_text(text: str) -> Any:
    """LOW:HIGH, LOW:HIGH:log or A,B,C as a table would have it."""
    if ":" not in text:
        return [_literal(word) for word in text.split(",") if word]
    low, high, *rest = text.split(":")
    if rest not in ([], ["log"]):
        raise ConfigError(f"{text!r} is no range: write LOW:HIGH or LOW:HIGH:log")
    return {"low": _literal(low), "high": _literal(high), "log": bool(rest)}


def _literal(word: str) -> Any:
    try:
        return json.loads(word)  # numbers, true and false are JSON's
    except ValueError:
        return word


def _read_range(name: str, value: Any, default: Any) -> BaseDistribution:
    """One entry of the table; `default` is the setting's, which tells whole numbers from others."""
    kinds: Any = require("optuna", "tune").distributions
    if name in NEVER_SEARCHED:
        raise ConfigError(f"{name} cannot be searched: write it once, outside of the ranges")
    if value == []:
        raise ConfigError(f"the range of {name} is empty: write {name} = [A, B, …]")
    if isinstance(value, list) and all(isinstance(choice, str | bool | int | float) for choice in value):
        return kinds.CategoricalDistribution(value)  # type: ignore[no-any-return]
    if not isinstance(value, Mapping) or not {"low", "high"} <= value.keys() <= {"low", "high", "log"}:
        raise ConfigError(f"the range of {name} is {value!r}: write [A, B, …] or {{low = A, high = B, log = true}}")
    low, high, log = value["low"], value["high"], bool(value.get("log", False))
    if not all(type(end) in (int, float) for end in (low, high)):
        raise ConfigError(f"the range of {name} needs numbers for low and high, not {low!r} and {high!r}")
    if not low < high:
        raise ConfigError(f"the range of {name} runs from {low:g} to {high:g}: write the smaller number first")
    if log and low <= 0:
        raise ConfigError(f"the range of {name} starts at {low:g}: with log it must start above 0")
    whole = isinstance(low, int) and isinstance(high, int) and not isinstance(default, float)
    kind = kinds.IntDistribution if whole else kinds.FloatDistribution
    return kind(low, high, log=log)  # type: ignore[no-any-return]


def open_study(out: Path, config: GRPOConfig, ranges: Ranges) -> Study:
    """The study kept in this folder, or a new one; trials that a kill left unfinished are queued again."""
    optuna = require("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
    study: Study = optuna.create_study(
        storage=f"sqlite:///{out / 'study.db'}",  # a kill in the midst of a write leaves it whole
        study_name="tune",
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(FREE_TRIALS, n_warmup_steps=config.steps // 5),
    )
    meant = {
        "settings": config.model_dump(mode="json", exclude=FREE_TO_CHANGE),
        "ranges": {name: str(found) for name, found in ranges.items()},
    }
    for what, value in meant.items():
        if study.user_attrs.get(what, value) != value:
            raise ConfigError(f"{out} holds a study with other {what}: choose another --out, or remove it")
        study.set_user_attr(what, value)
    for trial in study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING]):
        tries = trial.user_attrs.get("tries", 1)
        if tries < MAX_TRIES and trial.params:
            study.enqueue_trial(trial.params, user_attrs={"tries": tries + 1})
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study


def tune(settings: Settings, ranges: Ranges, num_trials: int, out: Path, quiet: bool) -> Study:
    """Run trials until `num_trials` have finished, in this and in earlier calls; then show the table."""
    optuna = require("optuna", "tune")
    fields = world_fields(settings.get("world", "bricks"))
    config = parse_settings(first_choice(settings, ranges), fields)
    study = open_study(out, config, ranges)
    refused = 0
    while len(finished(study)) < num_trials:
        # Seeded anew for each trial, so that a study that was stopped goes on as if it had not been.
        study.sampler = optuna.samplers.TPESampler(seed=config.seed + len(study.get_trials(deepcopy=False)))
        trial = study.ask(dict(ranges))
        folder = out / f"trial-{trial.number:04d}"
        try:
            chosen = parse_settings({**settings, **trial.params, "out": str(folder)}, fields)
            study.tell(trial, run_trial(chosen, trial, quiet))
        except (Hopeless, OutOfStep):
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        except ConfigError as error:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            refused += 1
            if refused == MAX_REFUSED:
                raise ConfigError(f"the ranges allow {_words(trial.params)}, but {error}") from None
    show_trials(study, out)
    return study


def finished(study: Study) -> list[FrozenTrial]:
    """Those that came to an end, their own or an early one."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in ("COMPLETE", "PRUNED")]


def run_trial(config: GRPOConfig, trial: Trial, quiet: bool) -> float:
    """Train with one choice of settings; its worth is the mean reward on held-out tasks."""
    with Display(config.log_every, quiet) as display:
        trainer = GRPOTrainer(config, watchers=[display, Scout(trial)])
        with trainer.scorer:
            display.say(f"trial {trial.number}: {_words(trial.params)}")
            trainer.train()
            return trainer.evaluate()["reward"]


class Scout:
    """A watcher that reports the mean reward so far, and gives a trial up when the pruner says so."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.rewards: list[float] = []

    def __call__(self, phase: str, done: int, total: int, metrics: Metrics) -> None:
        if phase != "train":
            return
        self.rewards.append(metrics["reward"])
        if done % REPORT_EVERY == 0 and done < total:
            self.trial.report(sum(self.rewards) / len(self.rewards), done)
            if self.trial.should_prune():
                raise Hopeless(f"trial {self.trial.number} was given up after step {done}")


def show_trials(study: Study, out: Path) -> None:
    """The best first; then those given up, by how far they came."""
    names = dict.fromkeys(name for trial in study.trials for name in trial.params)
    states = {"COMPLETE": "done", "PRUNED": "given up", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}

    def row(trial: FrozenTrial) -> list[str]:
        value = f"{trial.value:.4f}" if trial.state.name == "COMPLETE" else ""
        step = f" at {trial.last_step}" if trial.state.name == "PRUNED" else ""
        params = [_short(trial.params.get(name, "")) for name in names]
        return [f"trial-{trial.number:04d}", value, states[trial.state.name] + step, *params]

    def rank(trial: FrozenTrial) -> tuple[bool, float, int]:
        return trial.state.name != "COMPLETE", -(trial.value or 0.0), -(trial.last_step or 0)

    header = ("", "reward", "state", *names)
    show_table(f"{out}: mean reward on held-out tasks", header, map(row, sorted(study.trials, key=rank)))


def _words(params: Settings) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in params.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
