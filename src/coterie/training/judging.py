"""A frozen judge in the place of the world's own verdict: how it is trained, examined, and asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coterie.engines.base import Engine, Judge, Metrics, NewJudge, Sampling, Specimen
from coterie.grpo.rewards import replaced_amount
from coterie.rollouts import Group, Ints, Score, Task
from coterie.training.schedule import learning_rate
from coterie.worlds.base import FillLanguage, World

INDEPENDENT = "independent"  # the part that holds the world's own verdict, which nobody trains on
REAL_SHARE = 0.25  # of the texts that a judge learns from and that are as they were
# At first the generator's texts are drawn hotter, so that there is something easy to tell: an AUC of .95 after 350
# updates rather than 550.
HEAT = 1.5  # the temperature is multiplied by up to 1 more than this
HEATED_SHARE = 0.6  # of the updates, in which the heat goes down to nothing
NUM_BINS = 5


class JudgeFailure(ValueError):
    """A judge that failed in its exam; the message says how."""


class Scoring(Protocol):
    """Who gives a step's answers their scores."""

    def prepare(self) -> None:
        """Called once the policy is what GRPO starts from."""
        ...

    def prefetch(self, task: Task, answers: Sequence[str]) -> None:
        """Begin while others are still sampled."""
        ...

    def score_groups(self, groups: Sequence[Group]) -> list[list[Score]]:
        """The scores of a whole step."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class JudgedScorer:
    """The judge's verdict is what counts; the world's own is measured beside it and never trained on."""

    def __init__(self, world_scorer: Scoring, source: Callable[[], Judge]) -> None:
        self.world_scorer, self.source = world_scorer, source
        self.judge: Judge | None = None

    def prepare(self) -> None:
        if self.judge is None:
            self.judge = self.source()

    def prefetch(self, task: Task, answers: Sequence[str]) -> None:
        self.world_scorer.prefetch(task, answers)

    def score_groups(self, groups: Sequence[Group]) -> list[list[Score]]:
        self.prepare()
        assert self.judge is not None
        texts = [answer for group in groups for answer in group.answers]
        tasks = [group.task for group in groups for _ in group.completions]
        verdicts = iter(ask(self.judge, texts, tasks))
        own = self.world_scorer.score_groups(groups)
        return [_lowest_to_faults([_judged(score, next(verdicts)) for score in scores]) for scores in own]

    def close(self) -> None:
        self.world_scorer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _judged(score: Score, verdict: float | str) -> Score:
    parts = {INDEPENDENT: score.total, **score.parts}
    if isinstance(verdict, str):
        return replace(score, parts=parts, valid=False, note=f"the judge {verdict}", fault=score.fault or "judge")
    # A text that is not the one asked about is worth nothing, however well it reads.
    return replace(score, total=verdict if score.valid else 0.0, parts={"judge": verdict, **parts})


def _lowest_to_faults(scores: list[Score]) -> list[Score]:
    lowest = min((s.total for s in scores if s.fault != "judge"), default=0.0)
    return [replace(s, total=lowest) if s.fault == "judge" else s for s in scores]


def ask(judge: Judge, texts: Sequence[str], tasks: Sequence[Task]) -> list[float | str]:
    """A verdict for each text, or what the judge did wrong; if it fails on all of them, each is asked about alone."""
    try:
        verdicts = [float(v) for v in judge(texts, tasks)]
    except Exception as error:  # a judge may be anyone's function; what it raises is told
        if len(texts) == 1:
            return [f"raised {type(error).__name__}: {error}"[:500]]
        return [verdict for text, task in zip(texts, tasks, strict=True) for verdict in ask(judge, [text], [task])]
    if len(verdicts) != len(texts):
        return [f"gave {len(verdicts)} numbers for {len(texts)} texts"] * len(texts)
    return [v if math.isfinite(v) else f"gave {v}" for v in verdicts]


def specimens_of(groups: Sequence[Group], truths: Sequence[str], language: FillLanguage) -> Iterator[Specimen]:
    """What was filled in, held against the true texts."""
    for group, truth in zip(groups, truths, strict=True):
        true = np.array(language.fill_in(group.task.prompt, truth), np.int64)
        for completion in group.completions:
            yield Specimen(completion.tokens, completion.tokens != true)


@dataclass(frozen=True)
class JudgeLesson:
    """How a judge is trained."""

    steps: int
    batch: int  # texts an update
    rate: float  # learning rate at its peak
    seed: int
    sampling: Sampling  # of the generator whose texts it learns to tell


def train_judge(
    judge: NewJudge,
    world: World,
    language: FillLanguage,
    engine: Engine,
    lesson: JudgeLesson,
    tell: Callable[[str, int, int, Metrics], None],
    clock: Callable[[], float],
) -> None:
    """Show it training texts, some as they were and some filled in by the engine."""
    examples = world.examples()
    for step in range(lesson.steps):
        started = clock()
        rng = np.random.default_rng([lesson.seed, 1, step])
        drawn = [examples[int(i)] for i in rng.integers(0, len(examples), lesson.batch)]
        real = round(REAL_SHARE * lesson.batch)
        truths = [example.answer for example in drawn]
        tasks = [example.task for example in drawn[real:]]
        # A random stream of its own, so that the engine is afterwards as it was.
        sampling = heated(replace(lesson.sampling, seed=int(rng.integers(2**31))), step / lesson.steps, rng)
        groups = [group for _, group in sorted(engine.sample(tasks, 1, sampling), key=lambda pair: pair[0])]
        untouched = [untouched_specimen(language.encode_prompt(text)) for text in truths[:real]]
        rate = learning_rate(step, lesson.steps, lesson.rate, min(30, lesson.steps // 10), "cosine", 0.1)
        metrics = judge.learn([*untouched, *specimens_of(groups, truths[real:], language)], rate)
        tell("judge", step + 1, lesson.steps, {**metrics, "step_time": clock() - started})


def heated(sampling: Sampling, done: float, rng: np.random.Generator) -> Sampling:
    """Hotter, and without top-p, by a random amount that goes down to nothing."""
    heat = HEAT * float(rng.random()) * max(0.0, 1 - done / HEATED_SHARE)
    if heat == 0:
        return sampling
    return replace(sampling, temperature=(1 + heat) * sampling.temperature, top_p=1.0)


def untouched_specimen(tokens: Sequence[int]) -> Specimen:
    row: Ints = np.array(tokens, np.int64)
    return Specimen(row, np.zeros(len(row), np.bool_))


def auc(good: Sequence[float], bad: Sequence[float]) -> float:
    """The chance that a good one is ranked above a bad one, ties by half (Mann and Whitney, 1947)."""
    a, b = np.asarray(good)[:, None], np.asarray(bad)[None]
    return float(((a > b) + 0.5 * (a == b)).mean())


@dataclass(frozen=True)
class JudgeReport:
    """How far a judge can be trusted, on held-out texts that were filled in by the policy and on the true ones."""

    num_texts: int
    auc: float  # true texts against filled ones
    real: float  # mean verdict on true texts
    filled: float  # and on filled ones
    error: float  # mean |verdict - what it should be|
    bins: Sequence[tuple[float, float, int]]  # calibration: mean verdict, mean of what it should be, texts

    def lines(self) -> Iterator[str]:
        yield (
            f"judge on {self.num_texts} held-out texts: AUC {self.auc:.3f} of true against filled, "
            f"verdict {self.real:.3f} on true and {self.filled:.3f} on filled texts, mean error {self.error:.3f}"
        )
        for verdict, wanted, count in self.bins:
            yield f"  where it says {verdict:.3f} it should say {wanted:.3f} ({count} texts)"


def examine(judge: Judge, world: World, language: FillLanguage, groups: Sequence[Group]) -> JudgeReport:
    """Hold the judge's verdicts against what is known of texts that it has not seen."""
    known = [(group, truth) for group in groups if (truth := world.solution(group.task)) is not None]
    assert known, "none of the tasks has a known solution"
    truths, tasks = [truth for _, truth in known], [group.task for group, _ in known]
    said = ask(judge, [*truths, *(group.answers[0] for group, _ in known)], tasks * 2)
    if failed := [verdict for verdict in said if isinstance(verdict, str)]:
        raise JudgeFailure(f"the judge {failed[0]}, on {len(failed)} of {len(said)} held-out texts")
    verdicts = np.array(said, np.float64)
    real, filled = verdicts[: len(known)], verdicts[len(known) :]
    first = [Group(group.task, group.completions[:1]) for group, _ in known]
    shares = [float(s.replaced[1:].mean()) for s in specimens_of(first, truths, language)]
    wanted = np.concatenate([np.ones(len(real)), 1 - np.asarray(replaced_amount(np.array(shares)))])
    return JudgeReport(
        num_texts=len(real),
        auc=auc(real.tolist(), filled.tolist()),
        real=float(real.mean()),
        filled=float(filled.mean()),
        error=float(np.abs(verdicts - wanted).mean()),
        bins=calibration(verdicts, wanted),
    )


def calibration(verdicts: NDArray[np.float64], wanted: NDArray[np.float64]) -> list[tuple[float, float, int]]:
    """Texts in bins of like verdicts, lowest first: the mean verdict, the mean of what it should be, how many."""
    order = np.argsort(verdicts, kind="stable")
    return [
        (float(verdicts[part].mean()), float(wanted[part].mean()), len(part))
        for part in np.array_split(order, NUM_BINS)
        if len(part)
    ]
