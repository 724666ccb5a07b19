"""Captioned structures from a file with StableText2Brick's columns (arXiv 2505.05469)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.rollouts import Task
from coterie.worlds.base import Example
from coterie.worlds.bricks.structure import SIZES, find_fault, parse_bricks

# The column stability_scores is left unread: it is a dense 20 x 20 x 20 array a row, and we judge for ourselves.
COLUMNS = ("structure_id", "object_id", "category_id", "captions", "bricks")
WORLD_DIM = 20
HELDOUT_SHARE = 10  # one object in so many
ROWS_AT_ONCE = 256


class DatasetError(ValueError):
    """A file that cannot be used; the message says where and why."""


@dataclass(frozen=True)
class Structure:
    """One row: a structure that parses, is in bounds and has no overlap, and what people call it."""

    structure_id: str
    object_id: str
    category_id: str
    captions: tuple[str, ...]
    bricks: str  # as text: a tenth of the memory of parsed bricks

    @property
    def heldout(self) -> bool:
        """By object, so that no object has captions or structures on both sides."""
        return int.from_bytes(hashlib.sha256(self.object_id.encode()).digest()[:8]) % HELDOUT_SHARE == 0


@dataclass(frozen=True)
class BadRow:
    """A row that is no structure; rows count from 1."""

    file: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}: {self.reason}"


def load_structures(
    path: Path | str, world_dim: int = WORLD_DIM, report: Callable[[BadRow], None] | None = None
) -> list[Structure]:
    """All structures of a file or a folder of files; a bad row is told to `report`, or stops the loading."""
    structures: list[Structure] = []
    places: dict[str, str] = {}
    for file in _files_of(Path(path)):
        for number, row in enumerate(_rows_of(file), 1):
            try:
                structure = _read_row(row, world_dim)
                place = f"{file.name}, row {number}"
                if (first := places.setdefault(structure.structure_id, place)) != place:
                    raise DatasetError(f"structure_id {structure.structure_id!r} was already in {first}")
            except ValueError as error:
                bad = BadRow(file.name, number, str(error))
                if report is None:
                    raise DatasetError(str(bad)) from None
                report(bad)
            else:
                structures.append(structure)
    return structures


def tasks_of(structures: Sequence[Structure], split: str, ask: Callable[[str], str]) -> list[Task]:
    """One task a caption, put in the words of `ask`; the spec holds the bricks it was written about."""
    tasks = []
    for s in structures:
        if s.heldout == (split == "heldout"):
            spec = {"bricks": s.bricks}
            tags: dict[str, float | str] = {"category": s.category_id, "bricks": s.bricks.count("(")}
            tasks += [Task(f"{s.structure_id}-{i}", ask(text), spec, tags) for i, text in enumerate(s.captions, 1)]
    return tasks


def examples_of(structures: Sequence[Structure], ask: Callable[[str], str]) -> list[Example]:
    """The training tasks with the answers people gave."""
    return [Example(task, task.spec["bricks"]) for task in tasks_of(structures, "train", ask)]


def instruction(caption: str, world_dim: int = WORLD_DIM) -> str:
    """A caption as a request to a language model: the format, the sizes, the ranges, then what is wanted."""
    sizes = ", ".join(f"{h}x{w}" for h, w in SIZES)
    last = world_dim - 1
    return (
        "Build what is described below out of toy bricks, so that it stands. Answer with one brick a line and "
        "nothing else, each as HxW (X,Y,Z), for example 2x6 (0,1,2), from the ground up.\n"
        f"HxW is one of {sizes}: H studs along x, W along y; every brick is one unit tall.\n"
        f"(X,Y,Z) is the brick's corner nearest the origin: whole numbers from 0 to {last}, Z = 0 on the ground. "
        f"No brick reaches beyond {world_dim} along any axis, and no two share a cell.\n\n"
        f"### Input:\n{caption}"
    )


def _files_of(path: Path) -> list[Path]:
    """The file itself, or the parquet and JSON lines files of a folder in the order of their names."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in (".parquet", ".jsonl"))
    if not files:
        raise DatasetError(f"{path} holds no .parquet and no .jsonl file")
    return files


def _rows_of(file: Path) -> Iterator[object]:
    readers = {".parquet": _parquet_rows, ".jsonl": _json_rows}
    if file.suffix not in readers:
        raise DatasetError(f"{file} does not say its format; end its name in {' or '.join(readers)}")
    if not file.is_file():
        raise DatasetError(f"there is no file {file}")
    return readers[file.suffix](file)


def _parquet_rows(file: Path) -> Iterator[object]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise ImportError("pyarrow is not installed; run: pip install 'coterie[data]'") from None
    try:
        source = parquet.ParquetFile(file)
    except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of these
        raise DatasetError(f"{file} is no parquet file: {str(error).splitlines()[0]}") from None
    with source:
        # A column that is not there is missing in every row, and reported there.
        known = [column for column in COLUMNS if column in source.schema_arrow.names]
        for batch in source.iter_batches(ROWS_AT_ONCE, columns=known):
            yield from batch.to_pylist()


def _json_rows(file: Path) -> Iterator[object]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                yield None


def _read_row(row: Any, world_dim: int) -> Structure:
    if not isinstance(row, dict):
        raise DatasetError("it is not a JSON object")
    if missing := [column for column in COLUMNS if row.get(column) is None]:
        raise DatasetError(f"{missing[0]} is missing")
    captions, text = row["captions"], row["bricks"]
    if not isinstance(captions, list) or not captions or not all(isinstance(c, str) and c.strip() for c in captions):
        raise DatasetError("captions is not a list of texts")
    if not isinstance(text, str):
        raise DatasetError("bricks is not a text")
    bricks = parse_bricks(text)
    if fault := find_fault(bricks, world_dim) if bricks else "there is no brick":
        raise DatasetError(fault)
    structure_id, object_id, category_id = (str(row[column]) for column in COLUMNS[:3])
    return Structure(structure_id, object_id, category_id, tuple(captions), text)
