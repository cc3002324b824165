"""What happened to all jobs of a user: machines, events, money; in SQLite, or in PostgreSQL for a team.

The controller writes here before it acts, and each write is on the disk when it returns: after ``kill -9`` another
controller reads its job's world, and nothing that was asked of a cloud is unknown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from deepvm.errors import DataError
from deepvm.io.user_dirs import user_folder
from deepvm.jobs.world import World
from deepvm.jobs.world_document import from_document, from_row, to_document, to_row

PLACE = "DEEPVM_HISTORY"
"""Environment variable: the URL of a PostgreSQL database, or the name of an SQLite file."""
SCHEMA = 1
STATE, MACHINE = "state", "machine"
"""Kinds of events: the job's new state, and a machine's."""

_TABLES = sa.MetaData()
_META = sa.Table("deepvm_schema", _TABLES, sa.Column("version", sa.Integer, primary_key=True))
_JOBS = sa.Table(
    "jobs",
    _TABLES,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("created_s", sa.Float, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("folder", sa.Text, nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("world", sa.Text, nullable=False),
    sa.Column("result", sa.Text),
)
_MACHINES = sa.Table(
    "machines",
    _TABLES,
    sa.Column("job", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("instance_type", sa.String(64), nullable=False),
    sa.Column("zone", sa.String(64), nullable=False),
    sa.Column("market", sa.String(16), nullable=False),
    sa.Column("usd_per_hour", sa.Float, nullable=False),
    sa.Column("grace_s", sa.Float, nullable=False),
    sa.Column("requested_s", sa.Float, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    *(
        sa.Column(name, sa.Float)
        for name in ("launched_s", "ready_s", "trained_s", "heard_s", "silent_s", "noticed_s", "taken_s", "ended_s")
    ),
    sa.Column("end_reason", sa.String(16), nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("reported", sa.BigInteger, nullable=False),
)
_EVENTS = sa.Table(
    "events",
    _TABLES,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("job", sa.String(64), nullable=False, index=True),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("kind", sa.String(24), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
)


def own_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the history and the jobs of this user are. Raises DataError: there is no home."""
    named = environ.get("DEEPVM_DATA_DIR", "")
    folder = Path(os.path.expanduser(named)).absolute() if named else user_folder("data", environ)
    if folder is None:
        raise DataError(f"there is no home folder for the history of jobs; set HOME, XDG_DATA_HOME or {PLACE}")
    return folder


@dataclass(frozen=True)
class JobRow:
    """A job of the history; ``spec``: its file as it was submitted. ``result``: its final document, if it has ended."""

    name: str
    created_s: float
    state: str
    folder: Path
    spec: dict[str, Any]
    result: dict[str, Any] | None


@dataclass(frozen=True)
class EventRow:
    """Something that happened; ``state``: of the job afterwards."""

    at_s: float
    kind: str
    state: str
    facts: Mapping[str, Any]


class History:
    """An open history; for one thread."""

    def __init__(self, engine: sa.Engine) -> None:
        """Make the tables where there are none. Raises DataError: they are of a newer version."""
        self._engine = engine
        try:
            _TABLES.create_all(engine)
            with engine.begin() as connection:
                found = connection.execute(sa.select(_META.c.version)).scalar()
                if found is None:
                    connection.execute(_META.insert().values(version=SCHEMA))
        except sa.exc.SQLAlchemyError as error:
            raise _unusable(engine, error) from None
        if found is not None and found > SCHEMA:
            raise DataError(f"{_shown(engine)}: written by a newer deepvm (schema {found}); upgrade this one")

    @classmethod
    def open(cls, environ: Mapping[str, str] = os.environ) -> History:
        """That of this user. Raises DataError: it cannot be used."""
        place = environ.get(PLACE, "") or str(own_folder(environ) / "history.db")
        if place.startswith("postgresql:"):
            place = place.replace("postgresql:", "postgresql+psycopg:", 1)
        if "://" in place:
            return cls(sa.create_engine(place, pool_pre_ping=True))
        path = Path(place)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{path.parent}: {error.strerror or error}; name another place in {PLACE}") from None
        engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 30.0})

        @sa.event.listens_for(engine, "connect")
        def _settings(connection: Any, _: Any) -> None:
            # Readers never wait for the writer; what is committed is on the disk.
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")

        return cls(engine)

    def add_job(self, name: str, created_s: float, folder: Path, spec: Mapping[str, Any], world: World) -> bool:
        """A new job; whether there was none of that name."""
        row = {
            "name": name,
            "created_s": created_s,
            "state": world.job.value,
            "folder": str(folder),
            "spec": json.dumps(spec),
            "world": json.dumps(to_document(world)),
        }
        try:
            with self._engine.begin() as connection:
                connection.execute(_JOBS.insert().values(**row))
        except sa.exc.IntegrityError:
            return False
        return True

    def commit(self, name: str, before: World, world: World, events: Sequence[EventRow]) -> None:
        """What has changed, all or nothing. Raises DataError: it is not written down."""
        known = before.machines
        changed = [to_row(m) for key, m in world.machines.items() if known.get(key) is not m and known.get(key) != m]
        try:
            self._commit(name, changed, world, events)
        except sa.exc.SQLAlchemyError as error:
            raise _unusable(self._engine, error) from None

    def _commit(
        self, name: str, changed: Sequence[Mapping[str, Any]], world: World, events: Sequence[EventRow]
    ) -> None:
        with self._engine.begin() as connection:
            for row in changed:
                key = (_MACHINES.c.job == name) & (_MACHINES.c.id == row["id"])
                if not connection.execute(_MACHINES.update().where(key).values(**row)).rowcount:
                    connection.execute(_MACHINES.insert().values(job=name, **row))
            values = {"state": world.job.value, "world": json.dumps(to_document(world))}
            connection.execute(_JOBS.update().where(_JOBS.c.name == name).values(**values))
            for event in events:
                row = {"at_s": event.at_s, "kind": event.kind, "state": event.state, "facts": json.dumps(event.facts)}
                connection.execute(_EVENTS.insert().values(job=name, **row))

    def finish(self, name: str, result: Mapping[str, Any]) -> None:
        """The final document of a job."""
        with self._engine.begin() as connection:
            connection.execute(_JOBS.update().where(_JOBS.c.name == name).values(result=json.dumps(result)))

    def jobs(self) -> list[JobRow]:
        """All jobs, the newest first."""
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(_JOBS).order_by(_JOBS.c.created_s.desc())).mappings()
            return [_job(dict(row)) for row in rows]

    def job(self, name: str) -> JobRow | None:
        """One job, if there is one of that name."""
        with self._engine.connect() as connection:
            row = connection.execute(sa.select(_JOBS).where(_JOBS.c.name == name)).mappings().first()
            return None if row is None else _job(dict(row))

    def world(self, name: str) -> World:
        """What its controller knew last."""
        with self._engine.connect() as connection:
            document = connection.execute(sa.select(_JOBS.c.world).where(_JOBS.c.name == name)).scalar_one()
            found = self._machines(connection, name)
        order = {m["id"]: m for m in sorted(found, key=lambda m: (m["requested_s"], len(m["id"]), m["id"]))}
        return from_document(json.loads(document), {key: from_row(row) for key, row in order.items()})

    def events(self, name: str) -> list[EventRow]:
        """What happened to a job, in order."""
        with self._engine.connect() as connection:
            query = sa.select(_EVENTS).where(_EVENTS.c.job == name).order_by(_EVENTS.c.number)
            return [
                EventRow(row["at_s"], row["kind"], row["state"], json.loads(row["facts"]))
                for row in connection.execute(query).mappings()
            ]

    def machines(self) -> list[Mapping[str, Any]]:
        """The machines of all jobs."""
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(sa.select(_MACHINES)).mappings()]

    @staticmethod
    def _machines(connection: sa.Connection, name: str) -> list[dict[str, Any]]:
        rows = connection.execute(sa.select(_MACHINES).where(_MACHINES.c.job == name)).mappings()
        return [dict(row) for row in rows]

    def close(self) -> None:
        """Close it."""
        self._engine.dispose()

    def __enter__(self) -> History:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _job(row: Mapping[str, Any]) -> JobRow:
    result = None if row["result"] is None else json.loads(row["result"])
    return JobRow(row["name"], row["created_s"], row["state"], Path(row["folder"]), json.loads(row["spec"]), result)


def _shown(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


def _unusable(engine: sa.Engine, error: Exception) -> DataError:
    why = str(getattr(error, "orig", None) or error).splitlines()[0]
    return DataError(f"the history {_shown(engine)} cannot be used: {why}; name another place in {PLACE}")
