"""LDraw, pictures and pages; the page is opened in a real browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from coterie.worlds.bricks.export import (
    COLORINGS,
    LDRAW_COLORS,
    PARTS,
    ExportError,
    export_bricks,
    nearest_code,
    parse_ldraw,
    print_ldraw,
    read_bricks,
)
from coterie.worlds.bricks.page import draw_page, say_load, say_verdict
from coterie.worlds.bricks.picture import (
    FLOATING,
    LOAD_COLORS,
    LOAD_LEGEND,
    PALETTE,
    UNKNOWN,
    add_legend,
    color_by_layer,
    color_by_load,
    draw_bricks,
)
from coterie.worlds.bricks.stability import Verdict, analyze
from coterie.worlds.bricks.structure import MASSES, SIZES, Brick, BrickError, print_bricks

places = st.integers(0, 31)
bricks = st.builds(
    lambda size, x, y, z: Brick(size[0], size[1], x, y, z), st.sampled_from(SIZES), places, places, places
)

# Red, blue and yellow, the first colors: blue is to the right of red, yellow behind red and above.
CORNER = [Brick(2, 2, 0, 0, 0), Brick(2, 2, 6, 0, 0), Brick(2, 2, 0, 6, 0)]


@given(st.lists(bricks), st.text())
def test_parsing_ldraw_undoes_printing_it(structure: list[Brick], name: str) -> None:
    assert parse_ldraw(print_ldraw(structure, name, color_by_layer(structure))) == structure


def test_an_ldraw_file_has_a_header_a_line_a_brick_and_a_step_a_layer() -> None:
    text = print_ldraw([Brick(4, 2, 0, 0, 0), Brick(2, 4, 4, 1, 0), Brick(1, 1, 0, 0, 1)], "a table")
    assert text.splitlines() == [
        "0 a table",
        "0 Name: a table.ldr",
        "0 Author: Coterie",
        "0 !LDRAW_ORG Unofficial_Model",
        "1 4 40 0 20 1 0 0 0 1 0 0 0 1 3001.dat",
        # Its middle is at x = 5 and y = 3 studs; the long side is turned from LDraw's x to its z.
        "1 1 100 0 60 0 0 1 0 1 0 -1 0 0 3001.dat",
        "0 STEP",
        "1 14 10 -24 10 1 0 0 0 1 0 0 0 1 3005.dat",
        "0 STEP",
    ]


def test_every_size_has_its_part() -> None:
    assert set(PARTS) == set(MASSES)
    assert len(set(PARTS.values())) == len(PARTS)


def test_half_turns_decimals_and_other_lines_are_read() -> None:
    # The first two lines are as BrickGPT writes them.
    text = (
        "1 115 150.0 0 360.0 0 0 1 0 1 0 -1 0 0 3004.DAT\n0 STEP\n"
        "1 115 80.0 -24 360.0 -1 0 0 0 1 0 0 0 -1 3001.DAT\r\n\n"
        "0 // a comment\n2 24 0 0 0 1 1 1\n"
        "1 0x2FF8800 9.9999 -48.0001 19.99999 0 0 -1 0 1 0 1 0 0 3004.dat\n"
    )
    assert parse_ldraw(text) == [Brick(1, 2, 7, 17, 0), Brick(4, 2, 2, 17, 1), Brick(1, 2, 0, 0, 2)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 4 10 0 10 1 0 0 0 1 0 0 0 1 3020.dat", "line 1: '3020.dat' is not a brick of the library"),
        ("1 4 10 0 10 1 0 0 0 1 0 0 0 1", "line 1: a part is written as"),
        ("1 4 nan 0 10 1 0 0 0 1 0 0 0 1 3005.dat", "line 1: a part is written as"),
        ("1 4 10 0 ten 1 0 0 0 1 0 0 0 1 3005.dat", "line 1: a part is written as"),
        ("1 4 10 0 10 .7 0 .7 0 1 0 -.7 0 .7 3005.dat", "line 1: the brick is tilted, mirrored or turned"),
        ("1 4 10 0 10 -1 0 0 0 1 0 0 0 1 3005.dat", "line 1: the brick is tilted, mirrored or turned"),
        ("1 4 12 0 10 1 0 0 0 1 0 0 0 1 3005.dat", "line 1: the brick is off the grid"),
        ("1 4 10 24 10 1 0 0 0 1 0 0 0 1 3005.dat", "line 1: the brick is off the grid"),
        ("1 4 1e300 0 10 1 0 0 0 1 0 0 0 1 3005.dat", "line 1: the brick is off the grid"),
    ],
)
def test_an_ldraw_part_that_is_no_brick_is_named_with_its_line(line: str, reason: str) -> None:
    with pytest.raises(BrickError, match=re.escape(reason)):
        parse_ldraw(line)


def test_every_color_we_use_has_an_ldraw_code_of_its_own() -> None:
    assert len({nearest_code(color) for color in PALETTE}) == len(PALETTE)
    assert [nearest_code(color) for color in LOAD_COLORS.values()] == [2, 27, 14, 25, 4]
    assert (nearest_code(FLOATING), nearest_code(UNKNOWN)) == (26, 71)
    assert all(nearest_code(color) == code for code, color in LDRAW_COLORS.items())


def test_colors_by_load_go_from_green_to_red_and_floating_bricks_stand_out() -> None:
    loads = [0.0, 0.05, 0.5, 1.0, 7.0, np.inf, np.nan]
    color_of = color_by_load(Verdict(0.0, load=np.array(loads)))
    green, between, orange, red, worse, floating, unknown = map(color_of, range(len(loads)))
    assert (green, orange, red, worse) == (LOAD_COLORS[0.0], LOAD_COLORS[0.5], LOAD_COLORS[1.0], LOAD_COLORS[1.0])
    assert between == (100, 168, 62)  # half way from (41, 140, 74) to (160, 195, 50)
    assert (floating, unknown) == (FLOATING, UNKNOWN)


@given(st.floats(0, 2), st.floats(0, 2))
def test_more_load_is_never_greener(one: float, other: float) -> None:
    color_of = color_by_load(Verdict(0.0, load=np.array(sorted((one, other)))))
    less, more = color_of(0), color_of(1)
    assert more[0] / (more[1] + 1) >= less[0] / (less[1] + 1) - 0.01


def test_colors_by_layer_depend_on_the_height_alone() -> None:
    color_of = color_by_layer([Brick(1, 1, 0, 0, 0), Brick(1, 1, 5, 5, 0), Brick(1, 1, 0, 0, 1)])
    assert color_of(0) == color_of(1) != color_of(2)


def test_a_legend_adds_a_row_that_shows_every_color() -> None:
    picture = add_legend(draw_bricks(CORNER, 320), LOAD_LEGEND)
    assert picture.width == 320 < picture.height
    strip = picture.crop((0, 320, *picture.size))
    assert {color for color, _ in LOAD_LEGEND} <= {color for _, color in strip.getcolors(1 << 16) or []}


def test_loads_and_verdicts_are_said_in_words() -> None:
    assert [say_load(load) for load in (0.125, 1.5, np.inf)] == ["12% of what its studs hold", "fails", "floats"]
    assert "not known" in say_load(np.nan)
    assert say_verdict(analyze(CORNER)) == "It stands, and would under at least 10 times its own weight."
    assert say_verdict(Verdict(1.25)) == "It stands, and would under 1.25 times its own weight."
    floating = say_verdict(analyze([Brick(1, 1, 0, 0, 3)]))
    assert floating.startswith("It does not stand: brick 1, 1x1 (0,0,3), floats")


@pytest.mark.parametrize("coloring", COLORINGS)
def test_the_ending_of_the_file_chooses_the_format(coloring: str, tmp_path: Path) -> None:
    for ending in (".txt", ".ldr", ".png", ".html"):
        export_bricks(CORNER, tmp_path / f"corner{ending}", coloring)
    assert (tmp_path / "corner.txt").read_text() == print_bricks(CORNER)
    assert read_bricks(tmp_path / "corner.txt") == read_bricks(tmp_path / "corner.ldr") == CORNER
    assert "0 Name: corner.ldr" in (tmp_path / "corner.ldr").read_text()
    with Image.open(tmp_path / "corner.png") as picture:
        assert picture.width == 960
    assert "http" not in (tmp_path / "corner.html").read_text()


def test_what_cannot_be_exported_is_said_in_a_sentence(tmp_path: Path) -> None:
    def refusal(bricks: list[Brick], name: str, coloring: str = "brick") -> str:
        with pytest.raises(ExportError) as caught:
            export_bricks(bricks, tmp_path / name, coloring)
        return str(caught.value)

    assert refusal(CORNER, "corner.obj") == "'corner.obj' does not say which format; end it in .ldr, .html, .png, .txt"
    assert refusal(CORNER, "a.png", "mood") == "there are no colors by 'mood'; write one of brick, layer, load"
    assert refusal([], "a.png") == "there is no brick"
    assert "overlaps brick 1" in refusal([CORNER[0], CORNER[0]], "a.png")
    assert "out of bounds" in refusal([Brick(1, 1, 9999, 9999, 9999)], "a.png")
    assert "cannot be written" in refusal(CORNER, "nowhere/a.txt")
    with pytest.raises(ExportError, match="cannot be read"):
        read_bricks(tmp_path / "none.txt")


def test_a_title_cannot_break_out_of_the_page() -> None:
    title = "</script><script>alert(1)</script>{{structure}}"
    page = draw_page(CORNER, analyze(CORNER), title)
    [inside] = re.findall(r'id="structure">(.*?)</script>', page)
    assert json.loads(inside)["title"] == title
    assert "alert(1)</script>" not in page


@settings(max_examples=20, deadline=None)
@given(st.lists(bricks, min_size=1, max_size=20))
def test_a_page_holds_its_bricks_whatever_they_are(structure: list[Brick]) -> None:
    page = draw_page(structure, Verdict(0.0, load=np.full(len(structure), np.inf)), "any")
    [inside] = re.findall(r'id="structure">(.*?)</script>', page)
    assert [Brick(*b) for b in json.loads(inside)["bricks"]] == structure


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=20000",
    "--window-size=900,700",
)
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH to open the page with")


def browse(page: Path, *options: str, place: str = "", until: str = "") -> str:
    """What chromium prints about the page after its script has run; on a busy machine it may print too early."""
    assert CHROMIUM is not None
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [CHROMIUM, *FLAGS, profile, *options, page.as_uri() + place]
    for _ in range(5):
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        if until in shown:
            break
    return shown


def write_page(folder: Path, bricks: list[Brick], script: str = "") -> Path:
    """The page as a user gets it, with a script after it that plays the user."""
    page = folder / "structure.html"
    export_bricks(bricks, page)
    with page.open("a") as end:
        end.write(f'<script type="module">{script}</script>')
    return page


@in_a_browser
def test_the_page_shows_every_brick_and_raises_no_error(tmp_path: Path) -> None:
    tower = [Brick(2, 2, 0, 0, z) for z in range(12)]
    page = write_page(tmp_path, tower)
    shown = browse(page, "--dump-dom")
    assert '<body data-bricks="12">' in shown  # a raised error would stand there too
    assert ">12 of 12 bricks</output>" in shown
    assert "<title>structure</title>" in shown
    assert '<body data-bricks="5">' in browse(page, "--dump-dom", place="#5")


PLAY = """
const canvas = document.querySelector("canvas"), slider = document.querySelector("#shown");
const fire = (kind, x, y) => canvas.dispatchEvent(
  new PointerEvent(kind, { clientX: x, clientY: y, pointerId: 1, bubbles: true }));
const painted = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
const before = canvas.toDataURL();
slider.value = 2;
slider.dispatchEvent(new Event("input"));
document.querySelector("[value=load]").click();
fire("pointerdown", 450, 300);
fire("pointermove", 300, 340);
fire("pointerup", 300, 340);
canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -400, cancelable: true }));
await painted();
document.body.dataset.changed = canvas.toDataURL() !== before;
document.body.dataset.names = [...Array(90).keys()].flatMap((i) => [...Array(70).keys()].map((j) => {
  fire("pointermove", 10 * i, 10 * j);
  return document.querySelector("#name").textContent;
})).filter((name, i, all) => name && all.indexOf(name) === i).sort().join(" | ");
"""


@in_a_browser
def test_the_page_turns_zooms_builds_and_names_bricks(tmp_path: Path) -> None:
    shown = browse(write_page(tmp_path, CORNER, PLAY), "--dump-dom", until="data-names=")
    assert "data-error" not in shown
    assert 'data-bricks="2"' in shown
    assert 'data-changed="true"' in shown
    said = "0% of what its studs hold"
    assert f'data-names="brick 1: 2x2 (0,0,0), {said} | brick 2: 2x2 (6,0,0), {said}"' in shown
    assert re.search(r'<span id="legend"><span><i style="background: rgb\(41, 140, 74\)', shown)


@in_a_browser
def test_an_error_in_the_page_would_be_seen(tmp_path: Path) -> None:
    page = write_page(tmp_path, CORNER, "no_such_thing();")
    assert 'data-error="Uncaught ReferenceError: no_such_thing is not defined"' in browse(page, "--dump-dom")


@in_a_browser
def test_the_page_is_no_mirror_image(tmp_path: Path) -> None:
    browse(write_page(tmp_path, CORNER), f"--screenshot={tmp_path / 'page.png'}")
    with Image.open(tmp_path / "page.png") as picture:
        pixels = np.asarray(picture.convert("RGB"), np.int64)[:560]  # above the panel, which is partly blue too
    middles = []
    for color in PALETTE[: len(CORNER)]:
        down, right = np.nonzero(np.abs(pixels - color).max(2) <= 2)
        assert len(down) > 100, "the tops of the bricks have their full color"
        middles.append((right.mean(), down.mean()))
    (red_x, red_y), (blue_x, _), (yellow_x, yellow_y) = middles
    assert blue_x > red_x + 100  # x to the right
    assert yellow_y < red_y - 50  # y away, which is up in the picture
    assert blue_x > yellow_x
