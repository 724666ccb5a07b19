"""Finds the judge that a configuration names, or trains a new one."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.config import ConfigError, GRPOConfig
from coterie.engines.base import Judge, Metrics
from coterie.runs.checkpoints import damage, write_whole
from coterie.training.judging import JudgeFailure, JudgeLesson, JudgeReport, examine, train_judge
from coterie.training.trainer import Trainer
from coterie.worlds.base import FillLanguage, World

if TYPE_CHECKING:
    from coterie.engines.torch.judge import NetworkJudge

FOLDER = "judge"  # in a run folder: the judge that was trained for it
EXAM_TASKS = 200
TRUSTED_AUC = 0.9


def judge_named(config: GRPOConfig, world: World) -> str:
    """What `judge` means here: none, new, a folder, or file.py:function."""
    if config.judge != "auto":
        return config.judge
    fills = config.policy != "causal" and isinstance(world.language(), FillLanguage)
    return "new" if fills else "none"


def obtain_judge(trainer: Trainer, say: Callable[[str], None], folder: Path | None = None) -> Judge:
    """Load, import or train it, and tell how well it does on held-out text before it is trusted.

    A new one is kept in `folder`, by default the run's; the next time it is found there.
    """
    named = judge_named(trainer.config, trainer.world)
    if folder is None and trainer.run is not None:
        folder = trainer.run.path / FOLDER
    judge: Judge
    if named == "new" and folder is not None and folder.is_dir():
        return load_judge(folder, trainer)  # it was examined when it was new
    if named == "new":
        judge = new_judge(trainer)
    elif ":" in named and named.partition(":")[0].endswith(".py"):
        judge = import_judge(named)
    else:
        judge = load_judge(Path(named), trainer)
    report = examine_judge(judge, trainer)
    for line in report.lines() if report else ():
        say(line)
    if report and report.auc < TRUSTED_AUC:
        say(f"an AUC below {TRUSTED_AUC} is little to learn from: raise judge_steps or the policy's width")
    if named == "new" and folder is not None:
        save_judge(judge, report, folder)
    return judge


def examine_judge(judge: Judge, trainer: Trainer) -> JudgeReport | None:
    """On held-out tasks with a known solution; None for a world whose prompts have no blanks."""
    language, tasks = trainer.world.language(), trainer.pick_tasks("heldout", EXAM_TASKS)
    if not isinstance(language, FillLanguage) or trainer.world.solution(tasks[0]) is None:
        return None
    sampling = replace(trainer.sampling, seed=trainer.config.seed)
    try:
        return examine(judge, trainer.world, language, trainer.generate_rollouts(tasks, 1, sampling))
    except JudgeFailure as failure:
        raise ConfigError(str(failure)) from None


def new_judge(trainer: Trainer) -> NetworkJudge:
    """One that starts as the policy and learns to tell its fillings from true texts."""
    from coterie.engines.torch.fill import FillEngine
    from coterie.engines.torch.judge import NetworkJudge

    config, engine, language = trainer.config, trainer.engine, trainer.world.language()
    if not isinstance(engine, FillEngine) or not isinstance(language, FillLanguage):
        raise ConfigError(
            "judge = 'new' needs a policy that fills in; write a judge's folder, file.py:function or none"
        )
    judge = NetworkJudge(language, engine.model.shape, config.seed, str(engine.device))
    judge.begin_from(engine.model)
    lesson = JudgeLesson(config.judge_steps, config.judge_batch, config.judge_rate, config.seed, trainer.sampling)

    def tell(phase: str, done: int, total: int, metrics: Metrics) -> None:
        trainer.tell(phase, done, total, metrics)
        if trainer.stopping:  # half a judge is of no use; the policy is saved
            raise KeyboardInterrupt

    train_judge(judge, trainer.world, language, engine, lesson, tell, time.perf_counter)
    judge.network.requires_grad_(False)
    return judge


def load_judge(path: Path, trainer: Trainer) -> NetworkJudge:
    """From its own folder, or from the run that it was trained in."""
    from coterie.engines.torch.judge import NetworkJudge
    from coterie.engines.torch.policy import TorchPolicy

    folder = path if (path / "judge.safetensors").is_file() else path / FOLDER
    if not (folder / "judge.safetensors").is_file():
        raise ConfigError(
            f"judge = {str(path)!r} will not do: write new, none, a folder with judge.safetensors, or file.py:function"
        )
    if problem := damage(folder):
        raise ConfigError(f"the judge in {folder} is damaged: {problem}")
    language = trainer.world.language()
    assert language is not None, "an engine has a language"
    device = str(trainer.engine.device) if isinstance(trainer.engine, TorchPolicy) else "cpu"
    try:
        return NetworkJudge.load(folder, language, device)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def save_judge(judge: Judge, report: JudgeReport | None, folder: Path) -> None:
    """Whole or not at all, with what its exam showed."""
    from coterie.engines.torch.judge import NetworkJudge

    assert isinstance(judge, NetworkJudge)
    folder.parent.mkdir(parents=True, exist_ok=True)

    def fill(aside: Path) -> None:
        judge.save(aside)
        if report:
            (aside / "report.json").write_text(json.dumps(asdict(report), indent=1))

    write_whole(folder.parent, folder.name, fill)


def import_judge(named: str) -> Judge:
    """A user's own function of texts and tasks."""
    file, _, name = named.partition(":")
    if not Path(file).is_file():
        raise ConfigError(f"judge = {named!r}: there is no file {file}")
    spec = importlib.util.spec_from_file_location(f"coterie_user_judge_{Path(file).stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # anything may be wrong in a user's file; it is told, not traced
        raise ConfigError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    judge = getattr(module, name, None)
    if not callable(judge):
        raise ConfigError(f"judge = {named!r}: {file} has no function {name!r}; write its name after the colon")
    found: Judge = judge
    return found
