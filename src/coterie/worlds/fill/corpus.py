"""Where the text comes from, and which stretches of it are held out."""

from __future__ import annotations

import re
from pathlib import Path

HELDOUT_EVERY = 10  # one stretch in so many is held out
STRETCH = 2_000  # characters, about


def read_paragraphs(path: str) -> list[str]:
    """The paragraphs of a text file, or else of Python's own documentation; each once, or both splits might have it."""
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"corpus {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise ValueError(
                f"corpus {path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#x}"
            ) from None
        found = [part.strip("\n") for part in re.split(r"\n\s*\n", text)]
    else:
        found = [part for part in _documentation() if is_prose(part)]
    return [part for part in dict.fromkeys(found) if part.strip()]


def _documentation() -> list[str]:
    """What `help()` knows of the language, in every installation of CPython, its lines unwrapped."""
    from pydoc_data.topics import topics

    return [" ".join(part.split()) for name in sorted(topics) for part in re.split(r"\n\s*\n", topics[name])]


def is_prose(paragraph: str) -> bool:
    """Sentences rather than grammar, tables or code."""
    plain = sum(c.isalpha() or c in " ,.'" for c in paragraph)
    return len(paragraph) >= 60 and plain >= 0.85 * len(paragraph)


def split_stretches(paragraphs: list[str], shortest: int) -> dict[str, list[str]]:
    """Whole paragraphs, put together to stretches; every tenth stretch is held out."""
    size = max(STRETCH, 2 * shortest)
    stretches: list[str] = []
    current = ""
    for paragraph in paragraphs:
        for start in range(0, len(paragraph), size):  # one paragraph may be all there is
            current += paragraph[start : start + size] + "\n"
            if len(current) >= size:
                stretches.append(current)
                current = ""
    stretches.append(current)
    kept = [stretch for stretch in stretches if len(stretch) > shortest]
    if len(kept) < 2:
        raise ValueError(
            f"the corpus has {sum(map(len, paragraphs)):,} characters, too few for training and held-out text in "
            f"blocks of {shortest}; bring at least {2 * size:,}, or write a smaller block_size"
        )
    held = {place for place in range(len(kept)) if place % HELDOUT_EVERY == HELDOUT_EVERY // 2} or {len(kept) - 1}
    return {
        "train": [stretch for place, stretch in enumerate(kept) if place not in held],
        "heldout": [stretch for place, stretch in enumerate(kept) if place in held],
    }
