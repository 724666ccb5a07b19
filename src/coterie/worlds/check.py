"""The contract of a world as one function, applied to ours by a test and to yours by `coterie check`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.rollouts import Score, Task
from coterie.worlds.base import Example, Language, LanguageError, World, trace_legal

GARBAGE = ("", " ", "\n", "0", "nonsense", "(((((", "\x00", "🧱", "9" * 500, "1x1 (0,0,0)\n" * 3)


class Broken(Exception):
    """A rule is broken; the message says how and where."""


@dataclass(frozen=True)
class Finding:
    """One rule of the contract and, if it is broken, how."""

    rule: str
    problem: str = ""


def check_world(world: World, num_examples: int = 64, seed: int = 0) -> Iterator[Finding]:
    """Apply every rule; a rule that fails does not keep the others from being tried."""
    for rule in RULES:
        told = (rule.__doc__ or "").rstrip(".")
        try:
            rule(world, num_examples, np.random.default_rng(seed))
        except Broken as broken:
            yield Finding(told, str(broken))
        except Exception as error:  # a world may raise anything anywhere; that too is a finding
            yield Finding(told, f"it raised {type(error).__name__}: {error}")
        else:
            yield Finding(told)


def _demand(holds: bool, problem: str) -> None:
    if not holds:
        raise Broken(problem)


def _some(items: Sequence[Example], count: int, rng: np.random.Generator) -> list[Example]:
    return [items[int(i)] for i in rng.choice(len(items), min(count, len(items)), replace=False)]


def has_tasks(world: World, count: int, rng: np.random.Generator) -> None:
    """It has training and held-out tasks with ids of their own."""
    seen: dict[str, str] = {}
    for split in ("train", "heldout"):
        tasks = world.tasks(split)
        _demand(len(tasks) > 0, f"tasks({split!r}) is empty")
        for task in tasks:
            _demand(isinstance(task, Task), f"tasks({split!r}) holds a {type(task).__name__}, not a Task")
            _demand(task.id not in seen, f"task id {task.id!r} is in {seen.get(task.id)} and again in {split}")
            seen[task.id] = split


def same_tasks_again(world: World, count: int, rng: np.random.Generator) -> None:
    """Its tasks are the same each time they are asked for."""
    for split in ("train", "heldout"):
        _demand([t.id for t in world.tasks(split)] == [t.id for t in world.tasks(split)], f"tasks({split!r}) changes")


def scores_garbage(world: World, count: int, rng: np.random.Generator) -> None:
    """It gives every answer, even nonsense, a finite score."""
    task = world.tasks("train")[0]
    scores = world.score(task, GARBAGE)
    _demand(len(scores) == len(GARBAGE), f"score() gave {len(scores)} scores for {len(GARBAGE)} answers")
    for answer, score in zip(GARBAGE, scores, strict=True):
        _demand(isinstance(score, Score), f"score() gave a {type(score).__name__} for {answer!r}, not a Score")
        _demand(math.isfinite(score.total), f"the total of {answer!r} is {score.total}")
        _demand(all(map(math.isfinite, score.parts.values())), f"a part of {answer!r} is not finite: {score.parts}")


def scores_twice_alike(world: World, count: int, rng: np.random.Generator) -> None:
    """It gives the same answer the same score."""
    examples = world.examples()
    pairs = [(e.task, e.answer) for e in _some(examples, 8, rng)] or [(world.tasks("train")[0], "nonsense")]
    for task, answer in pairs:
        first, second = world.score(task, [answer])[0], world.score(task, [answer])[0]
        _demand(first == second, f"{task.id}: {first.total} and then {second.total}")


def examples_score_as_told(world: World, count: int, rng: np.random.Generator) -> None:
    """Its examples that tell their score get it."""
    for example in _some(world.examples(), count, rng):
        if example.total is not None:
            got = world.score(example.task, [example.answer])[0]
            _demand(
                math.isclose(got.total, example.total, abs_tol=1e-6),
                f"{example.task.id}: {example.answer[:60]!r} should get {example.total}, got {got.total} {got.note}",
            )


def examples_differ_in_score(world: World, count: int, rng: np.random.Generator) -> None:
    """Its scores can tell answers apart."""
    examples = _some(world.examples(), count, rng)
    task = examples[0].task if examples else world.tasks("train")[0]
    answers = [*GARBAGE, *(e.answer for e in examples)]
    totals = {score.total for score in world.score(task, answers)}
    _demand(len(totals) > 1, f"every answer tried for {task.id} got {totals}: there is nothing to learn from")


def language_writes_examples(world: World, count: int, rng: np.random.Generator) -> None:
    """Its language writes its examples: encoding and decoding are inverse, and every token is legal."""
    language = world.language()
    if language is None:
        return
    examples = _some(world.examples(), count, rng)
    tokens = []
    for example in examples:
        tokens.append(language.encode(example.answer))
        back = language.decode(tokens[-1])
        _demand(back == example.answer, f"{example.answer[:60]!r} came back as {back[:60]!r}")
        _demand(tokens[-1][-1] == language.end, f"{example.answer[:60]!r} does not end with the end token")
        _demand(len(tokens[-1]) <= language.max_tokens, f"{example.answer[:60]!r} is longer than max_tokens")
        _demand(len(language.encode_prompt(example.task.prompt)) > 0, f"{example.task.id} has an empty prompt")
    for example, legal in zip(examples, trace_legal(language, [e.task for e in examples], tokens), strict=True):
        _demand(legal is not None, f"{example.task.id}: the constraint refuses {example.answer[:60]!r}")


def language_refuses_garbage(world: World, count: int, rng: np.random.Generator) -> None:
    """Its language answers what it cannot write with LanguageError, and nothing else."""
    language = world.language()
    for text in GARBAGE if language else ():
        try:
            assert language is not None
            language.encode(text)
        except LanguageError:
            continue


def drawn_answers_parse(world: World, count: int, rng: np.random.Generator) -> None:
    """Whatever its constraint lets through can be decoded, written again and scored."""
    language = world.language()
    if language is None:
        return
    tasks = [world.tasks("train")[int(i)] for i in rng.integers(0, len(world.tasks("train")), count)]
    for task, tokens in zip(tasks, draw_at_random(language, tasks, rng), strict=True):
        text = language.decode(tokens)
        if tokens and tokens[-1] == language.end:
            again = language.decode(language.encode(text))
            _demand(again == text, f"{text[:60]!r} is not what its own tokens spell")
        _demand(math.isfinite(world.score(task, [text])[0].total), f"{text[:60]!r} has no finite score")


def draw_at_random(language: Language, tasks: Sequence[Task], rng: np.random.Generator) -> list[list[int]]:
    """Answers drawn evenly from what is legal, up to max_tokens."""
    constraint = language.constraint(tasks)
    answers: list[list[int]] = [[] for _ in tasks]
    rows = np.arange(len(tasks))
    for _ in range(language.max_tokens):
        legal = constraint.legal()
        tokens = (rng.random(legal.shape) * legal).argmax(1)
        stuck = ~legal.any(1)
        for row, token in zip(rows[~stuck], tokens[~stuck], strict=True):
            answers[row].append(int(token))
        going = np.flatnonzero(~stuck & (tokens != language.end))
        constraint.keep(going)
        constraint.advance(tokens[going])
        rows = rows[going]
        if len(rows) == 0:
            break
    return answers


def pictures_are_pictures(world: World, count: int, rng: np.random.Generator) -> None:
    """It draws its examples and refuses to draw nonsense without raising."""
    task = world.tasks("train")[0]
    for answer in (*GARBAGE, *(e.answer for e in _some(world.examples(), 2, rng))):
        picture = world.picture(task, answer)
        _demand(picture is None or hasattr(picture, "save"), f"picture() gave a {type(picture).__name__}")


RULES: tuple[Callable[[World, int, np.random.Generator], None], ...] = (
    has_tasks,
    same_tasks_again,
    scores_garbage,
    scores_twice_alike,
    examples_score_as_told,
    examples_differ_in_score,
    language_writes_examples,
    language_refuses_garbage,
    drawn_answers_parse,
    pictures_are_pictures,
)
