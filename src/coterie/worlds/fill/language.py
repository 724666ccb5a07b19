"""Texts as tokens, with and without blanks: characters, or the pieces of a given tokenizer."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from coterie.rollouts import Bools, Ints, Task
from coterie.worlds.base import LanguageError

SPECIAL = ("<end>", "<mask>", "<text>")
END, MASK, TEXT = range(3)


@dataclass(frozen=True)
class Spelling:
    """Pieces of text, none empty, and how a text is cut into them."""

    pieces: tuple[str, ...]
    cut: Callable[[str], list[int]]


def spell_characters(texts: Sequence[str]) -> Spelling:
    """A piece a character."""
    pieces = tuple(sorted(set().union(*texts)))
    places = {c: i for i, c in enumerate(pieces)}

    def cut(text: str) -> list[int]:
        for place, c in enumerate(text):
            if c not in places:
                raise LanguageError(f"character {place + 1} of {text[:40]!r}, {c!r}, is not in the corpus")
        return [places[c] for c in text]

    return Spelling(pieces, cut)


def spell_pieces(path: str) -> Spelling:
    """The pieces of a tokenizer.json, as Hugging Face's tokenizers writes them."""
    try:
        library = importlib.import_module("tokenizers")
    except ImportError:
        raise ValueError("a tokenizer needs the package tokenizers: pip install 'coterie[tokenizer]'") from None
    if not Path(path).is_file():
        raise ValueError(f"tokenizer {path}: there is no such file; write the path of a tokenizer.json")
    try:
        tokenizer = library.Tokenizer.from_file(path)
    except Exception as error:  # whatever the library raises, the file is not what it should be
        raise ValueError(f"tokenizer {path} is no tokenizer.json: {error}") from None
    count = tokenizer.get_vocab_size()
    # Spelled after another token, as some decoders drop the space that begins a text.
    first = tokenizer.decode([0], skip_special_tokens=False)
    whole = (tokenizer.decode([0, i], skip_special_tokens=False) for i in range(count))
    pieces = tuple(text[len(first) :] for text in whole)

    def cut(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        if "".join(pieces[i] for i in ids) != text:
            raise LanguageError(f"the tokenizer cannot spell {text[:40]!r}")
        return ids

    return Spelling(pieces, cut)


@dataclass(frozen=True)
class BlanksLanguage:
    """A prompt is a text with a sign for every blank; its answer is the whole text, filled in."""

    spelling: Spelling
    sign: str
    block_size: int

    @cached_property
    def vocabulary(self) -> Sequence[str]:
        return [*SPECIAL, *self.spelling.pieces]

    @property
    def end(self) -> int:
        return END

    @property
    def mask(self) -> int:
        return MASK

    @property
    def max_tokens(self) -> int:
        return self.block_size + 1

    @cached_property
    def fillable(self) -> Bools:
        """Pieces that are whole characters, and not the sign."""
        plain = [bool(p) and "\ufffd" not in p and self.sign not in p for p in self.spelling.pieces]
        return np.array([False] * len(SPECIAL) + plain)

    def encode_prompt(self, prompt: str) -> list[int]:
        first, *others = prompt.split(self.sign)
        return [TEXT, *self._cut(first), *(token for part in others for token in (MASK, *self._cut(part)))]

    def encode(self, answer: str) -> list[int]:
        tokens = self._cut(answer)
        # A tokenizer may cut what was drawn token by token into more of them.
        if self.one_each and len(tokens) > self.block_size:
            raise LanguageError(f"the text has {len(tokens)} tokens; write at most {self.block_size}")
        return [*tokens, END]

    def decode(self, tokens: Sequence[int]) -> str:
        spelled = {END: "", TEXT: "", MASK: self.sign}
        return "".join(spelled[t] if t in spelled else self.vocabulary[t] for t in tokens)

    def read_fills(self, prompt: str, answer: str) -> list[tuple[int, str]] | None:
        """(blanks, what stands there) for each run of blanks; None if the answer is not the prompt, filled in."""
        return read_fills(prompt, answer, self.sign, self.one_each)

    @cached_property
    def one_each(self) -> bool:
        """Whether every token is a character."""
        return all(len(piece) == 1 for piece in self.spelling.pieces)

    def fill_in(self, prompt: str, answer: str) -> list[int]:
        fills = self.read_fills(prompt, answer)
        if fills is None:
            raise LanguageError(f"{answer[:40]!r} is not {prompt[:40]!r}, filled in")
        tokens = self.encode_prompt(prompt)
        blanks = [place for place, token in enumerate(tokens) if token == MASK]
        filled = [token for _, fill in fills for token in self._cut(fill)]
        if len(filled) != len(blanks):
            raise LanguageError(f"{answer[:40]!r} fills {len(blanks)} blanks with {len(filled)} tokens")
        for place, token in zip(blanks, filled, strict=True):
            tokens[place] = token
        return tokens

    def constraint(self, tasks: Sequence[Task]) -> Known:
        rows = [[*self.encode_prompt(task.prompt)[1:], END] for task in tasks]
        forced = np.full((len(rows), max(map(len, rows), default=1)), END)
        for row, tokens in enumerate(rows):
            forced[row, : len(tokens)] = tokens
        return Known(forced, self.fillable)

    def _cut(self, text: str) -> list[int]:
        return [len(SPECIAL) + piece for piece in self.spelling.cut(text)]


@dataclass
class Known:
    """What is not blank is as it was; for a policy that writes the text from left to right."""

    forced: Ints  # [rows, T], MASK where the policy may choose
    fillable: Bools  # [V]
    place: int = 0

    def legal(self) -> Bools:
        now = self.forced[:, min(self.place, self.forced.shape[1] - 1)]
        legal: Bools = np.arange(len(self.fillable)) == now[:, None]
        legal[now == MASK] = self.fillable
        return legal

    def advance(self, tokens: Ints) -> None:
        assert len(tokens) == len(self.forced)
        self.place += 1

    def keep(self, rows: Ints) -> None:
        self.forced = self.forced[rows]


def read_fills(prompt: str, answer: str, sign: str, one_each: bool) -> list[tuple[int, str]] | None:
    """(blanks, what stands there) for each run of blanks; None if the answer is not the prompt, filled in.

    A blank takes one character, or else at least one; then what is known is found as early as it can be, which finds
    a reading if there is one.
    """
    runs: list[tuple[int, str]] = []  # blanks, and the known text after them
    first, *others = prompt.split(sign)
    waiting = 0
    for part in others:
        waiting += 1
        if part:
            runs.append((waiting, part))
            waiting = 0
    if waiting:
        runs.append((waiting, ""))
    if not answer.startswith(first) or (not runs and answer != first):
        return None
    if one_each and len(answer) != len(prompt):
        return None
    fills, place = [], len(first)
    for number, (blanks, known) in enumerate(runs, 1):
        at = len(answer) - len(known) if number == len(runs) else answer.find(known, place + blanks)
        if at < place + blanks or not answer.startswith(known, at):
            return None
        fills.append((blanks, answer[place:at]))
        place = at + len(known)
    return fills
