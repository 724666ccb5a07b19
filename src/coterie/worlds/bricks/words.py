"""What both brick languages write alike: the end, captions word by word, and which texts they take."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from coterie.worlds.base import LanguageError
from coterie.worlds.bricks.shapes import KINDS, Shape
from coterie.worlds.bricks.structure import Brick, BrickError, parse_bricks

END = 0  # the first token of both vocabularies
BUILD = "<build>"


def caption_words(world_dim: int) -> list[str]:
    """The last tokens of both vocabularies: the word that ends a caption, then those it is made of."""
    words = {word for kind in KINDS for caption in Shape(kind, 1, 1, 1).captions for word in caption.split()}
    return [BUILD, *map(str, range(world_dim + 1)), *sorted(word for word in words if not word.isdigit())]


def encode_caption(prompt: str, ids: Mapping[str, int], world_dim: int) -> list[int]:
    """The tokens of a caption; LanguageError names the first word that is unknown."""
    words = re.sub(r"[,.;]", " ", prompt).split()
    for word in words:
        if ids.get(word, END) <= ids[BUILD]:
            known = ", ".join(w for w, i in ids.items() if i > ids[BUILD] and not w.isdigit())
            raise LanguageError(f"{word!r} is not a word this world knows; use numbers up to {world_dim} and: {known}")
    return [*(ids[word] for word in words), ids[BUILD]]


def read_bricks(answer: str, world_dim: int, max_bricks: int, sizes: Collection[tuple[int, int]]) -> list[Brick]:
    """The bricks of an answer that a language with these settings can write; else LanguageError."""
    try:
        bricks = parse_bricks(answer)
    except BrickError as error:
        raise LanguageError(str(error)) from error
    if len(bricks) > max_bricks:
        raise LanguageError(f"{len(bricks)} bricks are more than max_bricks = {max_bricks}")
    for number, b in enumerate(bricks, 1):
        if max(b.x, b.y, b.z) >= world_dim:
            raise LanguageError(f"line {number}: {b} lies outside a world of {world_dim} studs")
        if (b.h, b.w) not in sizes:
            known = ", ".join(f"{h}x{w}" for h, w in sizes)
            raise LanguageError(f"line {number}: {b.h}x{b.w} is not among this world's sizes: {known}")
    return bricks
