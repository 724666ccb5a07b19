"""The fill world: put back what is missing from a text, so that it reads as if nothing had been."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from coterie.rollouts import Score, Task
from coterie.worlds.base import Example, Kind, LanguageError, MadeExamples, Passage, World
from coterie.worlds.fill.corpus import read_paragraphs, split_stretches
from coterie.worlds.fill.language import SPECIAL, BlanksLanguage, spell_characters, spell_pieces
from coterie.worlds.fill.masks import MASKS
from coterie.worlds.fill.ngram import NgramModel

SIGN = "□"


@dataclass(frozen=True)
class FillWorld(World):
    """Settings of the fill world. An answer is the whole text; alone, the world judges it without any network."""

    name: str = field(default="fill", init=False)
    corpus: str = ""  # a text file; "": the prose of Python's own documentation
    tokenizer: str = ""  # a tokenizer.json; "": characters
    block_size: int = 128  # tokens a text
    masks: Literal["random", "sticky", "span", "mixed"] = "mixed"
    ratio_low: float = 0.3  # the share of blanks is drawn for each text
    ratio_high: float = 0.5
    ngram_order: int = 5
    ngram_weight: float = 0.5
    match_weight: float = 0.5
    success_at: float = 0.9  # the share of right characters that counts as a success
    layouts: int = 8  # how many masks each window of the training text has among the examples

    def __post_init__(self) -> None:
        for wrong, told in (
            (self.block_size < 8, f"block_size is {self.block_size}; write 8 or more"),
            (
                not 0 <= self.ratio_low <= self.ratio_high <= 1,
                f"ratio_low {self.ratio_low} and ratio_high {self.ratio_high} must be shares, the low one first",
            ),
            (
                self.masks not in (*MASKS, "mixed"),
                f"masks is {self.masks!r}; write one of {', '.join(MASKS)} or mixed",
            ),
            (not 1 <= self.ngram_order <= 9, f"ngram_order is {self.ngram_order}; write a number from 1 to 9"),
            (self.layouts < 1, f"layouts is {self.layouts}; write 1 or more"),
        ):
            if wrong:
                raise ValueError(told)
        if any(SIGN in text for texts in self.stretches.values() for text in texts):
            raise ValueError(f"the corpus contains {SIGN}, the sign for a blank; replace it there")
        if self.tokenizer and not (self.tasks("train") and self.tasks("heldout")):
            raise ValueError(
                f"no text of block_size {self.block_size} can be spelled by the tokenizer {self.tokenizer}"
            )

    @cached_property
    def stretches(self) -> dict[str, list[str]]:
        """The text of each split; no paragraph is in both."""
        return split_stretches(read_paragraphs(self.corpus), self.block_size)

    @cached_property
    def _language(self) -> BlanksLanguage:
        texts = [text for split in self.stretches.values() for text in split]
        spelling = spell_pieces(self.tokenizer) if self.tokenizer else spell_characters(texts)
        return BlanksLanguage(spelling, SIGN, self.block_size)

    def language(self) -> BlanksLanguage:
        return self._language

    @cached_property
    def _tokens(self) -> dict[str, list[list[int]]]:
        """Each stretch as tokens; those that the tokenizer cannot spell are left out."""
        return {
            split: [tokens for text in texts if (tokens := self._spell(text))]
            for split, texts in self.stretches.items()
        }

    def _spell(self, text: str) -> list[int]:
        try:
            return self._language.spelling.cut(text)
        except LanguageError:
            return []

    @cached_property
    def _splits(self) -> dict[str, list[Task]]:
        _ = self.ngrams  # counted here, before there are workers, each of which would count anew
        return {split: list(self._windows(split)) for split in ("train", "heldout")}

    def _windows(self, split: str) -> Iterator[Task]:
        """Training texts overlap by half; held-out ones not at all, and what stands in a training text is left out."""
        known = "" if split == "train" else "\n".join(self.stretches["train"])
        stride = self.block_size // 2 if split == "train" else self.block_size
        for number, tokens in enumerate(self._tokens[split]):
            for start in range(0, len(tokens) - self.block_size + 1, stride):
                task = self.make_task(f"{split}-{number}-{start}", tokens[start : start + self.block_size])
                if task is not None and task.spec["text"] not in known:
                    yield task

    def tasks(self, split: str) -> Sequence[Task]:
        return self._splits[split]

    def make_task(self, name: str, tokens: Sequence[int]) -> Task | None:
        """This text with blanks that depend on the name alone; None if it cannot be read back."""
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        ratio = float(rng.uniform(self.ratio_low, self.ratio_high))
        kind = str(rng.choice(list(MASKS))) if self.masks == "mixed" else self.masks
        blank = MASKS[kind](len(tokens), round(ratio * len(tokens)), rng)
        pieces = self._language.spelling.pieces
        prompt = "".join(SIGN if hidden else pieces[t] for t, hidden in zip(tokens, blank, strict=True))
        text = "".join(pieces[t] for t in tokens)
        if self.tokenizer and not self._reads_back(prompt, text, tokens):
            return None
        return Task(name, prompt, {"text": text}, {"ratio": float(blank.mean()), "masks": kind})

    def _reads_back(self, prompt: str, text: str, tokens: Sequence[int]) -> bool:
        """Whether a tokenizer cuts the parts as it cut the whole."""
        try:
            return self._language.fill_in(prompt, text)[1:] == [len(SPECIAL) + token for token in tokens]
        except LanguageError:
            return False

    @cached_property
    def ngrams(self) -> NgramModel:
        train = self.stretches["train"]
        return NgramModel(train, self.ngram_order, len(set().union(*train)))

    @cached_property
    def usual(self) -> float:
        """Nats a character of held-out text: what a text without a truth of its own is held against."""
        return float(np.mean([self.ngrams.log_probability(text) for text in self.stretches["heldout"]]))

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        truth = task.spec.get("text")
        natural = self.usual if truth is None else self.ngrams.log_probability(truth)
        return [self._score(task.prompt, truth, natural, answer) for answer in answers]

    def _score(self, prompt: str, truth: str | None, natural: float, answer: str) -> Score:
        fills = self._language.read_fills(prompt, answer)
        if fills is None:
            return Score(0.0, {"ngram": 0.0, "match": 0.0}, valid=False, note="this is not the text, filled in")
        # As likely a text as the true one, a character, or less; to be likelier is no merit.
        parts = {"ngram": math.exp(min(0.0, self.ngrams.log_probability(answer) - natural))}
        meant = None if truth is None else self._language.read_fills(prompt, truth)
        if meant is not None:
            parts["match"] = share_right(meant, fills)
        total = self.ngram_weight * parts["ngram"] + self.match_weight * parts.get("match", parts["ngram"])
        return Score(total, parts, success=parts.get("match", 0.0) >= self.success_at)

    def examples(self) -> Sequence[Example]:
        """Every window of the training text, `layouts` times with other blanks."""
        return MadeExamples(int(self._window_ends[-1]) * self.layouts, self._window)

    @cached_property
    def _window_ends(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """How many windows there are up to the end of each stretch."""
        return np.cumsum([max(0, len(t) - self.block_size + 1) for t in self._tokens["train"]])

    def _window(self, index: int) -> Example:
        window = index % int(self._window_ends[-1])
        stretch = int(np.searchsorted(self._window_ends, window, side="right"))
        start = window - (int(self._window_ends[stretch - 1]) if stretch else 0)
        tokens = self._tokens["train"][stretch][start : start + self.block_size]
        task = self.make_task(f"example-{index}", tokens)
        if task is None:  # a tokenizer that would not read it back; its neighbor will do
            return self._window((index + 1) % len(self.examples()))
        return Example(task, task.spec["text"], self.ngram_weight + self.match_weight)

    def solution(self, task: Task) -> str | None:
        truth: str | None = task.spec.get("text")
        return truth

    def passages(self, task: Task, answer: str) -> Sequence[Passage]:
        """Before, with blanks, and after, each blank by whether it is right."""
        truth = task.spec.get("text")
        blanks = Passage("blanks", [(c, "blank" if c == SIGN else "plain") for c in task.prompt])
        fills = self._language.read_fills(task.prompt, answer)
        meant = None if truth is None else self._language.read_fills(task.prompt, truth)
        if fills is None:
            return [blanks, Passage("after", [(answer, "wrong")])]
        right = [fill for _, fill in meant] if meant else [""] * len(fills)
        after = Passage("after", list(_colored(task.prompt, [fill for _, fill in fills], right)))
        return [*([Passage("before", [(truth, "plain")])] if truth else []), blanks, after]


def share_right(meant: Sequence[tuple[int, str]], fills: Sequence[tuple[int, str]]) -> float:
    """The share of characters in blanks that are the true ones, place by place in each run; 1 without blanks."""
    pairs = [(true, fill) for (_, true), (_, fill) in zip(meant, fills, strict=True)]
    right = sum(a == b for true, fill in pairs for a, b in zip(true, fill, strict=False))
    places = sum(max(len(true), len(fill)) for true, fill in pairs)
    return right / places if places else 1.0


def _colored(prompt: str, fills: Sequence[str], right: Sequence[str]) -> Iterator[tuple[str, Kind]]:
    runs = iter(zip(fills, right, strict=True))
    before = ""
    for c in prompt:
        if c != SIGN:
            yield c, "plain"
        elif before != SIGN:
            fill, true = next(runs)
            for place, written in enumerate(fill):
                yield written, "right" if written == true[place : place + 1] else "wrong"
        before = c
