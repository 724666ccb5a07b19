"""Pictures side by side, each with its words."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

INK, PALE, PAPER = (40, 40, 40), (150, 150, 150), (255, 255, 255)


def contact_sheet(
    rows: Sequence[tuple[str, Sequence[tuple[Image.Image | None, str]]]], path: Path, size: int = 240
) -> None:
    """One titled row of (picture, words) after the other; a missing picture says so."""
    title_font, font = ImageFont.load_default(22), ImageFont.load_default(13)
    words_height, title_height = 52, 40
    columns = max(len(cells) for _, cells in rows)
    sheet = Image.new("RGB", (columns * size, len(rows) * (size + words_height + title_height)), PAPER)
    pen = ImageDraw.Draw(sheet)
    top = 0
    for title, cells in rows:
        pen.text((10, top + 8), title, INK, title_font)
        for column, (picture, words) in enumerate(cells):
            left = column * size
            if picture is None:
                pen.text((left + size // 2, top + title_height + size // 2), "nothing to show", PALE, font, "mm")
            else:
                sheet.paste(picture.resize((size, size)), (left, top + title_height))
            wrapped = "\n".join(textwrap.wrap(words, size // 7)[:3])
            pen.multiline_text((left + size // 2, top + title_height + size), wrapped, INK, font, "ma", align="center")
        top += size + words_height + title_height
    sheet.save(path)
