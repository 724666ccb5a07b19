"""What each command does; a command's docstring is its help."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from coterie import answers
from coterie.answers import find_task, show_parts
from coterie.arguments import UsageError, Words
from coterie.assembly import Assembler, Assembly, Built
from coterie.build import GRPOTrainer, default_out, find_policy, read_run_config, settle, writes_text
from coterie.chatting import chat
from coterie.config import ConfigError, GRPOConfig, parse_settings, read_toml, write_toml
from coterie.demo import SETTINGS, run_demo
from coterie.display import Display, show_table
from coterie.explain import explain as explain_config
from coterie.judges import FOLDER as JUDGE_FOLDER
from coterie.judges import obtain_judge
from coterie.report.pictures import contact_sheet
from coterie.report.plots import plot_curves
from coterie.rollouts import Score, Task
from coterie.runs.folder import RunFolder
from coterie.stopping import stops_gently
from coterie.training.samples import Sample, has_passages
from coterie.tuning import read_ranges
from coterie.tuning import tune as search
from coterie.worlds.bricks import BricksWorld
from coterie.worlds.load import load_world, world_fields

# What eval and sample may set otherwise than the run did.
SAMPLING_NAMES = ("temperature", "top_p", "fill_passes", "max_tokens", "seed", "device", "threads")


def train(words: Words, only_cold_start: bool = False) -> int:
    if words.pop_flag("eval_only"):
        return evaluate_only(words)
    quiet, profile = words.pop_flag("quiet"), words.pop_flag("profile")
    resume = words.pop("resume")
    run = None
    if resume is None:
        config = read_target(words)
        out = config.out or default_out(config, "-pretrained" if only_cold_start else "")
        config = config.model_copy(update={"out": out, **({"steps": 0, "passes": None} if only_cold_start else {})})
    elif words.alone:
        raise UsageError(f"--resume takes the run folder alone, without {words.alone[0]!r}")
    else:
        run = RunFolder.open(Path(resume))
        saved = read_toml(run.path / "config.toml")
        config = parse_settings({**saved, **words.named}, world_fields(saved["world"]))
    with Display(config.log_every, quiet) as display:
        trainer = GRPOTrainer(config, run=run, watchers=[display], say=display.say)
        trainer.readers += [partial(show_samples, display)] if has_passages(trainer.world) else []
        with trainer.scorer:
            display.say(trainer.engine.describe())
            if run is not None:
                run.write_config(write_toml(config))
                found = trainer.resume(display.warn)
                display.say(f"going on after {trainer.place}" if found else "no checkpoint yet: starting anew")
            with stops_gently(trainer, display):
                metrics = train_in_profile(trainer, display) if profile else trainer.train()
    assert trainer.run is not None
    path = trainer.run.path
    if trainer.guard.parted:
        display.say(
            f"Stopped after {trainer.place}: {trainer.guard.parted}. To go on all the same: "
            f"coterie train --resume {path} --guard-window 0"
        )
    elif only_cold_start and not trainer.stopping:
        display.say(f"Done. The policy is in {path}. Try: coterie train {config.world} --generator-checkpoint {path}")
    elif trainer.progress.step < config.steps or only_cold_start:
        display.say(f"Stopped after {trainer.place}. To go on: coterie train --resume {path}")
    else:
        reward = f"reward {metrics['reward']:.3f}. " if metrics else ""
        display.say(f"Done: {reward}The run is in {path}. Try: coterie eval {path}")
    return 0


def train_in_profile(trainer: GRPOTrainer, display: Display) -> dict[str, float]:
    """Train, and say where the time went."""
    from coterie.engines.torch.profile import profiling

    assert trainer.run is not None
    with profiling(trainer.run.path, trainer.config.device) as profile:
        trainer.watchers.append(profile)
        metrics = trainer.train()
    if profile.steps_timed == 0:
        display.warn("--profile times the third step and those after it, and there was none; set steps to 3 or more")
    elif not display.quiet:
        show_table(f"{profile.steps_timed} steps", ("phase", "s a step", "share", "calls"), profile.rows())
    display.say(f"More in {trainer.run.path}/profile.json and profile.txt")
    return metrics


def evaluate_only(words: Words) -> int:
    """`train --eval-only --checkpoint RUN --eval-episodes N`, as other trainers have it: N answers, judged."""
    episodes = words.pop_number("eval_episodes", 100) or 100
    trainer = GRPOTrainer(read_target(words).model_copy(update={"out": None}))
    tasks = trainer.pick_tasks("heldout", episodes)
    with trainer.scorer:
        metrics = trainer.evaluate("heldout", len(tasks), -(-episodes // len(tasks)))
    show_metrics(f"{episodes} answers", metrics)
    return 0


def show_metrics(title: str, metrics: Mapping[str, float]) -> None:
    show_table(title, ("", "mean"), [(name, f"{value:.4g}") for name, value in metrics.items()])


def pretrain(words: Words) -> int:
    """\
coterie pretrain WORLD | FILE.toml | my_world.py [--name value …]

The cold start alone: the policy imitates the world's examples. The run folder can be named after
--generator-checkpoint in train-judge and train. Settings are those of `coterie train`.

  coterie pretrain fill --cold-start-steps 2000 --out runs/generator
"""
    return train(words, only_cold_start=True)


def train_judge(words: Words) -> int:
    """\
coterie train-judge WORLD | FILE.toml --generator-checkpoint RUN [--out DIR] [--name value …]

Trains a judge to tell texts that the generator filled in from true ones, and tells how well it does on held-out text.
Without --generator-checkpoint the generator is pretrained first. DIR can be named after --judge-checkpoint in train.

  coterie train-judge fill --generator-checkpoint runs/generator --out runs/judge
"""
    quiet = words.pop_flag("quiet")
    config = read_target(words)
    folder = Path(config.out or default_out(config, "-judge"))
    if folder.exists():
        raise UsageError(f"{folder} is already there; choose another --out")
    config = config.model_copy(update={"out": None, "judge": "new", "track": ""})
    with Display(config.log_every, quiet) as display:
        trainer = GRPOTrainer(config, watchers=[display], say=display.say)
        with trainer.scorer, stops_gently(trainer, display):
            display.say(trainer.engine.describe())
            trainer.cold_start()
            obtain_judge(trainer, display.say, folder)
    display.say(f"Done. The judge is in {folder}. Try: coterie train {config.world} --judge-checkpoint {folder}")
    return 0


def show_samples(display: Display, step: int, samples: Sequence[Sample]) -> None:
    for sample in samples:
        heading = f"step {step}, {sample.task.id}: {sample.score.total:.3f}"
        display.show(heading, [(passage.title, passage.pieces) for passage in sample.passages])


def read_settings(words: Words) -> dict[str, Any]:
    """Names and values from a world's name, a world's file or a TOML file, and the options."""
    target = words.alone[0] if words.alone else words.pop("config")
    if len(words.alone) > 1:
        raise UsageError(f"coterie takes one world or file, not {words.alone}")
    if target is None:
        raise UsageError("name a world, a TOML file or a Python file, as in: coterie train bricks")
    settings: dict[str, Any] = read_toml(Path(target)) if target.endswith(".toml") else {"world": target}
    settings |= words.named
    world = settings.setdefault("world", "bricks")
    if not isinstance(world, str):
        raise ConfigError(f"world = {world!r} will not do: write a name or a file")
    return settings


def read_target(words: Words) -> GRPOConfig:
    """The configuration that is named; its [tune] table is for `coterie tune`."""
    settings = read_settings(words)
    settings.pop("tune", None)
    return parse_settings(settings, world_fields(settings["world"]))


def open_run(words: Words) -> tuple[RunFolder, GRPOTrainer]:
    """A run's trainer with the policy of its newest checkpoint, or of the one that --checkpoint names."""
    run = RunFolder.open(Path(words.one("RUN")))
    config = read_run_config(run)
    changes: dict[str, Any] = {name: words.named.pop(name) for name in SAMPLING_NAMES if name in words.named}
    if "temperature" in changes:
        changes["eval_temperature"] = changes["temperature"]
    config = parse_settings({**config.model_dump(exclude={"out", "track"}), **changes}, world_fields(config.world))
    checkpoint = run.find_checkpoint(Display(1).warn, words.pop("checkpoint"))
    if config.judge in ("auto", "new"):  # the run's own, if it came so far; none is trained only to look at a policy
        judge = run.path / JUDGE_FOLDER
        config = config.model_copy(update={"judge": str(judge) if judge.is_dir() else "none"})
    trainer = GRPOTrainer(config, say=lambda _: None)
    trainer.engine.load_policy(find_policy(checkpoint))
    return run, trainer


def evaluate(words: Words) -> int:
    """\
coterie eval RUN [--tasks 200] [--samples 1] [--split heldout] [--temperature T] [--checkpoint best] [--json]

Judges the policy on held-out tasks: pass@1, pass@k and the best of k for k samples, validity, each part of the
reward. For bricks, --rejection, --rollback and --best-of N build as BrickGPT does, one structure at a time.

  coterie eval runs/first --tasks 500 --samples 8 --temperature 0.7
"""
    tasks, samples = words.pop_number("tasks", 200), words.pop_number("samples", 1)
    as_json, split = words.pop_flag("json"), words.pop("split", "heldout")
    how = read_assembly(words)
    if split not in ("train", "heldout"):
        raise UsageError(f"--split is train or heldout, not {split!r}")
    run, trainer = open_run(words)
    words.finish("eval")
    with trainer.scorer:
        if how is None:
            metrics = trainer.evaluate(str(split), tasks, samples)
        else:
            assembler = make_assembler(trainer, how)
            metrics = sum_up([assembler.build(task) for task in trainer.pick_tasks(str(split), tasks)])
    if as_json:
        print(json.dumps({"run": str(run.path), "split": split, **metrics}))
    else:
        show_metrics(f"{run.path} on {tasks} {split} tasks", metrics)
    return 0


def sample(words: Words) -> int:
    """\
coterie sample RUN [--prompt TEXT] [--num 4] [--temperature T] [--checkpoint best] [--picture FILE.png] [--chat]

Answers a prompt (--caption is the same), or held-out tasks if there is none, and judges the answers. For bricks:
--rejection refuses bad bricks, --rollback takes back what falls, --best-of N keeps the best of N. A language model at a
terminal, or anywhere with --chat, holds a conversation: /reset forgets it, ^D ends it; --num N answers tasks instead.

  coterie sample runs/first --prompt "a bench 8 wide 3 deep 4 tall" --num 6 --picture bench.png
"""
    num, how = words.pop_number("num"), read_assembly(words)
    caption = words.pop("caption")
    prompt, picture = words.pop("prompt", caption), words.pop("picture")
    wants_chat = words.pop_flag("chat")
    _, trainer = open_run(words)
    words.finish("sample")
    if wants_chat or (prompt is None and num is None and picture is None and sys.stdin.isatty()):
        if writes_text(trainer.config, trainer.world):
            with trainer.scorer:
                chat(trainer)
            return 0
        if wants_chat:
            raise UsageError("--chat is for language models; this policy answers tasks of its world")
    with trainer.scorer:
        answers = answer_and_judge(trainer, prompt, num, how)
    for task, answer, score in answers:
        parts = show_parts(score)
        print(f"# {task.prompt}: {score.total:.3f}  {parts}  {score.note}\n{answer}")
    if picture is not None:
        cells = [
            (trainer.world.picture(task, answer), f"{task.prompt}: {score.total:.2f}")
            for task, answer, score in answers
        ]
        contact_sheet([("", cells[i : i + 6]) for i in range(0, len(cells), 6)], Path(picture))
        print(f"The picture is {picture}", file=sys.stderr)
    return 0


def answer_and_judge(
    trainer: GRPOTrainer, prompt: str | None, num: int | None, how: Assembly | None
) -> list[tuple[Task, str, Score]]:
    """`num` answers to the prompt, or one to each of `num` held-out tasks."""
    asked = [find_task(trainer.world, prompt)] if prompt else []
    if how is not None:
        assembler = make_assembler(trainer, how)
        tasks = asked * (num or 1) or trainer.pick_tasks("heldout", num or 4)
        made = [(task, assembler.build(task)) for task in tasks]
        return [(task, built.answer, built.score) for task, built in made]
    groups = trainer.answer(asked or trainer.pick_tasks("heldout", num or 4), (num or 4) if asked else 1)
    return [
        (group.task, answer, score)
        for group, verdicts in zip(groups, trainer.judge(groups), strict=True)
        for answer, score in zip(group.answers, verdicts, strict=True)
    ]


def read_assembly(words: Words) -> Assembly | None:
    """How bricks are put together, if the command says so."""
    rejection, rollback = words.pop_flag("rejection"), words.pop_flag("rollback")
    best_of = words.pop_number("best_of", 1) or 1
    return Assembly(rejection, rollback, best_of) if rejection or rollback or best_of > 1 else None


def make_assembler(trainer: GRPOTrainer, how: Assembly) -> Assembler:
    if not isinstance(trainer.world, BricksWorld):
        raise UsageError("--rejection, --rollback and --best-of are for bricks")
    temperature = trainer.config.eval_temperature or how.temperature
    return Assembler(trainer.engine, trainer.world, replace(how, temperature=temperature), trainer.config.seed)


def sum_up(built: Sequence[Built]) -> dict[str, float]:
    """The means over structures, and what they took."""
    names = dict.fromkeys(name for b in built for name in b.score.parts)
    return {
        "reward": fmean(b.score.total for b in built),
        "success": fmean(b.score.success for b in built),
        **{f"rewards/{name}": fmean(b.score.parts.get(name, 0.0) for b in built) for name in names},
        "rejections": fmean(b.rejections for b in built),
        "rollbacks": fmean(b.rollbacks for b in built),
        "median_seconds": median(b.seconds for b in built),
    }


def plot(words: Words) -> int:
    """\
coterie plot RUN [--out FILE.png]

Draws the curves of a run: the reward and its parts, success, entropy, KL, speed.
"""
    run = RunFolder.open(Path(words.one("RUN")))
    path = Path(words.pop("out") or run.path / "curves.png")
    words.finish("plot")
    if not (metrics := run.metrics()):
        raise UsageError(f"{run.path} has no metrics yet")
    plot_curves(metrics, path, str(run.path))
    print(f"The curves are in {path}")
    return 0


def demo(words: Words) -> int:
    """\
coterie demo [--out DIR] [--name value …]

Trains a small policy to build brick structures that stand, on this machine, and shows before and after.
"""
    quiet = words.pop_flag("quiet")
    if words.alone:
        raise UsageError(f"coterie demo takes options only, not {words.alone[0]!r}")
    config = parse_settings({**SETTINGS, **words.named}, world_fields("bricks"))
    if config.out is None:
        config = config.model_copy(update={"out": default_out(config).replace("bricks", "demo")})
    run_demo(config, Display(config.log_every, quiet))
    return 0


def explain(words: Words) -> int:
    """\
coterie explain WORLD | FILE.toml | my_world.py [--name value …]

Says a configuration in words: the arithmetic of a step, the estimator and the loss in formulas, replay,
curriculum and schedule, the memory to expect, and what looks wrong.

  coterie explain examples/brickgpt.toml --group-size 16
"""
    config = read_target(words)
    world = load_world(config.world, config.world_options)
    print(explain_config(settle(config, world), world), end="")
    return 0


def tune(words: Words) -> int:
    """\
coterie tune WORLD | FILE.toml --trials N [--ranges "NAME=LOW:HIGH NAME=LOW:HIGH:log NAME=A,B,C"] [--out DIR]

Searches settings with Optuna. Ranges stand in the file's [tune] table or after --ranges; each trial is a run in
DIR/trial-0000, …, judged by its mean reward on held-out tasks; those that do worse than the median are given up
early. The same command goes on with a study that was stopped, until N trials have finished in all; one process
a study. Ranges of a world's own reward weights mean little: trials are compared by the reward they define.

  coterie tune bricks --trials 20 --ranges "learning_rate=1e-5:1e-3:log group_size=4,8,16" --steps 100
"""
    num_trials = words.pop_number("trials")
    if num_trials is None:
        raise UsageError("say how many trials, as in: coterie tune bricks --trials 20")
    text, out, quiet = words.pop("ranges") or "", words.pop("out"), words.pop_flag("quiet")
    settings = read_settings(words)
    folder = Path(out or settings.get("out") or f"runs/tune-{Path(words.alone[0]).stem}")
    ranges = read_ranges(settings.pop("tune", {}), text, settings)
    search(settings, ranges, num_trials, folder, quiet)
    return 0


COMMANDS: dict[str, Callable[[Words], int]] = {
    "train": train,
    "pretrain": pretrain,
    "train-judge": train_judge,
    "eval": evaluate,
    "sample": sample,
    "score": answers.score,
    "check": answers.check,
    "plot": plot,
    "export": answers.export,
    "theories": answers.theories,
    "explain": explain,
    "tune": tune,
    "demo": demo,
}
