"""GRPO: four phases, each callable by hand, and the loop over them."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coterie.config import GRPOConfig
from coterie.engines.base import Dials, Engine, Metrics, OutOfStep, Sampling
from coterie.grpo.advantages import ADVANTAGES, clip_advantages, has_signal, with_baseline
from coterie.grpo.kl import KLS
from coterie.grpo.rewards import minus_kl, normalized_sum, overlong_penalty
from coterie.grpo.steering import adapt_entropy_coef, adapt_kl_coef
from coterie.phases import phase
from coterie.rollouts import Finish, Group, Score, Task, make_batch
from coterie.runs.checkpoints import newest_sound, point, prune, write_checkpoint
from coterie.runs.folder import RunFolder
from coterie.training.baseline import RunningBaseline
from coterie.training.curriculum import Curriculum, Standing, read_phases
from coterie.training.discoveries import Discoveries
from coterie.training.evaluate import evaluate_groups, rollout_rows, summarize
from coterie.training.guard import Guard
from coterie.training.judging import Scoring
from coterie.training.naming import also_named
from coterie.training.reference import ReferenceRule
from coterie.training.replay import Replay, ReplayRule
from coterie.training.samples import NUM_SAMPLES, Reader, read_samples
from coterie.training.schedule import learning_rate
from coterie.training.shaping import (
    Numbers,
    Scores,
    add_part,
    answer_lengths,
    part_of,
    totals_of,
    weigh_parts,
    with_part,
)
from coterie.worlds.base import Example, World


class Watcher(Protocol):
    """Told of every step; a progress display, a tracker."""

    def __call__(self, phase: str, done: int, total: int, metrics: Metrics) -> None: ...


@dataclass
class Progress:
    """How far a run is: with the engine's own state, all that resuming needs."""

    step: int = 0
    cold_step: int = 0
    num_tokens: int = 0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    best_reward: float | None = None  # the highest mean between two checkpoints
    best_name: str = ""


class Trainer:
    """Trains an engine's policy in a world. `coterie.GRPOTrainer` makes one from a configuration."""

    def __init__(
        self,
        config: GRPOConfig,
        world: World,
        engine: Engine,
        scorer: Scoring,
        run: RunFolder | None = None,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.config, self.world, self.engine, self.scorer, self.run = config, world, engine, scorer, run
        self.watchers = list(watchers)
        self.readers: list[Reader] = []
        self.progress = Progress(kl_coef=config.kl_coef, entropy_coef=config.entropy_coef)
        assert config.curriculum != "world", "build.settle turns this into the world's phases"
        phases = read_phases(config.curriculum)
        self.curriculum = Curriculum(world.tasks("train"), config.seed, phases, config.task_order)
        self.reference = ReferenceRule(config.reference, config.reference_old_share, config.reference_every)
        rule = {f: getattr(config, f"replay_{f}") for f in ReplayRule.__dataclass_fields__}
        self.replay = Replay(ReplayRule(**rule))
        self.baseline = RunningBaseline(config.baseline_memory or 0.0)
        self.discoveries = Discoveries()
        self.guard = Guard(config.guard_window, config.guard_tolerance)
        self.sampling = Sampling(
            config.temperature, config.top_p, config.top_k, config.max_tokens, fill_passes=config.fill_passes
        )
        self.stopping = False
        self._saved = Progress()
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
        """The world's verdict on every answer, and what the configuration adds to it."""
        config, scores = self.config, self.judge(rollouts)
        if any(score.identity for group in scores for score in group):
            scores = with_part(scores, "novelty", self.discoveries.novelty(scores), config.novelty_coef)
        if self._weights and config.reward_sum == "weighted_sum":
            scores = weigh_parts(scores, self._weights)
        if config.overlong == "shape":
            lengths, limit = answer_lengths(rollouts), config.max_tokens or self._longest
            scores = add_part(scores, "overlong", overlong_penalty(lengths, limit, config.overlong_buffer))
        if config.kl_coef > 0 and config.kl_in == "reward":
            batch = make_batch(rollouts, np.zeros((len(rollouts), len(scores[0]))))
            divergence = KLS[config.kl](batch.logprobs, self.engine.reference_logprobs(batch, config.temperature))
            penalty = minus_kl(np.zeros(batch.num_rows), divergence, batch.chosen, self.progress.kl_coef)
            scores = add_part(scores, "kl", penalty.reshape(len(scores), -1))
        return scores

    def compute_advantages(self, scores: Scores, tasks: Sequence[Task] | None = None) -> Numbers:
        """How much better each answer is than its siblings, or than its task's running mean."""
        config, rewards = self.config, self._rewards(scores)
        if config.baseline_memory is not None and tasks is not None:
            advantages = with_baseline(rewards, self.baseline.of(tasks, rewards))
        else:
            advantages = ADVANTAGES[config.advantage](rewards, config.pass_k) * self._with_signal(scores)[:, None]
        limit = config.advantage_limit
        return np.asarray(advantages if limit is None else clip_advantages(advantages, limit))

    def train_on_rollouts(self, rollouts: Sequence[Group], advantages: Numbers) -> Metrics:
        """Move the policy towards the answers with an advantage."""
        config, progress = self.config, self.progress
        batch = phase("pack")(make_batch)(rollouts, advantages)
        if config.overlong == "mask":
            whole = [c.finish is not Finish.LENGTH for group in rollouts for c in group.completions]
            batch = batch.rows(np.flatnonzero(whole)) if any(whole) else batch
        in_loss = config.kl_coef > 0 and config.kl_in == "loss"
        if in_loss:
            batch = replace(batch, reference=self.engine.reference_logprobs(batch, config.temperature))
        rate = learning_rate(
            progress.step, config.steps, config.learning_rate, config.warmup_steps, config.schedule, config.final_rate
        )
        dials = Dials(rate, config.temperature, progress.kl_coef if in_loss else 0.0, progress.entropy_coef)
        return {**self.engine.update(batch, dials), "learning_rate": rate}

    # The loop.

    def step(self) -> Metrics:
        """Sample, score, compare, learn."""
        progress = self.progress
        rollouts, scores, drawn_again = self._collect()
        tasks = [group.task for group in rollouts]
        advantages = self.compute_advantages(scores, tasks)
        again, replayed = self._draw_replay()
        with self._timed("learn"):
            learned = self.train_on_rollouts([*rollouts, *again], np.concatenate([advantages, replayed]))
            learned |= self._learn_in_hindsight(rollouts, scores)

        progress.step += 1
        tokens = sum(int(c.chosen.sum()) for group in rollouts for c in group.completions)
        progress.num_tokens += tokens
        self._recent_rewards.append(float(totals_of(scores).mean()))
        self._log(rollouts, scores, advantages)
        self._catalog(rollouts, scores)
        self.replay.add(progress.step, rollouts, scores)
        self._steer(learned)
        means = summarize(rollouts, scores)
        if f"rewards/{self.config.guard}" in means:
            self.guard.observe(means["reward"], means[f"rewards/{self.config.guard}"])
        return {
            **means,
            **also_named({**means, **learned}, progress.kl_coef),
            "mean_advantage": float(advantages.mean()),
            "frac_reward_zero_std": float(1 - self._with_signal(scores).mean()),
            **learned,
            **self.replay.metrics(progress.step),
            **self.discoveries.metrics(),
            "redrawn": float(drawn_again),
            **self.curriculum.metrics(),
            "num_tokens": float(progress.num_tokens),
            "tokens_per_s": tokens / self._seconds["sample"],
            **{f"time/{phase}": seconds for phase, seconds in self._seconds.items()},
            "step_time": sum(self._seconds.values()),
        }

    def _collect(self) -> tuple[list[Group], list[list[Score]], int]:
        """A step's groups with their scores; those without signal are drawn again, with other tasks."""
        groups: list[Group] = []
        scores: list[list[Score]] = []
        wanted = drawn = self.config.prompts_per_step
        self._seconds = {"sample": 0.0, "score": 0.0}
        for rounds_left in range(self.config.redraws, -1, -1):
            tasks = self.curriculum.draw(wanted - len(groups))
            with self._timed("sample"):
                fresh = self.generate_rollouts(tasks)
            with self._timed("score"):
                verdicts = self.compute_rewards(fresh)
            self.curriculum.observe(tasks, part_of(verdicts, "success").mean(1).tolist())
            kept = self._with_signal(verdicts) | (rounds_left == 0)
            groups += [group for group, keep in zip(fresh, kept, strict=True) if keep]
            scores += [verdict for verdict, keep in zip(verdicts, kept, strict=True) if keep]
            if len(groups) == wanted:
                return groups, scores, drawn - wanted
            drawn += wanted - len(groups)
        raise AssertionError("the last round keeps all")

    def _draw_replay(self) -> tuple[list[Group], Numbers]:
        """Groups of earlier steps, and what their answers are worth now."""
        count = round(self.config.replay_share * self.config.prompts_per_step)
        rng = np.random.default_rng([self.config.seed, self.progress.step])
        kept, weights = self.replay.draw(self.progress.step, count, rng)
        if not kept:
            return [], np.zeros((0, self.config.group_size))
        advantages = self.compute_advantages([entry.scores for entry in kept])
        return [entry.group for entry in kept], advantages * weights[:, None]

    def _learn_in_hindsight(self, rollouts: Sequence[Group], scores: Scores) -> Metrics:
        """Imitate failed answers as answers to what they did achieve."""
        if self.config.hindsight == 0:
            return {}
        failed = (
            (group.task, answer)
            for group, verdicts in zip(rollouts, scores, strict=True)
            for answer, score in zip(group.answers, verdicts, strict=True)
            if score.valid and not score.success
        )
        meant = ((self.world.relabel(task, answer), answer) for task, answer in failed)
        found = list(islice((Example(task, answer) for task, answer in meant if task), self.config.hindsight))
        if found:
            self.engine.imitate(found, self.config.learning_rate)
        return {"hindsight": float(len(found))}

    def _steer(self, learned: Metrics) -> None:
        """Let coefficients follow their targets, and the reference its rule."""
        config, progress = self.config, self.progress
        if config.kl_target is not None and "kl" in learned:
            progress.kl_coef = adapt_kl_coef(progress.kl_coef, learned["kl"], config.kl_target)
            learned["kl_coef"] = progress.kl_coef
        if config.entropy_target is not None and "entropy" in learned:
            progress.entropy_coef = adapt_entropy_coef(progress.entropy_coef, learned["entropy"], config.entropy_target)
            learned["entropy_coef"] = progress.entropy_coef
        if config.kl_coef > 0:
            self.reference.follow(self.engine, progress.step)

    @property
    def _longest(self) -> int:
        """The longest answer that can be written."""
        language = self.world.language()
        assert language is not None
        return language.max_tokens

    @property
    def _weights(self) -> dict[str, float]:
        """Of the parts of a score: the phase's, or else the run's."""
        return dict(self.curriculum.phase.weights or self.config.reward_parts)

    def _rewards(self, scores: Scores) -> Numbers:
        """[P, G]: the numbers that are compared."""
        if self._weights and self.config.reward_sum == "normalized_sum":
            parts = np.stack([part_of(scores, name) for name in self._weights])
            return np.asarray(normalized_sum(parts, np.array(list(self._weights.values()))))
        return totals_of(scores)

    def _with_signal(self, scores: Scores) -> NDArray[np.bool_]:
        """[P]: whether the answers of a group differ in the chosen metric."""
        name = self.config.signal
        metric = self._rewards(scores) if name == "reward" else part_of(scores, name)
        return np.asarray(has_signal(metric, self.config.signal_tolerance))

    def judge(self, rollouts: Sequence[Group]) -> list[list[Score]]:
        """The verdict alone: the world's, or that of the judge in its place."""
        return self.scorer.score_groups(rollouts)

    def train(self) -> Metrics:
        """Cold start, then every step that is left; saves as it goes, and when asked to stop."""
        metrics: Metrics = {}
        config, progress = self.config, self.progress
        self.cold_start()
        if progress.step < config.steps and not self.stopping:
            self.scorer.prepare()
        while progress.step < config.steps and not self.stopping and not self.guard.parted:
            try:
                metrics = self.step()
            except OutOfStep as error:
                raise OutOfStep(f"{error}; {self._last_checkpoint()}") from error
            if config.eval_every and progress.step % config.eval_every == 0:
                metrics |= {f"eval/{name}": value for name, value in self.evaluate().items()}
            self.tell("train", progress.step, config.steps, metrics)
            if self.readers and config.sample_every and progress.step % config.sample_every == 0:
                self.show_samples()
            if self.run:
                self.run.log_metrics(progress.step, metrics)
                if progress.step % config.save_every == 0 or progress.step == config.steps:
                    self.save()
        if self.run and (self.stopping or self.guard.parted) and self._saved != progress:
            self.save()
        return metrics

    def evaluate(self, split: str = "heldout", num_tasks: int | None = None, num_samples: int | None = None) -> Metrics:
        """Judge the policy on tasks of a split; training then goes on as if nothing had happened."""
        groups = self.answer(self.pick_tasks(split, num_tasks), num_samples)
        return evaluate_groups(groups, self.judge(groups))

    def show_samples(self) -> None:
        """Let people read what the policy makes of some held-out tasks, always the same ones."""
        groups = self.answer(self.pick_tasks("heldout", NUM_SAMPLES), 1)
        samples = read_samples(self.world, groups, self.judge(groups))
        for reader in self.readers:
            reader(self.progress.step, samples)

    def pick_tasks(self, split: str, num_tasks: int | None = None) -> list[Task]:
        """Some tasks of a split, always the same ones for the same seed."""
        tasks = self.world.tasks(split)
        order = np.random.default_rng(self.config.seed).permutation(len(tasks))
        return [tasks[i] for i in order[: num_tasks or self.config.eval_tasks]]

    def answer(self, tasks: Sequence[Task], num_samples: int | None = None) -> list[Group]:
        """Sample as in training, but from a random stream of its own, fixed by the seed."""
        temperature = self.config.eval_temperature
        sampling = replace(self.sampling, seed=self.config.seed)
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)
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
            self.tell("cold start", progress.cold_step, steps, {**metrics, "step_time": self._seconds.pop("imitate")})
            if self.run and (progress.cold_step % (10 * config.save_every) == 0 or progress.cold_step == steps):
                self.save()

    @property
    def _cold_steps(self) -> int:
        return self.config.cold_start_steps if len(self.world.examples()) else 0

    @property
    def _in_cold_start(self) -> bool:
        return self.progress.step == 0 and self.progress.cold_step < self._cold_steps

    # What stays.

    @phase("save")
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
            self.replay.save(aside)
            (aside / "progress.json").write_text(json.dumps(asdict(progress), indent=1))
            memory = {
                "curriculum": asdict(self.curriculum.standing),
                "baseline": self.baseline.means,
                "discoveries": self.discoveries.counts,
                "guard": self.guard.state(),
            }
            (aside / "memory.json").write_text(json.dumps(memory))

        path = write_checkpoint(folder, name, fill)
        self._saved = replace(progress)
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
        memory = json.loads((checkpoint / "memory.json").read_text())
        self.curriculum.standing = Standing(**memory["curriculum"])
        self.baseline.means = memory["baseline"]
        self.discoveries.counts = memory.get("discoveries", {})  # runs that began before there were any
        self.guard.restore(**memory["guard"])
        self.replay.load(checkpoint, {task.id: task for task in self.world.tasks("train")})
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

    def _log(self, rollouts: Sequence[Group], scores: Scores, advantages: Numbers) -> None:
        """Some answers of the step with what they were worth; those the world failed on come first."""
        if self.run is None:
            return
        rows = rollout_rows(rollouts, scores, advantages)
        self.run.log_rollouts(self.progress.step, rows[: self.config.rollouts_logged])

    def _catalog(self, rollouts: Sequence[Group], scores: Scores) -> None:
        """Successes that the run had not found before."""
        new = self.discoveries.add(self.world, rollouts, scores)
        if self.run and new:
            self.run.log_discoveries(self.progress.step, new, self.world.catalog)

    def tell(self, phase: str, done: int, total: int, metrics: Metrics) -> None:
        """Let all watchers know."""
        for watcher in self.watchers:
            watcher(phase, done, total, metrics)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        with phase(name):
            yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started
