"""The theory world: particle theories without anomalies and without light charged exotics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from PIL.Image import Image

from coterie.rollouts import Score, Task
from coterie.worlds.base import Example, Language, LanguageError, MadeExamples, World
from coterie.worlds.theory.anomalies import anomalies_of
from coterie.worlds.theory.conjectures import conjecture
from coterie.worlds.theory.known import known_theories
from coterie.worlds.theory.language import GROUPS, TheoryLanguage, begin
from coterie.worlds.theory.reward import Weights, judge
from coterie.worlds.theory.tables import draw_table, fields_of
from coterie.worlds.theory.theory import MAX_FACTORS, group_name, parse_theory, print_theory, without_comments
from coterie.worlds.theory.working import work_out

ALWAYS = {"anomalies": 1.0, "exotics": 1.0, "invariance": 0.5, "length": 0.01}
# First what is consistent, then what is rich, then what was not found before.
PHASES: tuple[Mapping[str, Any], ...] = (
    {"name": "consistent", "weights": {**ALWAYS, "content": 0.5}},
    {"name": "rich", "open_at": 0.5, "weights": {**ALWAYS, "content": 1.0, "novelty": 0.5}},
    {"name": "new", "open_at": 0.8, "weights": {**ALWAYS, "content": 0.5, "novelty": 0.7}},
)

HEADER = "BOS GAUGE_GROUPS NUM_GAUGE"
OPEN = ("BOS", *(f"{HEADER} num_{k}" for k in range(1, MAX_FACTORS + 1)))


@dataclass(frozen=True)
class TheoryWorld(World):
    """Settings of the theory world."""

    name: str = field(default="theory", init=False)
    catalog: str = field(default="theories.jsonl", init=False)
    max_tokens: int = 512
    threshold: float = 100.0  # GeV; charged exotics must be heavier
    least_chiral: int = 1  # kinds of chiral multiplets that success demands; 0 asks for consistency alone
    anomalies_weight: float = 1.0
    exotics_weight: float = 1.0
    invariance_weight: float = 0.5
    content_weight: float = 0.5
    length_weight: float = 1.0
    products: bool = False  # also pose products of groups; without, the groups are open, or their number is given
    prompts: str = ""  # instead: beginnings of theories with ; between them, or a file with one a line
    known_share: float = 0.3  # of the examples that are known theories, varied
    num_examples: int = 20_000

    def __post_init__(self) -> None:
        for wrong, told in (
            (self.max_tokens < 32, f"max_tokens is {self.max_tokens}; write 32 or more"),
            (self.threshold <= 0, f"threshold is {self.threshold}; write a mass above 0"),
            (not 0 <= self.known_share <= 1, f"known_share is {self.known_share}; write a number from 0 to 1"),
            (self.num_examples < 1, f"num_examples is {self.num_examples}; write 1 or more"),
        ):
            if wrong:
                raise ValueError(told)
        for prompt in self._prompts:
            begin(prompt)  # a prompt that no theory begins with is refused at once

    @cached_property
    def _prompts(self) -> list[str]:
        text = self.prompts
        if text and "BOS" not in text.split():
            try:
                text = Path(text).read_text()
            except OSError as error:
                raise ValueError(
                    f"prompts is {text!r}: no beginning of a theory, and no file: {error.strerror}"
                ) from None
        return [" ".join(line.split()) for line in text.replace("\n", ";").split(";") if line.strip()]

    def tasks(self, split: str) -> Sequence[Task]:
        return self._splits[split]

    @cached_property
    def _splits(self) -> dict[str, list[Task]]:
        """Prompts that leave the groups open are few: they are held out again. Of products some are kept back."""
        if self._prompts or not self.products:
            given = [_task(prompt) for prompt in self._prompts or OPEN]
            return {"train": given, "heldout": [Task(f"again {t.id}", t.prompt, tags=t.tags) for t in given]}
        train, heldout = products()
        return {
            "train": [_task(prompt) for prompt in (*OPEN, *map(group_prompt, train))],
            "heldout": [_task(group_prompt(groups)) for groups in heldout],
        }

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        weights = Weights(
            self.anomalies_weight,
            self.exotics_weight,
            self.invariance_weight,
            self.content_weight,
            self.length_weight,
        )
        return [judge(whole(task, answer), weights, self.threshold, self.least_chiral) for answer in answers]

    def language(self) -> Language:
        return TheoryLanguage(self.max_tokens)

    def examples(self) -> Sequence[Example]:
        """Random theories, and known ones, varied."""
        return MadeExamples(self.num_examples, partial(_example, self))

    def record(self, task: Task, answer: str) -> Mapping[str, Any]:
        theory = parse_theory(whole(task, answer))
        return {
            "groups": " ".join(map(group_name, theory.groups)),
            "fields": fields_of(theory),
            "anomalies": {a.name: str(a.value) for a in anomalies_of(theory)},
            "theory": print_theory(theory),
        }

    def explain(self, task: Task, answer: str) -> str:
        return work_out(parse_theory(whole(task, answer)), self.threshold)

    def phases(self) -> Sequence[Mapping[str, Any]]:
        return PHASES

    def picture(self, task: Task, answer: str) -> Image | None:
        try:
            return draw_table(parse_theory(whole(task, answer)))
        except LanguageError:
            return None


def whole(task: Task, answer: str) -> str:
    """The theory: an answer that begins with BOS is whole, another goes on from the prompt."""
    answer = without_comments(answer)
    return answer if answer.split(maxsplit=1)[:1] == ["BOS"] else f"{task.prompt or 'BOS'} {answer}"


def group_prompt(groups: Sequence[int]) -> str:
    return f"{HEADER} num_{len(groups)} {' '.join(map(group_name, groups))}"


def _task(prompt: str) -> Task:
    words = prompt.split()[4:]
    tags: dict[str, float | str] = {"given": float(len(words)), "abelian": float(words.count("U1"))}
    return Task(" ".join(words) or prompt, prompt, tags=tags)


@lru_cache(maxsize=1)
def products() -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Training and held-out products of groups. Those of SU(2)s alone have no chiral fields and are left out."""
    known = {theory.groups for theory in known_theories().values()}
    train: list[tuple[int, ...]] = []
    heldout: list[tuple[int, ...]] = []
    for size in range(1, MAX_FACTORS + 1):
        for groups in combinations_with_replacement(GROUPS, size):
            if set(groups) != {2}:
                aside = size > 1 and groups not in known and crc32(group_prompt(groups).encode()) % 5 == 0
                (heldout if aside else train).append(groups)
    return train, heldout


@lru_cache(maxsize=50_000)  # a cold start comes back to each several times
def _example(world: TheoryWorld, index: int) -> Example:
    rng = np.random.default_rng(index)
    theory = conjecture(products()[0], world.known_share, rng)
    prompt = group_prompt(theory.groups)
    prompt = " ".join(prompt.split()[: int(rng.choice([1, 4, len(prompt.split())]))])
    text = print_theory(theory).split()[len(prompt.split()) :]
    language = world.language()
    return Example(_task(prompt), language.decode(language.encode(" ".join(text))))
