"""Checkpoints that are whole or not there: written aside, checksummed, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

MANIFEST = "manifest.json"


class CheckpointError(ValueError):
    """No checkpoint that can be used; the message says what was found."""


def write_checkpoint(folder: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """A checkpoint to which `last` points."""
    final = write_whole(folder, name, fill)
    point(folder, "last", name)
    return final


def write_whole(folder: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """Make folder/name with what `fill` writes; a kill at any moment leaves the old state or the new."""
    aside = folder / f".writing-{name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    fill(aside)
    files = {path.name: _digest(path) for path in sorted(aside.iterdir())}
    (aside / MANIFEST).write_text(json.dumps(files, indent=1))
    for path in (*aside.iterdir(), aside):
        _sync(path)
    final, replaced = folder / name, folder / f".replaced-{name}"
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():
        final.rename(replaced)
    aside.rename(final)
    _sync(folder)
    return final


def point(folder: Path, link: str, name: str) -> None:
    """Let folder/link stand for folder/name, at once."""
    fresh = folder / f".linking-{link}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name, target_is_directory=True)
    os.replace(fresh, folder / link)


def checkpoint_names(folder: Path) -> list[str]:
    """Those that are complete, oldest first: cold-… come before step-…"""
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(("cold-", "step-")))


def damage(checkpoint: Path) -> str:
    """What is wrong with a checkpoint; '' if it is as it was written."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text())
    except (OSError, ValueError):
        return f"{MANIFEST} is missing or broken"
    for name, digest in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if _digest(path) != digest:
            return f"{name} was changed after it was written"
    return ""


def newest_sound(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest undamaged checkpoint; each damaged one on the way is named."""
    for name in reversed(checkpoint_names(folder)):
        if not (problem := damage(folder / name)):
            return folder / name
        warn(f"checkpoint {name} is damaged ({problem}); going back to the one before")
    return None


def prune(folder: Path, keep: int, also: Iterable[str]) -> None:
    """Delete all but the newest `keep` and those that `also` names, and what a kill left half done."""
    kept = {*checkpoint_names(folder)[-keep:], *also}
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink() and path.name not in kept:
            shutil.rmtree(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
