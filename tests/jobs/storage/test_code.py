"""Code of a job: what is packed, what is unpacked, and which commit a repository's name means."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest
from support.http_server import QuietServer

from deepvm.errors import DataError, RequestError
from deepvm.jobs.storage import job_code
from deepvm.jobs.storage.job_code import GitCode, fetch_code, pack, parse, public, unpack

SECRET = "ghp-planted-secret"


def git(folder: Path, *words: str) -> str:
    names = [
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@y",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    ]
    done = subprocess.run(
        ["git", *names, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits; a tag with a message at the first, a branch at the second."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for number in ("1", "2"):
        (folder / "train.py").write_text(number)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", number)
        if number == "1":
            git(folder, "tag", "-a", "v1", "-m", "first")
    return folder


def unpacked(archive: Path, folder: Path) -> dict[str, str]:
    unpack(archive, folder)
    return {
        p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()
    }


def test_what_is_written() -> None:
    for text, url, ref in [
        ("git:https://host/me/it@main", "https://host/me/it", "main"),
        ("git: https://host/me/it", "https://host/me/it", "HEAD"),
        ("git:https://me:token@host/it", "https://me:token@host/it", "HEAD"),
        ("git:https://me:token@host/it@feature/x", "https://me:token@host/it", "feature/x"),
        ("git:git@host:me/it.git", "git@host:me/it.git", "HEAD"),
        ("git:git@host:me/it.git@v1", "git@host:me/it.git", "v1"),
        ("git:ssh://git@host/it@v1", "ssh://git@host/it", "v1"),
        ("git:/folder/it@main", "/folder/it", "main"),
    ]:
        assert parse(text) == GitCode(url, ref)


def test_what_cannot_be_a_repository() -> None:
    for text in [
        "git:",
        "git:@main",
        "git:--upload-pack=x@y",
        "git:https://h/x@-y",
        "git:a b",
        "git:x@",
    ]:
        with pytest.raises(RequestError, match="git: URL@REF"):
            parse(text)


def test_secrets_are_not_shown() -> None:
    assert public(f"https://me:{SECRET}@host/it") == "https://host/it"
    assert public(f"https://{SECRET}@host/it") == "https://host/it"
    assert (
        public("ssh://git@host/it") == "ssh://git@host/it"
        and public("git@host:it") == "git@host:it"
    )
    assert SECRET not in GitCode(f"https://x:{SECRET}@host/it", "main").shown


@pytest.mark.parametrize(
    ("ref", "content"), [("main", "2"), ("v1", "1"), ("HEAD", "2"), ("refs/heads/main", "2")]
)
def test_the_commit_of_a_name(repository: Path, tmp_path: Path, ref: str, content: str) -> None:
    commit = fetch_code(GitCode(str(repository), ref), tmp_path / "code")
    assert commit == git(repository, "rev-parse", f"{ref}^{{commit}}")
    assert unpacked(tmp_path / "code", tmp_path / "there") == {"train.py": content}
    # As when a job is resumed
    again = fetch_code(GitCode(repository.as_uri(), commit), tmp_path / "code")
    assert again == commit and unpacked(tmp_path / "code", tmp_path / "again") == {
        "train.py": content
    }


def test_errors_say_what_to_do(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        RequestError, match=r"@none' \(expected a branch, tag or commit that is there"
    ):
        fetch_code(GitCode(str(repository), "none"), tmp_path / "code")
    with pytest.raises(DataError, match="does not appear to be a git repository|does not exist"):
        fetch_code(GitCode(str(tmp_path / "nowhere"), "main"), tmp_path / "code")
    with pytest.raises(DataError) as caught:
        fetch_code(GitCode(f"https://me:{SECRET}@127.0.0.1:1/it", "main"), tmp_path / "code")
    assert SECRET not in str(caught.value) and "credential helper" in str(caught.value)
    with pytest.raises(DataError):  # a transport that runs commands
        fetch_code(GitCode(f"ext::touch {tmp_path}/made", "main"), tmp_path / "code")
    assert not (tmp_path / "made").exists()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RequestError, match="no git here; install git"):
        fetch_code(GitCode(str(repository), "main"), tmp_path / "code")


@pytest.mark.system
def test_a_server_that_asks_for_a_password_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from http.server import BaseHTTPRequestHandler
    from threading import Thread

    class Asks(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Asks)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(job_code, "_ASK_S", 20.0)
    try:
        with pytest.raises(DataError, match="no password is asked for"):
            fetch_code(
                GitCode(f"http://127.0.0.1:{server.server_port}/it", "main"), tmp_path / "code"
            )
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.system
def test_what_is_packed(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "x.py").write_text("x")
    (folder / "deep" / "link").symlink_to("../train.py")
    (folder / "train.py").write_text("t")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        strange = os.fsdecode(b"caf\xe9.txt")
        (folder / strange).write_text("e")
        pack(folder, tmp_path / "archive")
    found = unpacked(tmp_path / "archive", tmp_path / "there")
    assert found == {"deep/x.py": "x", "deep/link": "t", "train.py": "t", strange: "e"}


def test_git_says_what_belongs_to_it(repository: Path, tmp_path: Path) -> None:
    (repository / ".gitignore").write_text("data\n")
    (repository / "data").symlink_to("/somewhere/else")
    (repository / "new.py").write_text("n")
    (repository / "train.py").unlink()  # in the index still
    pack(repository, tmp_path / "archive")
    assert unpacked(tmp_path / "archive", tmp_path / "there") == {
        ".gitignore": "data\n",
        "new.py": "n",
    }


def test_a_job_file_with_variables_is_left_out(repository: Path, tmp_path: Path) -> None:
    job = repository / "job.yaml"
    job.write_text("env: {HF_TOKEN: x}")
    pack(repository, tmp_path / "archive", without=repository / "." / "job.yaml")
    assert "job.yaml" not in unpacked(tmp_path / "archive", tmp_path / "there")
    assert (tmp_path / "archive").stat().st_mode & 0o777 == 0o600


@pytest.mark.system
@pytest.mark.parametrize("link", ["/etc/passwd", "../outside", "deep/../../outside"])
def test_links_that_lead_out_are_refused(tmp_path: Path, link: str) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "link").symlink_to(link)
    with pytest.raises(RequestError, match=r"'link' \(expected links within the folder"):
        pack(folder, tmp_path / "archive")
    assert sorted(os.listdir(tmp_path)) == ["code"]


@pytest.mark.system
def test_too_much_code_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    with (folder / "weights.pt").open("wb") as file:
        file.truncate(job_code.MOST_BYTES + 1)  # sparse
    with pytest.raises(RequestError, match="at most 500 MB and .* of code.*under data:"):
        pack(folder, tmp_path / "archive")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "secret").touch(0o000)
    with pytest.raises(OSError, match="secret"):
        pack(tmp_path / "code", tmp_path / "archive")


def hostile(path: Path, member: tarfile.TarInfo, data: bytes = b"") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return path


def test_what_lies_outside_is_not_written(tmp_path: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filters")
    (tmp_path / "inside").mkdir()
    one = tarfile.TarInfo("../made")
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(hostile(tmp_path / "archive", one), tmp_path / "inside")
    assert not (tmp_path / "made").exists()


@pytest.mark.system
def test_an_older_python_unpacks_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code" / "deep").mkdir(parents=True)
    (tmp_path / "code" / "deep" / "train.py").write_text("1")
    (tmp_path / "code" / "link").symlink_to("deep")
    pack(tmp_path / "code", tmp_path / "archive")
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    assert unpacked(tmp_path / "archive", tmp_path / "there")["deep/train.py"] == "1"
    assert (tmp_path / "there" / "link").is_symlink()


def test_archives_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(b"\x1f\x8b broken")
    for name in ("cut", "none"):
        with pytest.raises(DataError, match="cannot be unpacked"):
            unpack(tmp_path / name, tmp_path / "there")
