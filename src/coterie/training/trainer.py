"""GRPO: four phases, each callable by hand, and the loop over them."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coterie.config import GRPOConfig
from coterie.engines.base import Engine, Metrics, OutOfStep, Sampling
from coterie.grpo.advantages import has_signal, standardized
from coterie.rollouts import Group, Score, Task, make_batch
from coterie.runs.checkpoints import newest_sound, point, prune, write_checkpoint
from coterie.runs.folder import RunFolder
from coterie.training.evaluate import evaluate_groups, summarize
from coterie.training.schedule import learning_rate
from coterie.training.tasks import TaskCursor
from coterie.worlds.base import World
from coterie.worlds.scoring import Scorer

Scores = Sequence[Sequence[Score]]  # [P][G]
Advantages = NDArray[np.float64]  # [P, G]


class Watcher(Protocol):
    """Told of every step; a progress display, a tracker."""

    def __call__(self, phase: str, done: int, total: int, metrics: Metrics) -> None: ...


@dataclass
class Progress:
    """How far a run is: with the engine's own state, all that resuming needs."""

    step: int = 0
    cold_step: int = 0
    tasks_drawn: int = 0
    num_tokens: int = 0
    best_reward: float | None = None  # the highest mean between two checkpoints
    best_name: str = ""


class Trainer:
    """Trains an engine's policy in a world. `coterie.GRPOTrainer` makes one from a configuration."""

    def __init__(
        self,
        config: GRPOConfig,
        world: World,
        engine: Engine,
        scorer: Scorer,
        run: RunFolder | None = None,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.config, self.world, self.engine, self.scorer, self.run = config, world, engine, scorer, run
        self.watchers = list(watchers)
        self.progress = Progress()
        self.tasks = TaskCursor(world.tasks("train"), config.seed)
        self.sampling = Sampling(config.temperature, config.top_p, config.max_tokens)
        self.stopping = False
        self._recent_rewards: list[float] = []
        self._seconds: dict[str, float] = {}

    # The four phases.

    def generate_rollouts(
        self, tasks: Sequence[Task], group_size: int | None = None, sampling: Sampling | None = None
    ) -> list[Group]:
        """Answer each task group_size times. Finished groups are scored while others are still sampled."""
        groups: dict[int, Group] = {}
        drawn = self.engine.sample(tasks, group_size or self.config.group_size, sampling or self.sampling)
        for place, group in drawn:
            self.scorer.prefetch(group.task, group.answers)
            groups[place] = group
        return [groups[place] for place in range(len(tasks))]

    def compute_rewards(self, rollouts: Sequence[Group]) -> list[list[Score]]:
        """The world's verdict on every answer."""
        return [self.scorer.score(group.task, group.answers) for group in rollouts]

    def compute_advantages(self, scores: Scores) -> Advantages:
        """How much better each answer is than its siblings."""
        advantages: Advantages = standardized(np.array([[s.total for s in group] for group in scores]))
        return advantages

    def train_on_rollouts(self, rollouts: Sequence[Group], advantages: Advantages) -> Metrics:
        """Move the policy towards the answers with an advantage."""
        batch = make_batch(rollouts, advantages)
        if self.config.kl_coef > 0:
            if self.progress.step == 0:
                self.engine.blend_reference(0.0)
            batch = replace(batch, reference=self.engine.reference_logprobs(batch, self.config.temperature))
        c = self.config
        rate = learning_rate(self.progress.step, c.steps, c.learning_rate, c.warmup_steps, c.schedule, c.final_rate)
        return {**self.engine.update(batch, rate, c.temperature), "learning_rate": rate}

    # The loop.

    def step(self) -> Metrics:
        """Sample, score, compare, learn."""
        tasks = self.tasks.draw(self.config.prompts_per_step)
        with self._timed("sample"):
            rollouts = self.generate_rollouts(tasks)
        with self._timed("score"):
            scores = self.compute_rewards(rollouts)
        advantages = self.compute_advantages(scores)
        rewards = np.array([[score.total for score in group] for group in scores])
        with self._timed("learn"):
            learned = self.train_on_rollouts(rollouts, advantages)

        tokens = sum(int(c.chosen.sum()) for group in rollouts for c in group.completions)
        self.progress.step += 1
        self.progress.tasks_drawn = self.tasks.drawn
        self._recent_rewards.append(float(rewards.mean()))
        self.progress.num_tokens += tokens
        metrics = {
            **summarize(rollouts, scores),
            "frac_reward_zero_std": float(1 - has_signal(rewards).mean()),
            **learned,
            "num_tokens": float(self.progress.num_tokens),
            "tokens_per_s": tokens / self._seconds["sample"],
            **{f"time/{phase}": seconds for phase, seconds in self._seconds.items()},
            "step_time": sum(self._seconds.values()),
        }
        self._log(rollouts, scores, advantages)
        return metrics

    def train(self) -> Metrics:
        """Cold start, then every step that is left; saves as it goes, and when asked to stop."""
        metrics: Metrics = {}
        config, progress = self.config, self.progress
        self.cold_start()
        while progress.step < config.steps and not self.stopping:
            try:
                metrics = self.step()
            except OutOfStep as error:
                raise OutOfStep(f"{error}; {self._last_checkpoint()}") from error
            if config.eval_every and progress.step % config.eval_every == 0:
                metrics |= {f"eval/{name}": value for name, value in self.evaluate().items()}
            self._tell("train", progress.step, config.steps, metrics)
            if self.run:
                self.run.log_metrics(progress.step, metrics)
                if progress.step % config.save_every == 0 or progress.step == config.steps or self.stopping:
                    self.save()
        return metrics

    def evaluate(self, split: str = "heldout", num_tasks: int | None = None, num_samples: int | None = None) -> Metrics:
        """Judge the policy on tasks of a split; training then goes on as if nothing had happened."""
        groups = self.answer(self.pick_tasks(split, num_tasks), num_samples)
        return evaluate_groups(groups, self.compute_rewards(groups))

    def pick_tasks(self, split: str, num_tasks: int | None = None) -> list[Task]:
        """Some tasks of a split, always the same ones for the same seed."""
        tasks = self.world.tasks(split)
        order = np.random.default_rng(self.config.seed).permutation(len(tasks))
        return [tasks[i] for i in order[: num_tasks or self.config.eval_tasks]]

    def answer(self, tasks: Sequence[Task], num_samples: int | None = None) -> list[Group]:
        """Sample as in training, but from a random stream of its own, fixed by the seed."""
        sampling = replace(self.sampling, seed=self.config.seed)
        return self.generate_rollouts(tasks, num_samples or self.config.eval_samples, sampling)

    def cold_start(self) -> None:
        """Imitate the world's examples, as far as that is not done yet."""
        config, progress, examples, steps = self.config, self.progress, self.world.examples(), self._cold_steps
        while progress.cold_step < steps and progress.step == 0 and not self.stopping:
            place = progress.cold_step
            chosen = np.random.default_rng([config.seed, place]).integers(0, len(examples), config.cold_start_batch)
            rate = learning_rate(place, steps, config.cold_start_rate, min(30, steps // 10), "cosine", 0.1)
            with self._timed("imitate"):
                metrics = self.engine.imitate([examples[int(i)] for i in chosen], rate)
            progress.cold_step += 1
            self._tell("cold start", progress.cold_step, steps, {**metrics, "step_time": self._seconds.pop("imitate")})
            due = progress.cold_step % (10 * config.save_every) == 0 or progress.cold_step == steps
            if self.run and (due or self.stopping):
                self.save()

    @property
    def _cold_steps(self) -> int:
        return self.config.cold_start_steps if len(self.world.examples()) else 0

    @property
    def _in_cold_start(self) -> bool:
        return self.progress.step == 0 and self.progress.cold_step < self._cold_steps

    # What stays.

    def save(self) -> Path:
        """Write a checkpoint, point `last` and, where earned, `best` to it, and drop old ones."""
        assert self.run is not None, "a trainer without a run folder has nowhere to save"
        progress, folder = self.progress, self.run.checkpoints
        name = f"cold-{progress.cold_step:06d}" if self._in_cold_start else f"step-{progress.step:06d}"
        if self._recent_rewards:
            reward = float(np.mean(self._recent_rewards))
            if progress.best_reward is None or reward > progress.best_reward:
                progress.best_reward, progress.best_name = reward, name
            self._recent_rewards.clear()

        def fill(aside: Path) -> None:
            self.engine.save(aside)
            (aside / "progress.json").write_text(json.dumps(asdict(progress), indent=1))

        path = write_checkpoint(folder, name, fill)
        if progress.best_name == name:
            point(folder, "best", name)
        prune(folder, self.config.keep_checkpoints, (progress.best_name,))
        self.run.write_stats({**asdict(progress), "steps": self.config.steps, "metrics": self.run.metrics()[-1:]})
        return path

    def resume(self, warn: Callable[[str], None] = warnings.warn) -> bool:
        """Go back to the newest sound checkpoint; False if there is none yet, and the run starts anew."""
        assert self.run is not None
        checkpoint = newest_sound(self.run.checkpoints, warn)
        if checkpoint is None:
            self.run.rewind(0)
            return False
        self.engine.load(checkpoint)
        self.progress = Progress(**json.loads((checkpoint / "progress.json").read_text()))
        self.tasks.drawn = self.progress.tasks_drawn
        self.run.rewind(self.progress.step)
        return True

    @property
    def place(self) -> str:
        """How far the run is, in words."""
        return f"cold start {self.progress.cold_step}" if self._in_cold_start else f"step {self.progress.step}"

    def stop(self) -> None:
        """Finish the step, save, and return from train()."""
        self.stopping = True

    def _last_checkpoint(self) -> str:
        found = newest_sound(self.run.checkpoints, warnings.warn) if self.run else None
        return f"the last good checkpoint is {found}" if found else "there is no checkpoint"

    def _log(self, rollouts: Sequence[Group], scores: Scores, advantages: Advantages) -> None:
        """Some answers of the step with what they were worth; those the world failed on come first."""
        if self.run is None:
            return
        rows: list[dict[str, Any]] = [
            {
                "task": group.task.id,
                "answer": completion.text,
                "finish": completion.finish.value,
                **asdict(score),
                "advantage": float(advantage),
            }
            for group, verdicts, row in zip(rollouts, scores, advantages, strict=True)
            for completion, score, advantage in zip(group.completions, verdicts, row, strict=True)
        ]
        rows.sort(key=lambda row: not row["fault"])
        self.run.log_rollouts(self.progress.step, rows[: self.config.rollouts_logged])

    def _tell(self, phase: str, done: int, total: int, metrics: Metrics) -> None:
        for watcher in self.watchers:
            watcher(phase, done, total, metrics)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[phase] = time.perf_counter() - started
