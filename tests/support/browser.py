"""A real browser for tests: Chromium of the machine, driven by Playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
OVERLAPS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll(".plot > svg")) {
    const boxes = [...svg.querySelectorAll("text")]
      .map((t) => [t.textContent, t.getBoundingClientRect()]);
    boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
      const across = a.left < b.right && b.left < a.right;
      if (across && a.top + 2 < b.bottom && b.top + 2 < a.bottom) { found.push([one, other]); }
    }));
    for (const [text, box] of boxes) {
      const width = document.documentElement.clientWidth;
      if (box.left < -1 || box.right > width + 1) { found.push([text, "leaves the page"]); }
    }
  }
  return found;
}"""
"""Script: texts of charts that stand on one another, or leave the page."""
FAINT = """() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const weights = [0.2126, 0.7152, 0.0722];
  const light = (c) => c.reduce((sum, v, i) => sum + linear(v / 255) * weights[i], 0);
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const says = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!says || e.closest("script,style,title,[hidden]")) { continue; }
    const style = getComputedStyle(e);
    const ink = rgb(e.tagName === "text" ? style.fill : style.color);
    let at = e, paper = [0, 0, 0, 0];
    while (at && paper.length === 4 && paper[3] === 0) {
      paper = rgb(getComputedStyle(at).backgroundColor);
      at = at.parentElement;
    }
    const [high, low] = [light(ink.slice(0, 3)), light(paper.slice(0, 3))].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) { found.push([e.tagName, e.textContent.slice(0, 20), ratio]); }
  }
  return found;
}"""
"""Script: texts with too little contrast to be read."""


def browser() -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install playwright"
    )
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is here")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=arguments)
        yield opened
        opened.close()


class Line:
    """A connection between browser and server that can be cut, and come back."""

    def __init__(self, port: int) -> None:
        self._port, self._open, self.up = port, list[socket.socket](), True
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            if not self.up:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                near.close()
                continue
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    @staticmethod
    def _copy(one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.up = False
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()

    def close(self) -> None:
        self.cut()
        self._listening.close()
