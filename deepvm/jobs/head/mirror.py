"""A job as objects of a bucket: the mirror of its history, its logs and its commands."""

import gzip
import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import CloudError, DataError, DeepVMError
from deepvm.io.atomic_write import write_json
from deepvm.jobs.cloud import Objects, UnknownError
from deepvm.jobs.history.log_files import FOLDER as LOG_FOLDER
from deepvm.records import asdict, dataclass

MIRROR = "history.json.gz"
FOLDER = "folder/"
LOGS = "logs/"
COMMANDS = "commands/"
ANSWERS = "answers/"
_SCHEMA = "deepvm.head/1"
_KEPT = ("secret", "code.tar.gz")  # What a controller needs of its job's folder
_PIECE = 8_000_000  # Bytes of an object of it: each must be sent within a minute


class FencedError(DeepVMError):
    """Another head runs the job now; this one must do nothing more."""

    exit_code = CloudError.exit_code


def encoded(copy: JsonObject, head: int, writer: str, number: int, nonce: str = "") -> bytes:
    """A mirror for ``head``; ``writer``: empty for the user; ``number``: grows with each."""
    about = {"head": head, "writer": writer, "number": number, "nonce": nonce}
    return packed({"schema_version": _SCHEMA, **about, **copy})


def decoded(data: bytes) -> JsonDict:
    """A mirror. Raises UnknownError: it is none."""
    found = unpacked(data)
    if found.get("schema_version") != _SCHEMA:
        raise UnknownError(
            f"the mirror of the job is of another deepvm ({found.get('schema_version')})"
        )
    return found


def packed(document: JsonObject) -> bytes:
    """An object of the bucket."""
    return gzip.compress(json.dumps(document).encode(), 5, mtime=0)


def unpacked(data: bytes) -> JsonDict:
    """What was packed. Raises UnknownError: it cannot be read."""
    try:
        return dict(json.loads(gzip.decompress(data)))
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise UnknownError(f"an object of the head cannot be read: {error}") from None


def put_folder(objects: Objects, folder: Path) -> None:
    """Send what a controller needs of its job's folder. Raises DataError, and as Objects do."""
    objects.remove(objects.keys(FOLDER))
    for name in _KEPT:
        try:
            data = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DataError(f"{folder / name}: {error.strerror or error}") from None
        for number, start in enumerate(range(0, len(data), _PIECE)):
            objects.put(f"{FOLDER}{name}/{number:04}", data[start : start + _PIECE])


def get_folder(objects: Objects, folder: Path) -> bool:
    """Fetch it; returns whether it was there."""
    (folder / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
    keys = objects.keys(FOLDER)
    for name in _KEPT:
        pieces = [objects.get(key) for key in keys if key.startswith(f"{FOLDER}{name}/")]
        if pieces:
            (folder / name).touch(mode=0o600)
            (folder / name).write_bytes(b"".join(one.data for one in pieces if one is not None))
    return bool(keys)


FILE = "head.json"
# A head that has not written its mirror for so long is gone, or hangs; it does every 15 s
FRESH_S = 90.0
BEGINS_S = 900.0  # So long it may take from the request until a head has written its first


@dataclass(frozen=True)
class HeadState:
    """The newest head of a job."""

    number: int
    asked_s: float
    here: bool = False  # This computer is it
    launched: bool = False  # These two: the cloud's answer
    refused: bool = False
    begun: bool = False  # Its controller has written the mirror
    heard_s: float = 0.0  # When it last had
    read: bool = True  # Whether the mirror could be read the last time
    tag: str = ""  # Of that mirror
    nonce: str = ""  # Of its controller
    logs: str = ""  # The last that were fetched
    emptied: bool = False  # The job is over, and nothing of it is in the bucket

    @property
    def alive(self) -> bool:
        if self.begun:
            return time.time() - self.heard_s < FRESH_S
        return self.launched and time.time() - self.asked_s < BEGINS_S

    @classmethod
    def load(cls, folder: Path) -> "HeadState | None":
        """That of a job's folder; None if its controller has no machine of its own."""
        try:
            return cls(**json.loads((folder / FILE).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, asdict(self))


_MOST = 4_000_000  # Bytes of a piece, before they are compressed
_AT_ONCE = 8
_LEAST_FREED = 1_000_000
# After so many pieces they are at least 1 s apart, after twice as many 2 s, up to the most
_PIECES_PER_S, _MOST_S = 100, 30.0


class LogPieces:
    """Sends new log lines of a remote controller, from where the last process stopped."""

    def __init__(self, folder: Path, objects: Objects, head: int) -> None:
        self._folder = folder / LOG_FOLDER
        self._objects = objects
        self._prefix = f"{LOGS}{head:06}-"
        self._sent_s = float("-inf")
        self._sent: dict[str, int] | None = None
        self._freed: dict[str, int] = {}
        self._number = 0

    def send(self, *, last: bool = False) -> None:
        """Write what is new; ``last``: all of it. Raises UnknownError, RefusedError, OSError."""
        if self._sent is None:
            self._sent = self._resumed()
        now_s = time.monotonic()
        if not last and now_s - self._sent_s < min(self._number / _PIECES_PER_S, _MOST_S):
            return
        self._sent_s = now_s
        for _ in itertools.count() if last else range(_AT_ONCE):
            texts, sent, is_full = self._next(self._sent, last)
            if not texts:
                return
            self._number += 1
            piece = packed({"texts": texts, "sent": sent})
            self._sent = None  # if its reply is lost, it is looked up whether the piece is there
            self._objects.put(f"{self._prefix}{self._number:08}", piece)
            self._sent = sent
            self._free(sent)
            if not is_full and not last:
                return

    def _free(self, sent: dict[str, int]) -> None:
        """Punch out what was sent, for the disk is small; the files keep their sizes."""
        for machine, size in sent.items():
            if size - self._freed.get(machine, 0) >= _LEAST_FREED:
                self._freed[machine] = size
                words = ["fallocate", "--punch-hole", "--offset", "0", "--length", str(size)]
                # Where that cannot be done the disk has to be large enough
                with suppress(OSError):
                    subprocess.run(
                        [*words, self._folder / f"{machine}.log"], capture_output=True, check=False
                    )

    def _resumed(self) -> dict[str, int]:
        keys = self._objects.keys(self._prefix)
        if not keys:
            return {}
        self._number = max(self._number, int(keys[-1].rpartition("-")[2]))
        found = self._objects.get(keys[-1])
        if found is None:
            return {}
        return dict(unpacked(found.data)["sent"])

    def _next(
        self, before: dict[str, int], last: bool
    ) -> tuple[dict[str, str], dict[str, int], bool]:
        """Texts by machine, how much of each file is sent with them, whether more is left."""
        texts = {}
        sent = dict(before)
        left = _MOST
        for file in sorted(self._folder.glob("*.log")):
            with file.open("rb") as stream:
                stream.seek(sent.get(file.stem, 0))
                data = stream.read(left)
            is_full = len(data) == left
            if is_full or not last:
                data = data[: data.rfind(b"\n") + 1]
            if data:
                texts[file.stem] = data.decode("utf-8", "replace")
                sent[file.stem] = sent.get(file.stem, 0) + len(data)
                left -= len(data)
            if is_full:
                return texts, sent, True
        return texts, sent, False


def fetch_logs(folder: Path, objects: Objects, after: str) -> Iterator[str]:
    """Add the pieces after ``after`` to a job's logs; yields each. Raises UnknownError, OSError."""
    for key in objects.keys(LOGS, after):
        found = objects.get(key)
        if found is None:
            continue
        (folder / LOG_FOLDER).mkdir(exist_ok=True)
        for machine, text in unpacked(found.data)["texts"].items():
            name = f"{Path(machine).name}.log"
            with (folder / LOG_FOLDER / name).open("a", encoding="utf-8") as file:
                file.write(text)
        yield key
