"""Commands about answers and worlds rather than runs; a command's docstring is its help."""

from __future__ import annotations

import difflib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from coterie.arguments import UsageError, Words
from coterie.build import export_policy, make_scorer, read_run_config
from coterie.config import parse_settings
from coterie.rollouts import Score, Task
from coterie.runs.folder import RunFolder
from coterie.theories import export_theory
from coterie.theories import say as say_theory
from coterie.theories import search as search_theories
from coterie.worlds.base import World
from coterie.worlds.bricks.export import export_bricks, read_bricks
from coterie.worlds.check import check_world
from coterie.worlds.load import load_world, world_fields
from coterie.worlds.machines.export import export_machine
from coterie.worlds.machines.goals import goal_of


def find_task(world: World, prompt: str) -> Task:
    """The world's own task with this prompt or id, so that its verifier knows what was asked for."""
    for split in ("train", "heldout"):
        for task in world.tasks(split):
            if prompt in (task.prompt, task.id):
                return task
    return Task(id=prompt, prompt=prompt)


def show_parts(score: Score) -> str:
    """The parts of a verdict; of those that only count something (with a slash), the ones that did."""
    return "  ".join(f"{name} {value:.3g}" for name, value in score.parts.items() if value or "/" not in name)


def known_task(world: World, name: str) -> Task:
    """The world's task with this id or prompt."""
    task = find_task(world, name)
    if not task.tags and not task.spec:
        ids = [task.id for task in world.tasks("train")]
        near = ", ".join(difflib.get_close_matches(name, ids, 3, 0.3) or ids[:3])
        raise UsageError(f"{world.name} has no task {name!r}; it has {near}, …")
    return task


def score(words: Words) -> int:
    """\
coterie score WORLD FILE… [--prompt TEXT | --task ID] [--json] [--explain]

Judges one answer a file. With --prompt (a task's prompt or id) the answer is held against what was asked; --task must
be a task of the world. --json prints one object a file: {"file", "total", "valid", "success", "parts", "note",
"seconds"}; --explain works the verdict out line by line, in worlds that can.

  coterie score bricks tower.txt bridge.txt --json
  coterie score machines car.json --task car
"""
    if len(words.alone) < 2:
        raise UsageError("name a world and at least one file, as in: coterie score bricks tower.txt")
    name, *files = words.alone
    prompt, known = words.pop("prompt"), words.pop("task")
    as_json, at_length = words.pop_flag("json"), words.pop_flag("explain")
    limit = float(words.pop_number("answer_limit_s", 60) or 60)
    fields = world_fields(name)
    config = parse_settings({"world": name, **words.named}, fields)
    world = load_world(name, config.world_options)
    task = find_task(world, prompt) if prompt is not None else Task("file", "")
    if known is not None:
        task = known_task(world, known)
    with make_scorer(config.model_copy(update={"workers": 1, "answer_limit_s": limit}), world) as scorer:
        for file in files:
            try:
                answer = Path(file).read_bytes().decode(errors="replace")
            except OSError as error:
                raise UsageError(f"{file} cannot be read: {error.strerror}") from None
            started = time.perf_counter()
            [verdict] = scorer.score(task, [answer])
            seconds = round(time.perf_counter() - started, 4)
            shown = {k: v for k, v in asdict(verdict).items() if k in ("total", "valid", "success", "parts", "note")}
            if as_json:
                print(json.dumps({"file": file, **shown, "seconds": seconds}))
            elif at_length and (told := world.explain(task, answer)):
                print(told)
            else:
                print(f"{file}: {verdict.total:.3f}  {show_parts(verdict)}  {verdict.note}")
    return 0


def check(words: Words) -> int:
    """\
coterie check WORLD | my_world.py

Tests a world against the contract: its tasks, its scores, its examples and its language.
"""
    name = words.one("WORLD")
    config = parse_settings({"world": name, **words.named}, world_fields(name))
    broken = 0
    for finding in check_world(load_world(name, config.world_options)):
        print(f"{'BROKEN' if finding.problem else 'ok':>6}  {finding.rule}")
        if finding.problem:
            broken += 1
            print(f"        {finding.problem}")
    print(f"{name}: {broken} rules broken" if broken else f"{name}: all is well; try: coterie train {name}")
    return 1 if broken else 0


def export(words: Words) -> int:
    """\
coterie export FILE --to OUT.ldr|OUT.html|OUT.png|OUT.txt [--colors brick|layer|load]
coterie export THEORY.txt --to OUT.md|OUT.tex|OUT.m|OUT.txt
coterie export MACHINE.json --to OUT.png|OUT.gif|OUT.xml|OUT.html|OUT.json [--task car]
coterie export RUN --to DIR [--merge] [--checkpoint best]

Writes a brick structure for others: LDraw for LEGO CAD programs, a page to turn it around in, a picture. FILE is
brick text or LDraw; `load` colors each brick by how close it is to failing. A theory becomes a table (Markdown or
LaTeX) or a SARAH model. A machine (.json) is run on the terrain of a task: moments side by side, an animation, MJCF
for MuJoCo's viewer, a page with the motion. A run of a language model becomes a folder for transformers; with LoRA one
for peft, unless --merge puts the adapter into the model.

  coterie export tower.txt --to tower.html --colors load
  coterie export theory.txt --to theory.m
  coterie export car.json --to car.gif --task climb
  coterie export runs/first --merge --to my-model
"""
    to, colors = words.pop("to"), words.pop("colors", "brick")
    if to is None:
        raise UsageError("say where to, as in: coterie export tower.txt --to tower.ldr")
    path, task = Path(words.one("FILE")), words.pop("task")
    merge, checkpoint = words.pop_flag("merge"), words.pop("checkpoint")
    words.finish("export")
    if path.is_dir():
        export_policy(RunFolder.open(path), Path(to), merge, checkpoint)
        print(f"Written: {to}")
        return 0
    try:
        if path.suffix == ".txt" and (text := path.read_text(errors="replace")).lstrip().startswith(("BOS", "#")):
            export_theory(text, Path(to))
        elif path.suffix == ".json":
            export_machine(path, Path(to), goal_of(known_task(load_world("machines"), task or "car")).scene)
        else:
            export_bricks(read_bricks(path), Path(to), str(colors))
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be used: {error.strerror}") from None
    print(f"Written: {to}")
    return 0


def theories(words: Words) -> int:
    """\
coterie theories RUN [--groups "SU3 SU2 U1"] [--contains "3bar x3"] [--fields N] [--num N] [--show NUMBER] [--to OUT]

Lists the distinct theories that a run found, newest last: number, step, groups | fermions | scalars (V: with a VEV).
--groups takes those with just these gauge groups, --contains those whose fields have all these words, --fields those
with so many fermions or more. --show prints one by its number, worked out; --to also writes it as .md, .tex, .m
(SARAH) or .txt.

  coterie theories runs/theory --groups "SU3 SU2 U1" --fields 6
  coterie theories runs/theory --show 120 --to found.m
"""
    run = RunFolder.open(Path(words.one("RUN")))
    config = read_run_config(run)
    world = load_world(config.world, config.world_options)
    entries = run.discoveries(world.catalog)
    if config.world != "theory":
        raise UsageError(f"{run.path} is a run of {config.world}, not of theory")
    number, to = words.pop_number("show"), words.pop("to")
    groups, contains = words.pop("groups"), (words.pop("contains") or "").split()
    least, most = words.pop_number("fields", 1) or 1, words.pop_number("num", 40) or 40
    words.finish("theories")
    if number is not None:
        if number > len(entries):
            raise UsageError(f"{run.path} has found {len(entries)} theories; there is no number {number}")
        entry = entries[number - 1]
        print(world.explain(Task("found", ""), entry["theory"]), end="")
        if to is not None:
            export_theory(entry["theory"], Path(to))
            print(f"Written: {to}")
        return 0
    numbers = {id(entry): place for place, entry in enumerate(entries, 1)}
    found = list(search_theories(entries, groups, contains, least))
    for entry in found[-most:]:
        print(say_theory(numbers[id(entry)], entry))
    print(f"{len(found)} of {len(entries)} distinct theories", file=sys.stderr)
    return 0
