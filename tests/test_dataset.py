"""Files with StableText2Brick's columns: twenty rows of our own, in both formats."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.worlds.bricks.dataset import (
    BadRow,
    DatasetError,
    Structure,
    examples_of,
    instruction,
    load_structures,
    tasks_of,
)
from coterie.worlds.bricks.laying import Builder, lay_bricks
from coterie.worlds.bricks.shapes import KINDS, Shape, target_of
from coterie.worlds.bricks.structure import SIZES, parse_bricks, print_bricks, voxels_of

Row = dict[str, Any]


def make_row(number: int) -> Row:
    """Two structures an object, as in the published data: the same shape laid twice."""
    kind = list(KINDS)[number // 2]
    shape = Shape(kind, *(sizes[0] for sizes in (KINDS[kind].wide, KINDS[kind].deep, KINDS[kind].tall)))
    bricks = lay_bricks(target_of(shape, 20), Builder(care=1.0, slip_rate=0.0), np.random.default_rng(number))
    scores = np.ones((20, 20, 20))
    scores[voxels_of(bricks, 20)] = 0.9
    short, long = shape.captions
    return {
        "structure_id": f"structure-{number}",
        "object_id": f"object-{number // 2}",
        "category_id": kind,
        "captions": [short, long, f"{short} of bricks", f"build {short}", f"build {long}"],
        "bricks": print_bricks(bricks),
        "stability_scores": scores.tolist(),
    }


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [make_row(number) for number in range(20)]


def write_lines(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: list[Row]) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="parquet needs the extra coterie[data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    return path


WRITERS = {"rows.jsonl": write_lines, "rows.parquet": write_parquet}


@pytest.mark.parametrize("name", WRITERS)
def test_both_formats_give_back_every_row_in_order(name: str, rows: list[Row], tmp_path: Path) -> None:
    structures = load_structures(WRITERS[name](tmp_path / name, rows))
    assert [s.structure_id for s in structures] == [f"structure-{i}" for i in range(20)]
    for structure, row in zip(structures, rows, strict=True):
        assert (structure.object_id, structure.category_id) == (row["object_id"], row["category_id"])
        assert (list(structure.captions), structure.bricks) == (row["captions"], row["bricks"])


def test_a_folder_of_shards_is_one_set(rows: list[Row], tmp_path: Path) -> None:
    write_lines(tmp_path / "train-00000-of-00002.jsonl", rows[:8])
    write_parquet(tmp_path / "train-00001-of-00002.parquet", rows[8:])
    (tmp_path / "README.md").write_text("not data")
    assert [s.structure_id for s in load_structures(tmp_path)] == [row["structure_id"] for row in rows]


def test_every_caption_is_a_task_that_holds_its_target(rows: list[Row], tmp_path: Path) -> None:
    structures = load_structures(write_lines(tmp_path / "rows.jsonl", rows))
    train, heldout = (tasks_of(structures, split, str) for split in ("train", "heldout"))
    assert len({task.id for task in (*train, *heldout)}) == len(train) + len(heldout) == 5 * 20
    assert {task.prompt for task in train} | {task.prompt for task in heldout} == {
        c for r in rows for c in r["captions"]
    }
    for task in (*train, *heldout):
        [row] = [row for row in rows if row["structure_id"] == task.id.rpartition("-")[0]]
        assert task.prompt in row["captions"] and task.spec["bricks"] == row["bricks"]
        assert task.tags == {"category": row["category_id"], "bricks": len(parse_bricks(row["bricks"]))}


def test_examples_are_the_training_tasks_with_their_structures(rows: list[Row], tmp_path: Path) -> None:
    structures = load_structures(write_lines(tmp_path / "rows.jsonl", rows))
    examples = examples_of(structures, instruction)
    assert [example.task for example in examples] == tasks_of(structures, "train", instruction)
    assert all(example.answer == example.task.spec["bricks"] for example in examples)


def test_an_object_is_never_on_both_sides_and_about_a_tenth_is_held_out() -> None:
    structures = [Structure(f"s{i}", f"object {i // 3}", "chair", ("a chair",), "1x1 (0,0,0)\n") for i in range(6000)]
    sides: dict[str, set[bool]] = {}
    for structure in structures:
        sides.setdefault(structure.object_id, set()).add(structure.heldout)
    assert all(len(side) == 1 for side in sides.values())
    assert 0.08 < np.mean([structure.heldout for structure in structures]) < 0.12


FAULTS: list[tuple[Row, str]] = [
    ({"bricks": "2x4 (0,0,0)\n3x3 (0,0,1)\n"}, "line 2: there is no 3x3 brick"),
    ({"bricks": "2x4 (0,0,0)\n2x2 (1,1,0)\n"}, "brick 2, 2x2 (1,1,0), overlaps brick 1, 2x4 (0,0,0)"),
    ({"bricks": "2x4 (19,0,0)\n"}, "brick 1, 2x4 (19,0,0), is out of bounds"),
    ({"bricks": ""}, "there is no brick"),
    ({"bricks": None}, "bricks is missing"),
    ({"captions": []}, "captions is not a list of texts"),
    ({"captions": ["a chair", " "]}, "captions is not a list of texts"),
    ({"structure_id": "structure-0"}, "structure_id 'structure-0' was already in"),
]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(("change", "reason"), FAULTS)
def test_a_bad_row_is_reported_with_its_number_and_reason(
    name: str, change: Row, reason: str, rows: list[Row], tmp_path: Path
) -> None:
    path = WRITERS[name](tmp_path / name, [rows[0], rows[1] | change, rows[2]])
    reported: list[BadRow] = []
    good = load_structures(path, report=reported.append)
    assert [s.structure_id for s in good] == ["structure-0", "structure-2"]
    [bad] = reported
    assert (bad.file, bad.row) == (name, 2)
    assert bad.reason.startswith(reason)


def test_without_a_listener_the_first_bad_row_stops_the_loading(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{oh no\n")
    with pytest.raises(DatasetError, match=r"^rows\.jsonl, row 1: it is not a JSON object$"):
        load_structures(path)


@pytest.mark.parametrize("name", WRITERS)
def test_a_missing_column_is_named(name: str, rows: list[Row], tmp_path: Path) -> None:
    without = [{k: v for k, v in row.items() if k != "object_id"} for row in rows[:2]]
    with pytest.raises(DatasetError, match="row 1: object_id is missing"):
        load_structures(WRITERS[name](tmp_path / name, without))


def test_what_is_no_such_file_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="there is no file"):
        load_structures(tmp_path / "none.jsonl")
    with pytest.raises(DatasetError, match=r"end its name in \.parquet or \.jsonl"):
        load_structures(tmp_path / "rows.csv")
    with pytest.raises(DatasetError, match=r"holds no \.parquet and no \.jsonl file"):
        load_structures(tmp_path)
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_text("hello")
    with pytest.raises(DatasetError, match="is no parquet file"):
        load_structures(tmp_path / "rows.parquet")


def test_without_pyarrow_the_error_is_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"^pyarrow is not installed; run: pip install 'coterie\[data\]'$"):
        load_structures(tmp_path / "rows.parquet")


def test_the_instruction_states_format_sizes_ranges_and_caption() -> None:
    text = instruction("a chair with a tall back", world_dim=16)
    assert all(f"{h}x{w}" in text for h, w in SIZES)
    assert "HxW (X,Y,Z)" in text and "from 0 to 15" in text and "one unit tall" in text
    assert text.endswith("\na chair with a tall back")
