"""Machines to look at: pictures, animations, MJCF, pages, words, and the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import mujoco
import numpy as np
import pytest
from PIL import Image

from coterie.cli import main
from coterie.worlds.machines import MachinesWorld
from coterie.worlds.machines.export import ENDINGS, print_mjcf
from coterie.worlds.machines.motion import record
from coterie.worlds.machines.page import draw_page
from coterie.worlds.machines.picture import draw_machine, draw_strip, save_gif
from coterie.worlds.machines.simulate import DT, simulate
from coterie.worlds.machines.solids import resting, solids_of
from coterie.worlds.machines.terrain import Scene
from coterie.worlds.machines.tree import Part, lay_out, print_machine, read_machine
from coterie.worlds.machines.words import cold_start_records, describe, instruction
from coterie.worlds.machines.world import hand_built

CAR, CATAPULT = read_machine(hand_built("car")), read_machine(hand_built("catapult"))


def save(tmp_path: Path, name: str) -> str:
    path = tmp_path / f"{name}.json"
    path.write_text(hand_built(name))
    return str(path)


def colors_of(image: Image.Image) -> int:
    return len(np.unique(np.asarray(image).reshape(-1, 3), axis=0))


def test_a_picture_shows_the_machine() -> None:
    image = draw_machine(CAR, 200)
    assert image.size == (200, 200)
    pixels = np.asarray(image).astype(int)
    wheel = (np.abs(pixels - [70, 74, 82]).sum(2) < 60).mean()
    assert 0.05 < wheel < 0.7  # four dark wheels
    assert MachinesWorld().picture(MachinesWorld().tasks("train")[0], "nonsense") is None


def test_a_strip_shows_the_motion() -> None:
    strip = draw_strip(CAR, Scene("step", 0.3), count=3, size=(120, 90))
    assert strip.size == (360, 90)
    first, last = (np.asarray(strip.crop((x, 12, x + 120, 90))) for x in (0, 240))
    assert (first != last).mean() > 0.05


@pytest.mark.parametrize("scene", [Scene("ridges", 0.2, load_mass=2.0), Scene("gap", width=1.0)])
def test_terrain_and_load_are_drawn(scene: Scene) -> None:
    assert colors_of(draw_strip(CAR, scene, count=1, size=(120, 90))) > 20


def test_an_animation_has_a_frame_a_moment(tmp_path: Path) -> None:
    save_gif(CATAPULT, Scene(), tmp_path / "catapult.gif", (120, 90), every=0.5)
    with Image.open(tmp_path / "catapult.gif") as gif:
        assert gif.n_frames == 11  # type: ignore[attr-defined]


def test_recorded_motion_begins_at_rest_and_follows_the_run() -> None:
    run, motion = record(CATAPULT, Scene(), every=0.2)
    middles, ends = resting(CATAPULT)
    np.testing.assert_allclose(motion.middles[0], middles, atol=1e-9)
    np.testing.assert_allclose(motion.ends[0], ends, atol=1e-9)
    np.testing.assert_allclose(motion.middles[:, 0], run.root, atol=1e-9)
    assert motion.middles.shape[1] == 1 + max(solid.body for solid in solids_of(CATAPULT)) == 8


def test_mjcf_opens_in_mujoco_and_drives_as_far() -> None:
    model = mujoco.MjModel.from_xml_string(print_mjcf(CAR, Scene()))
    data = mujoco.MjData(model)
    while data.time < 5 - DT / 2:
        mujoco.mj_step(model, data)
    run = simulate(CAR, Scene())
    # Text has fewer digits than memory.
    assert data.qpos[0] == pytest.approx(run.root[-1, 0], rel=0.01)


def test_the_page_stands_alone() -> None:
    page = draw_page(CATAPULT, Scene(), "</script><b>a title")
    assert "http" not in page and "<link" not in page and "</script><b>" not in page
    [shown] = re.findall(r"const M = (.*);\n", page)
    machine = json.loads(shown)
    assert len(machine["middles"]) == len(machine["turns"]) == 101
    assert len(machine["middles"][0]) == 8 and machine["bands"] == [[235, 120, 34]]


def test_a_machine_in_words_by_hand() -> None:
    machine = lay_out([Part("0"), Part("2", 0, 3), Part("15", 0, 4), Part("9", 1, 0, 2, 0)])
    first, wheel, block, band = describe(machine).splitlines()
    assert first == "The machine is the starting block with 1 powered wheel, 1 small wooden block, 1 rubber band."
    assert wheel == (
        "Block 1, a powered wheel, is on the right side of block 0 (face 3); "
        "it points to the right and its middle is at (0.75, 0, 0)."
    )
    assert block.endswith("is on the top of block 0 (face 4); it points up and its middle is at (0, 1, 0).")
    assert band == "Block 3, a rubber band, joins face 0 of block 1 to face 0 of block 2."


def test_cold_start_records_for_language_models_are_scored_by_the_same_verifier() -> None:
    world = MachinesWorld(kinds="catapult")
    task = world.tasks("train")[0]
    for line in cold_start_records([task], world.allowed(task), 3, seed=1):
        record_ = json.loads(line)
        assert record_["prompt"] == instruction(task, world.allowed(task))
        [verdict] = world.score(task, [record_["answer"]])
        assert verdict.valid, verdict.note


def test_the_instruction_names_every_allowed_block_and_face() -> None:
    world = MachinesWorld()
    car = world.tasks("train")[0]
    text = instruction(car, world.allowed(car))
    assert all(f'"{kind}" ' in text for kind in world.allowed(car))
    assert '"36"' not in text
    assert "on a block that faces x+, left is z+, right is z-, up is y+, down is y-;" in text


def test_score_tells_validity_distance_and_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(print_machine([Part("0"), Part("15", 0, 0), Part("15", 0, 0)]))
    assert main(["score", "machines", save(tmp_path, "car"), str(broken), "--task", "car", "--json"]) == 0
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert good["valid"] and good["success"] and good["parts"]["distance"] > 10 and good["seconds"] > 0
    assert not bad["valid"] and bad["total"] == 0 and "face 0 of block 0 is taken" in bad["note"]


def test_score_shows_people_only_the_reasons_that_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "machines", save(tmp_path, "catapult"), "--task", "car"]) == 0
    out = capsys.readouterr().out
    assert "invalid/block 1" in out and "invalid/json" not in out and "block 4 is a hinge" in out


def test_an_unknown_task_is_answered_with_those_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "machines", save(tmp_path, "car"), "--task", "cat"]) == 2
    assert "machines has no task 'cat'; it has" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ENDINGS)
def test_export_writes_every_format(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"out{ending}"
    assert main(["export", save(tmp_path, "catapult"), "--to", str(out), "--task", "catapult"]) == 0
    assert out.stat().st_size > 300


def test_export_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", save(tmp_path, "car"), "--to", str(tmp_path / "car.obj")]) == 2
    assert "end it in .png, .gif, .xml, .html, .json" in capsys.readouterr().err
    (tmp_path / "no.json").write_text("[]")
    assert main(["export", str(tmp_path / "no.json"), "--to", str(tmp_path / "no.png")]) == 2
    assert "is no valid machine" in capsys.readouterr().err
