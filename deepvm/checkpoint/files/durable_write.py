"""Write a file durably, with direct I/O where possible, while its last bytes are still produced."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from deepvm.checkpoint.format.layout import cut
from deepvm.errors import CheckpointError
from deepvm.io.atomic_write import sync
from deepvm.io.failpoints import point
from deepvm.records import dataclass

PIECE = 4 * 2**20  # Bytes per write; smaller files are not written directly
_BLOCK = 4096
_WRITERS = 2  # one thread would leave the disk idle between two writes
# Without direct writes, or not for this memory
_NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)
# Where leases reveal every reader; others: never overwritten
_LOCAL = ("ext2", "ext3", "ext4", "xfs", "f2fs", "tmpfs")


def write_file(
    path: Path, data: memoryview, final: Iterable[int], *, direct: bool, prefix: str
) -> None:
    """Write a file, new or old, that no other process uses; it is on disk when this returns.

    ``final`` yields how many bytes of ``data`` (format ``B``) are final from the start, in the end
    all. ``direct``: past the page cache if supported. ``prefix``: of the failpoints' labels.
    """
    with contextlib.ExitStack() as open_files:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        open_files.callback(os.close, descriptor)
        point(f"{prefix}.before-write")
        # No posix_fallocate: it gains nothing, and where a file system lacks it, libc writes into
        # every block.
        os.ftruncate(descriptor, len(data))
        uncached: int | None = None
        if direct and len(data) >= PIECE:
            with _if_supported():
                uncached = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT)
                open_files.callback(os.close, uncached)
        _write_pieces(partial(_write_piece, descriptor, uncached, prefix), data, final)
        point(f"{prefix}.before-sync")
        os.fsync(descriptor)
        point(f"{prefix}.after-sync")


@dataclass(frozen=True)
class Medium:
    """The type of a folder's file system, such as ``ext4``, and its options; empty if unknown."""

    kind: str = ""
    options: tuple[str, ...] = ()

    @property
    def volatile(self) -> bool:
        return self.kind in ("tmpfs", "ramfs")

    @property
    def dax(self) -> bool:
        """Whether a mapping is the medium itself (persistent memory), without page cache."""
        return "dax" in self.options or "dax=always" in self.options

    @property
    def mappable(self) -> bool:
        """Whether mapping is safe: other file systems allocate on write and may raise SIGBUS."""
        return self.kind in ("ext2", "ext3", "ext4", "tmpfs") or (self.kind == "xfs" and self.dax)

    def __str__(self) -> str:
        if self.volatile:
            return f"{self.kind}: it survives the end of this process, not that of the machine"
        if self.dax:
            return f"{self.kind} with DAX: persistent once its caches are flushed"
        kind = self.kind or "unknown file system"
        return f"{kind}: page cache, persistent once it is synchronized"


def existing(path: Path) -> Path:
    """The path, or its first parent that exists."""
    return next((p for p in (path, *path.parents) if p.exists()), path)


def medium(folder: Path) -> Medium:
    """The file system of a folder, or of its first existing parent."""
    try:
        device = existing(folder).stat().st_dev
        rows = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return Medium()
    here = f"{os.major(device)}:{os.minor(device)}"
    for row in reversed(rows):
        before, _, after = row.partition(" - ")
        if before.split()[2] == here:
            kind, _, options = (after.split() + ["", "", ""])[:3]
            return Medium(kind, (*before.split()[5].split(","), *options.split(",")))
    return Medium()


def can_reuse(folder: Path) -> bool:
    """Whether :func:`is_unused` can be trusted in a folder."""
    return medium(folder).kind in _LOCAL


@contextlib.contextmanager
def failing(
    path: Path, what: str = "written", kind: type[CheckpointError] = CheckpointError
) -> Iterator[None]:
    """Turn an OSError into a CheckpointError of this kind."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path}: cannot be {what}: {error.strerror or error}") from error


def not_a_file(status: os.stat_result) -> str:
    """What is there instead of a regular file; a link's target is removed and synced by others."""
    if stat.S_ISREG(status.st_mode):
        return ""
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a pipe"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "a device or socket")
    text = f"it is {kind} instead of a file"
    if stat.S_ISLNK(status.st_mode):
        text += "; put the file that it leads to in its place"
    return text


def is_unused(path: Path) -> bool:
    """Whether a file can be overwritten in place: one name, not open or mapped anywhere."""
    # A program that maps an old version (torch.load(..., mmap=True)) must not see its weights
    # change.
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            return False
        # If someone opens the file during the lease, the kernel sends a signal; the default, SIGIO,
        # would kill us.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        # Granted only if ours is the only open descriptor and there is no mapping.
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def make_folder(path: Path) -> None:
    """Make a folder and its parents durably: else a checkpoint is lost with its name."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def _write_pieces(
    write: Callable[[memoryview, int], None], data: memoryview, final: Iterable[int]
) -> None:
    if len(data) <= PIECE:
        for _ in final:
            pass
        write(data, 0)
        return
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="deepvm-disk") as pool:
        pending: list[Future[None]] = []
        try:
            for start, end in cut(final, len(data), PIECE):
                try:
                    pending.append(pool.submit(write, data[start:end], start))
                except RuntimeError:
                    # No new threads at interpreter exit, where a last save must still work
                    write(data[start:end], start)
                if pending[:1] and pending[0].done():
                    pending.pop(0).result()
            for job in pending:
                job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _write_piece(
    descriptor: int, uncached: int | None, prefix: str, data: memoryview, offset: int
) -> None:
    done = 0
    whole = len(data) // _BLOCK * _BLOCK
    if uncached is not None:
        with _if_supported():
            while done < whole:
                count = os.pwrite(uncached, data[done:whole], offset + done)
                done += count // _BLOCK * _BLOCK
                if not count or count % _BLOCK:  # no direct writes after a partial block
                    break
    while done < len(data):
        count = os.pwrite(descriptor, data[done:], offset + done)
        if not count:
            raise OSError(errno.EIO, "the disk takes no more bytes and does not say why")
        done += count
    point(f"{prefix}.mid-write")


@contextlib.contextmanager
def _if_supported() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NOT_DIRECT:
            raise
