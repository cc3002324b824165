"""The history of jobs, in SQLite or PostgreSQL: each write is on the disk when it returns."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import sqlalchemy as sa

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import DataError
from deepvm.io.user_dirs import own_data_folder, user_folder
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.decisions.world_document import from_document, from_row, to_document, to_row
from deepvm.records import asdict, dataclass

# Environment variable: the URL of a PostgreSQL database, or the name of an SQLite file
PLACE = "DEEPVM_HISTORY"
SCHEMA = 2
_WAIT_S = 30.0  # For a lock
# Timeouts: the controller waits for the database in its only thread
_CONNECT_S, _UNHEARD_S, _STATEMENT_S = 5, 10, 10
# Kinds of events, such as a cloud's rebalance recommendation
STATE, MACHINE, MARKET, REBALANCED = "state", "machine", "market", "rebalanced"

_TABLES = sa.MetaData()


def _columns(kind: Any, *names: str, **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, **options) for name in names]


_META = sa.Table("deepvm_schema", _TABLES, sa.Column("version", sa.Integer, primary_key=True))
_JOBS = sa.Table(
    "jobs",
    _TABLES,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("created_s", sa.Float, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    *_columns(sa.Text, "folder", "spec", "world", nullable=False),
    sa.Column("result", sa.Text),
)
_MACHINES = sa.Table(
    "machines",
    _TABLES,
    *_columns(sa.String(64), "job", "id", primary_key=True),
    *_columns(sa.String(64), "instance_type", "zone", nullable=False),
    *_columns(sa.String(16), "market", "state", "role", "end_reason", nullable=False),
    *_columns(sa.Float, "usd_per_hour", "grace_s", "requested_s", nullable=False),
    *_columns(sa.Float, "launched_s", "ready_s", "trained_s", "heard_s"),
    *_columns(sa.Float, "silent_s", "noticed_s", "taken_s", "ended_s"),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("reported", sa.BigInteger, nullable=False),
    sa.Column("cloud", sa.String(16), nullable=False, server_default=""),
)


def _rows_of_jobs(name: str, *columns: sa.Column[Any]) -> sa.Table:
    return sa.Table(
        name,
        _TABLES,
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("job", sa.String(64), nullable=False, index=True),
        sa.Column("at_s", sa.Float, nullable=False),
        *columns,
    )


_EVENTS = _rows_of_jobs(
    "events",
    sa.Column("kind", sa.String(24), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
)
_SAMPLES = _rows_of_jobs(
    "samples",
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
)


def _names_clouds(connection: sa.Connection) -> None:
    """2: machines name their cloud, as lifetimes with injected preemptions are no market's."""
    connection.execute(
        sa.text("ALTER TABLE machines ADD COLUMN cloud VARCHAR(16) NOT NULL DEFAULT ''")
    )
    for name, spec in connection.execute(sa.select(_JOBS.c.name, _JOBS.c.spec)).all():
        cloud = json.loads(spec).get("cloud", "")
        connection.execute(_MACHINES.update().where(_MACHINES.c.job == name).values(cloud=cloud))


# What makes a database one of this schema out of one of the schema before
_MIGRATIONS: Mapping[int, Callable[[sa.Connection], None]] = {2: _names_clouds}


def own_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the history and the jobs of this user are. Raises DataError: there is no home."""
    folder = own_data_folder(environ)
    if folder is None:
        raise DataError(
            f"there is no home folder for the history of jobs; set HOME, XDG_DATA_HOME or {PLACE}"
        )
    return folder


def place_of(environ: Mapping[str, str]) -> str:
    """The history named by an environment (URL or absolute path); empty: the user's folder."""
    place = environ.get(PLACE, "")
    if not place or "://" in place:
        return place
    return str(Path(place).absolute())


@dataclass(frozen=True)
class JobRow:
    """A job; ``spec``: its file as submitted; ``result``: its final document, once ended."""

    name: str
    created_s: float
    state: str
    folder: Path
    spec: JsonDict
    result: JsonDict | None


@dataclass(frozen=True)
class EventRow:
    """An event; ``state``: of the job afterwards; ``number``: grows with each event."""

    at_s: float
    kind: str
    state: str
    facts: JsonObject
    number: int = 0

    @property
    def generation(self) -> int:
        return int(self.facts.get("generation", 0))


Events: TypeAlias = Sequence[EventRow]


@dataclass(frozen=True)
class Sample:
    """How far a job was at some time: in which generation, and after how many steps."""

    at_s: float
    generation: int
    step: int


class History:
    """An open history, for one thread. Reads and writes raise DataError on failure."""

    def __init__(self, engine: sa.Engine) -> None:
        """Make or update the tables. Raises DataError: they are of a newer deepvm."""
        self._engine = engine
        with self._writing() as connection:
            # Of several processes one makes or changes the tables
            if engine.dialect.name == "postgresql":
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(20171117)"))
            _TABLES.create_all(connection)
            found = connection.execute(sa.select(_META.c.version)).scalar()
            if found is None:
                connection.execute(_META.insert().values(version=SCHEMA))
            for version in range((found or SCHEMA) + 1, SCHEMA + 1):
                _MIGRATIONS[version](connection)
                connection.execute(_META.update().values(version=version))
        if found is not None and found > SCHEMA:
            raise DataError(
                f"{_shown(engine)}: written by a newer deepvm (schema {found}); upgrade this one"
            )

    @classmethod
    def open(cls, environ: Mapping[str, str] = os.environ) -> History:
        place = environ.get(PLACE, "") or str(own_folder(environ) / "history.db")
        scheme, is_url, address = place.partition("://")
        if is_url:
            return cls(_engine_of(scheme, address))
        path = Path(place)
        try:
            _make_private(path, ours=not environ.get(PLACE))
            # Made by something that keeps no secrets
            if path.parent == user_folder("data", environ):
                path.parent.chmod(0o700)
        except OSError as error:
            raise DataError(
                f"{path.parent}: {error.strerror or error}; name another place in {PLACE}"
            ) from None
        engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": _WAIT_S})

        @sa.event.listens_for(engine, "connect")
        def _settings(connection: Any, _: Any) -> None:
            # Readers never wait for the writer; what is committed is on the disk.
            _log_ahead(connection)
            connection.execute("PRAGMA synchronous=FULL")
            # SQLAlchemy starts transactions, those that change tables included
            connection.isolation_level = None

        @sa.event.listens_for(engine, "begin")
        def _begins(connection: sa.Connection) -> None:
            # What will be written is locked first: two that have read cannot both write then.
            connection.exec_driver_sql(
                "BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN"
            )

        return cls(engine)

    @classmethod
    def reader(cls, environ: Mapping[str, str] = os.environ) -> History:
        history = cls.open(environ)
        history._on_connect(
            sqlite="PRAGMA query_only=ON", postgresql="SET default_transaction_read_only = on"
        )
        return history

    def _on_connect(self, **statements: str) -> Callable[[], None]:
        engine = self._engine

        def execute(connection: Any, _: Any) -> None:
            cursor = connection.cursor()
            cursor.execute(statements[engine.dialect.name])
            cursor.close()
            connection.commit()

        def end() -> None:
            sa.event.remove(engine, "connect", execute)
            engine.dispose()

        sa.event.listen(engine, "connect", execute)
        engine.dispose()
        return end

    @contextmanager
    def hurried(self, wait_s: float) -> Iterator[None]:
        """Fail writes that would wait longer for a lock: others need answers meanwhile."""
        limit_ms = int(wait_s * 1000)
        end = self._on_connect(
            sqlite=f"PRAGMA busy_timeout={limit_ms}", postgresql=f"SET lock_timeout = {limit_ms}"
        )
        try:
            yield
        finally:
            end()

    def add_job(
        self,
        name: str,
        created_s: float,
        folder: Path,
        spec: JsonObject,
        world: JobState,
        *,
        replaces: bool = False,
    ) -> bool:
        """Add a job; False: there is one of this name. ``replaces``: unless it has ended."""
        row = {
            "name": name,
            "created_s": created_s,
            "state": world.job.value,
            "folder": str(folder),
            "spec": json.dumps(spec),
            "world": json.dumps(to_document(world)),
        }
        try:
            with self._engine.execution_options(writes=True).begin() as connection:
                if replaces:
                    _retire(connection, name)
                connection.execute(_JOBS.insert().values(**row))
        except sa.exc.IntegrityError:
            return False
        except sa.exc.SQLAlchemyError as error:
            raise _unusable(self._engine, error) from None
        return True

    def commit(self, name: str, before: JobState, world: JobState, events: Events) -> None:
        known = before.machines
        changed = [
            to_row(m)
            for key, m in world.machines.items()
            if known.get(key) is not m and known.get(key) != m
        ]
        with self._writing() as connection:
            for row in changed:
                key = (_MACHINES.c.job == name) & (_MACHINES.c.id == row["id"])
                if not connection.execute(_MACHINES.update().where(key).values(**row)).rowcount:
                    cloud = json.loads(_row_of(connection, name)["spec"]).get("cloud", "")
                    connection.execute(_MACHINES.insert().values(job=name, cloud=cloud, **row))
            # A job that continues after its end, by 'jobs resume', has no result yet.
            known_now = json.dumps(to_document(world))
            update = _job_update(name)
            connection.execute(update.values(state=world.job.value, world=known_now, result=None))
            for event in events:
                row = {"job": name, "at_s": event.at_s, "kind": event.kind, "state": event.state}
                connection.execute(_EVENTS.insert().values(**row, facts=json.dumps(event.facts)))

    def _writing(self) -> AbstractContextManager[sa.Connection]:
        return self._connected(self._engine.execution_options(writes=True).begin)

    def _reading(self) -> AbstractContextManager[sa.Connection]:
        return self._connected(self._engine.connect)

    @contextmanager
    def _connected(
        self, connect: Callable[[], AbstractContextManager[sa.Connection]]
    ) -> Iterator[sa.Connection]:
        try:
            with connect() as connection:
                yield connection
        except sa.exc.SQLAlchemyError as error:
            raise _unusable(self._engine, error) from None

    def finish(self, name: str, result: JsonObject) -> None:
        with self._writing() as connection:
            connection.execute(_job_update(name).values(result=json.dumps(result)))

    def jobs(self) -> list[JobRow]:
        with self._reading() as connection:
            query = sa.select(_JOBS).order_by(_JOBS.c.created_s.desc())
            return [*map(_job, _dicts(connection, query))]

    def job(self, name: str) -> JobRow | None:
        with self._reading() as connection:
            row = _row_of(connection, name)
        return _job(row) if row else None

    def world(self, name: str) -> JobState:
        with self._reading() as connection:
            query = sa.select(_JOBS.c.world).where(_JOBS.c.name == name)
            document = json.loads(connection.execute(query).scalar_one())  # no KeyError if it lacks
            rows = self._machines(connection, name)
        rows.sort(key=lambda m: (m["requested_s"], len(m["id"]), m["id"]))
        return from_document(document, {m["id"]: from_row(m) for m in rows})

    def events(self, name: str, after: int = 0) -> list[EventRow]:
        with self._reading() as connection:
            return [
                EventRow(row.at_s, row.kind, row.state, json.loads(row.facts), row.number)
                for row in connection.execute(_numbered(_EVENTS, name, after))
            ]

    def add_samples(self, name: str, samples: Sequence[Sample], *, instead: bool = False) -> None:
        with self._writing() as connection:
            if instead:
                connection.execute(_SAMPLES.delete().where(_SAMPLES.c.job == name))
            rows = [{"job": name, **asdict(sample)} for sample in samples]
            if rows:
                connection.execute(_SAMPLES.insert(), rows)

    def samples(self, name: str) -> list[Sample]:
        with self._reading() as connection:
            return [
                Sample(row.at_s, row.generation, row.step)
                for row in connection.execute(_numbered(_SAMPLES, name))
            ]

    def machines(self) -> list[JsonObject]:
        """All jobs' machines; ``rebalanced_s``: when the cloud recommended a rebalance."""
        with self._reading() as connection:
            query = sa.select(_EVENTS).where(_EVENTS.c.kind == REBALANCED)
            rebalanced_s = {
                (row.job, json.loads(row.facts).get("id")): row.at_s
                for row in connection.execute(query)
            }
            rows = _dicts(connection, sa.select(_MACHINES))
        return [{**row, "rebalanced_s": rebalanced_s.get((row["job"], row["id"]))} for row in rows]

    def copy(self, name: str, after: int = 0) -> JsonDict:
        """A job's rows for another history; ``after``: only events with a larger number."""
        with self._reading() as connection, connection.begin():
            job = _row_of(connection, name)
            del job["folder"]
            return {
                "job": job,
                "machines": self._machines(connection, name),
                "events": _dicts(connection, _numbered(_EVENTS, name, after)),
                "samples": _dicts(connection, _numbered(_SAMPLES, name)),
            }

    def put_copy(self, copy: JsonObject, folder: Path) -> bool:
        """Have a job as in another history, with events after those here; False: it is older."""
        job = copy["job"]
        name = job["name"]
        with self._writing() as connection:
            known = _row_of(connection, name)
            events = sa.select(sa.func.count()).select_from(_EVENTS).where(_EVENTS.c.job == name)
            count = connection.execute(events).scalar_one()
            if not known:
                connection.execute(_JOBS.insert().values(**job, folder=str(folder)))
            else:
                here_s, there_s = (json.loads(row["world"])["now_s"] for row in (known, job))
                if count > len(copy["events"]) or here_s > there_s:
                    return False
                connection.execute(_job_update(name).values(**job))
            for table in (_MACHINES, _SAMPLES):
                connection.execute(table.delete().where(table.c.job == name))
            rows = (
                (_MACHINES, copy["machines"]),
                (_EVENTS, copy["events"][count:]),
                (_SAMPLES, copy["samples"]),
            )
            for table, added in rows:
                if added:  # numbers are of each history's own
                    own = [{k: v for k, v in row.items() if k != "number"} for row in added]
                    connection.execute(table.insert(), own)
        return True

    @staticmethod
    def _machines(connection: sa.Connection, name: str) -> list[JsonDict]:
        return _dicts(connection, sa.select(_MACHINES).where(_MACHINES.c.job == name))

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _engine_of(scheme: str, address: str) -> sa.Engine:
    # Raises a DataError that shows no password
    dialect = scheme.partition("+")[0]
    try:
        if dialect in ("postgresql", "postgres"):
            return _postgresql(f"postgresql+psycopg://{address}")
        if dialect == "sqlite":
            return sa.create_engine(f"sqlite://{address}", pool_pre_ping=True)
    except (sa.exc.ArgumentError, ValueError):
        pass
    raise DataError(
        f"invalid value for {PLACE}: '{scheme}://...'"
        " (expected the name of an SQLite file, or postgresql://USER@HOST/NAME)"
    )


def _postgresql(url: str) -> sa.Engine:
    limits = {
        "connect_timeout": _CONNECT_S,
        "tcp_user_timeout": _UNHEARD_S * 1000,
        "keepalives_idle": _CONNECT_S,  # also while nothing is sent, but an answer is waited for
    }
    given = sa.make_url(url).query
    engine = sa.create_engine(
        url, pool_pre_ping=True, connect_args={k: v for k, v in limits.items() if k not in given}
    )

    @sa.event.listens_for(engine, "connect")
    def _limit(connection: Any, _: Any) -> None:
        # Not among the options of the connection, which poolers refuse.
        connection.execute(f"SET statement_timeout = {round(_STATEMENT_S * 1000)}")
        connection.commit()

    return engine


def _make_private(path: Path, *, ours: bool) -> None:
    """Only the user reads a history in deepvm's own folder: ``env`` of jobs may have tokens."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # What SQLite puts next to it has the same permissions
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    for suffix in ("", "-wal", "-shm") if ours else ():
        with suppress(FileNotFoundError, PermissionError):
            path.with_name(f"{path.name}{suffix}").chmod(0o600)


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; while another process does so, SQLite reports "locked"."""
    until_s = time.monotonic() + _WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= until_s:
                raise
            time.sleep(0.02)


def _numbered(table: sa.Table, job: str, after: int = 0) -> sa.Select[Any]:
    return (
        sa.select(table).where(table.c.job == job, table.c.number > after).order_by(table.c.number)
    )


def _dicts(connection: sa.Connection, query: sa.Select[Any]) -> list[JsonDict]:
    return [dict(row) for row in connection.execute(query).mappings()]


def _row_of(connection: sa.Connection, name: str) -> JsonDict:
    rows = _dicts(connection, sa.select(_JOBS).where(_JOBS.c.name == name))
    return rows[0] if rows else {}


def _retire(connection: sa.Connection, name: str) -> None:
    """Remove an ended job; what is known of its machines stays, under a name that no job has."""
    known = _row_of(connection, name)
    if known.get("result") is None:
        return
    retired = f"{name}@{known['created_s']:.0f}"
    kept = (_MACHINES, sa.true()), (_EVENTS, _EVENTS.c.kind == REBALANCED)
    for table, which in kept:
        connection.execute(table.update().where(table.c.job == name, which).values(job=retired))
    for table in (_EVENTS, _SAMPLES):
        connection.execute(table.delete().where(table.c.job == name))
    connection.execute(_JOBS.delete().where(_JOBS.c.name == name))


def _job_update(name: str) -> sa.Update:
    return _JOBS.update().where(_JOBS.c.name == name)


def _job(row: JsonObject) -> JobRow:
    result = json.loads(row["result"]) if row["result"] is not None else None
    about = (row["name"], row["created_s"], row["state"], Path(row["folder"]))
    return JobRow(*about, json.loads(row["spec"]), result)


def _shown(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


def _unusable(engine: sa.Engine, error: Exception) -> DataError:
    why = str(getattr(error, "orig", None) or error).splitlines()[0]
    return DataError(
        f"the history {_shown(engine)} cannot be used: {why}; name another place in {PLACE}"
    )
