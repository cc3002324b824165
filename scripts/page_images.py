#!/usr/bin/env python3
"""Draw the pictures of the README from the real program: ``python scripts/page_images.py``.

docs/images/answer.svg is what ``deepvm recommend --pw 3`` prints. docs/images/run.png is the page
of docs/examples/checkpointer, which is run on simulated machines; it needs Chromium.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
QUESTION = "deepvm recommend --pw 3"
# Rich's own frame, without its web font
FRAME = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>deepvm recommend --pw 3</title>
<style>
.{unique_id}-matrix {{
font: {char_height}px ui-monospace, Menlo, Consolas, monospace; line-height: {line_height}px
}}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>{lines}</defs>
<rect fill="#ffffff" stroke="#d0d7de" stroke-width="2" width="100%" height="100%" rx="8"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""
LIGHT = TerminalTheme(
    (255, 255, 255),
    (31, 35, 40),
    [
        (31, 35, 40),
        (179, 29, 40),
        (17, 99, 41),
        (125, 78, 0),
        (5, 80, 174),
        (130, 80, 223),
        (27, 124, 131),
        (87, 96, 106),
    ],
)


def answer() -> str:
    """The answer as a terminal shows it, as a picture."""
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"}
    words = [sys.executable, "-m", *QUESTION.split(), "--offline"]
    out = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    shown = Text.from_ansi(f"$ {QUESTION}\n{out.rstrip()}")
    width = max(len(line) for line in shown.plain.splitlines())
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(shown, soft_wrap=True)
    return console.export_svg(title=QUESTION, theme=LIGHT, code_format=FRAME, unique_id="answer")


def run_page(folder: Path) -> Path:
    """The page of the example, preempted twice."""
    job = ROOT / "docs" / "examples" / "checkpointer" / "job.yaml"
    environment = {**os.environ, "DEEPVM_DATA_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "deepvm", "run", str(job)]
    subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL)
    return folder / "jobs" / "checkpointer" / "run.html"


def screenshot(page: Path, target: Path, folder: Path) -> None:
    """Picture of the top of a page, as Chromium shows it."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("scripts/page_images.py: Chromium is not installed")
    words = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    words += [f"--user-data-dir={folder / 'profile'}", "--window-size=1280,775"]
    words += [f"--screenshot={target}", page.as_uri()]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)


def main() -> None:
    """Write both pictures."""
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "answer.svg").write_text(answer())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        screenshot(run_page(folder / "data"), IMAGES / "run.png", folder)


if __name__ == "__main__":
    main()
