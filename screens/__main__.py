"""`python -m screens [NAME...]`: makes the pictures in docs/pictures/screens again, all of them or these."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from screens.scenes import SCENES, SHOWN_PORTS, World
from screens.svg import picture
from screens.terminal import COLUMNS, Cell, Terminal

FOLDER = Path(__file__).parent.parent / "docs" / "pictures" / "screens"


def main() -> int:
    """Run the scenes, and write a picture of each."""
    wanted = sys.argv[1:] or [scene.name for scene in SCENES]
    if unknown := set(wanted) - {scene.name for scene in SCENES}:
        print(f"error: no scene {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    with _folder() as folder, World(folder) as world:
        for scene in SCENES:
            for command in scene.before:
                world.run(command)
            for command in scene.beside:
                world.begin(command)
            for command in scene.ready:
                world.run(command)
            if scene.name not in wanted:
                continue
            with Terminal(scene.command, folder=world.folder, environment=world.environment) as terminal:
                terminal.until(scene.is_enough)
                rows = [_with_usual_ports(row) for row in terminal.shown() if not _says_where(row)]
            command = "".join(cell.text for cell in _with_usual_ports([Cell(sign) for sign in scene.command]))
            made = picture(command, rows, columns=COLUMNS, title=scene.title)
            (FOLDER / f"{scene.name}.svg").write_text(made, encoding="utf-8")
            print(f"{scene.name}: {len(rows)} rows", flush=True)
    return 0


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder of always the same short name, since screens show it."""
    folder = Path(tempfile.gettempdir()) / "ottla-demo"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _with_usual_ports(row: Sequence[Cell]) -> list[Cell]:
    cells = list(row)
    text = "".join(cell.text for cell in cells)
    for port, usual in SHOWN_PORTS.items():
        for found in re.finditer(rf":{port}\d\b", text):
            for place, digit in enumerate(usual, found.start() + 1):
                cells[place] = replace(cells[place], text=digit)
    return cells


def _says_where(row: Sequence[Cell]) -> bool:
    """Whether a row is the note which cluster is used: the same in all pictures."""
    text = "".join(cell.text for cell in row)
    return text.startswith(("using the default profile", "using the store", "using local"))


if __name__ == "__main__":
    sys.exit(main())
