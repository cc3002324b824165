"""A storage tier is one module and one registry line: trainers, nodes and commands then know it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from deepvm.checkpoint import Checkpointer  # noqa: E402
from deepvm.checkpoint.tiers import registry  # noqa: E402
from deepvm.checkpoint.tiers.base import Store, Tier  # noqa: E402
from deepvm.checkpoint.tiers.registry import TIERS, find_tier, open_store, open_tier  # noqa: E402
from deepvm.cli.checkpoint.versions import open_place  # noqa: E402
from deepvm.cli.main import main  # noqa: E402
from deepvm.errors import RequestError  # noqa: E402

MODULE = """
from pathlib import Path
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.file import FileTier


class DrawerTier(Tier):
    form = "drawer://NAME"
    away = False

    def __init__(self, name):
        self._name, self._files = name, FileTier(Path(name))

    @classmethod
    def open(cls, url, session, keep, every, option):
        return cls(url.partition("://")[2])

    @property
    def url(self):
        return f"drawer://{self._name}"

    def put(self, shard, acknowledged):
        self._files.put(shard, acknowledged)

    def versions(self, job):
        return self._files.versions(job)

    def fetch(self, manifest, folder):
        return self._files.fetch(manifest, folder)
"""


@pytest.fixture
def drawer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a tier that is a module and a line."""
    (tmp_path / "drawer_tier.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(TIERS, "drawer", "drawer_tier:DrawerTier")
    yield f"drawer://{tmp_path / 'versions'}"


def test_a_training_uses_it(drawer: str) -> None:
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    optimizer, unused = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other))
    with Checkpointer(model=model, optimizer=optimizer, tiers=drawer, job="new") as saver:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        saver.save(block=True)
    with Checkpointer(model=other, optimizer=unused, tiers=drawer, job="new") as again:
        assert again.restore_latest() == 1
    assert torch.equal(other.weight, model.weight)


def test_the_command_lists_it(drawer: str, capsys: pytest.CaptureFixture[str]) -> None:
    test_a_training_uses_it(drawer)
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["ckpt", "ls", drawer, "--job", "new", "-o", "json"])
    assert end.value.code == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["job"], r["complete"]) for r in rows] == [("new", True)] and rows[0][
        "path"
    ].startswith(drawer)


def test_errors_name_it_where_it_can_be_used(drawer: str) -> None:
    with pytest.raises(RequestError, match="file:///folder, .* or drawer://NAME"):
        open_tier("http://x", "s")
    with pytest.raises(
        RequestError,
        match="expected file:///folder, s3://bucket/prefix or gs://bucket/prefix, az://container/prefix\\)$",
    ):
        open_store(drawer)
    with pytest.raises(
        RequestError,
        match="expected a folder, file:///folder, .*, az://container/prefix or drawer://NAME\\)$",
    ):
        open_place("mpi://0")


def test_every_line_leads_to_a_tier() -> None:
    for scheme in TIERS:
        kind = find_tier(f"{scheme}://x")
        assert kind is not None and issubclass(kind, Tier) and f"{scheme}://" in kind.form


def test_what_nodes_can_write_to() -> None:
    kinds = {scheme: find_tier(f"{scheme}:") for scheme in TIERS}
    assert {scheme for scheme, kind in kinds.items() if kind and issubclass(kind, Store)} == {
        "file",
        "s3",
        "gs",
        "az",
    }
    assert {scheme for scheme, kind in kinds.items() if kind and not kind.listed} == {"mpi"}
    assert registry.find_tier("folder") is None


def test_the_rooms_have_a_direction() -> None:
    """Nodes use tiers, which use the network, which uses files.

    None of them looks up, not even in a function.
    """
    root = Path(registry.__file__).parents[1]
    above = {"files": "network|tiers|node", "network": "tiers|node", "tiers": "node"}
    for room, others in above.items():
        arrow = re.compile(rf"^\s*(from|import) deepvm\.checkpoint\.({others})\b", re.MULTILINE)
        assert not [
            str(path) for path in (root / room).rglob("*.py") if arrow.search(path.read_text())
        ]
