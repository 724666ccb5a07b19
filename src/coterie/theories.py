"""The catalog of theories that a run found: listed, searched, printed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coterie.worlds.base import LanguageError
from coterie.worlds.theory.sarah import sarah_model
from coterie.worlds.theory.tables import latex_table, markdown_table
from coterie.worlds.theory.theory import parse_theory, print_theory

Entry = dict[str, Any]


def search(entries: Sequence[Entry], groups: str | None, contains: Sequence[str], least_fields: int) -> Iterator[Entry]:
    """Theories with just these groups, these words among their fields, and at least so many fermions."""
    wanted = sorted(groups.replace("x", " ").split()) if groups else None
    for entry in entries:
        if wanted is not None and sorted(entry["groups"].split()) != wanted:
            continue
        fermions = [line for line in entry["fields"] if line.startswith("F")]
        told = "\n".join(entry["fields"])
        if len(fermions) >= least_fields and all(word in told for word in contains):
            yield entry


def say(number: int, entry: Entry) -> str:
    """One line: its number in the catalog, when it was found, and what it is."""
    return f"{number:6d}  step {entry['step']:5d}  {entry['identity']}"


def name_of(path: Path) -> str:
    """A model's name for other programs: letters and digits."""
    return re.sub(r"\W|_", "", path.stem.title()) or "Theory"


def export_theory(text: str, path: Path) -> None:
    """Write a theory in the format that the file's name says: .md, .tex, .m (SARAH) or .txt."""
    theory = parse_theory(text)
    kinds = {
        ".md": lambda: markdown_table(theory),
        ".tex": lambda: latex_table(theory),
        ".m": lambda: sarah_model(theory, name_of(path)),
        ".txt": lambda: print_theory(theory),
    }
    if path.suffix not in kinds:
        raise LanguageError(f"{path} has no format that a theory can be written in; end it in {', '.join(kinds)}")
    path.write_text(kinds[path.suffix]())
