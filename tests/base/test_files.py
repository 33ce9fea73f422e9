"""Files are whole or not there, and a path that cannot be written is one sentence."""

import errno
import importlib
import io
import os
import resource
import secrets
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ndparallel.base import files
from ndparallel.base.errors import UserError
from ndparallel.base.files import check_writable, read_bytes, read_json, read_text, write_atomically
from ndparallel.commands.command_line import main
from ndparallel.lessons.main import main as lesson_main
from ndparallel.lessons.registry import LESSONS, load


def test_a_file_is_written_and_nothing_is_left_beside_it(tmp_path):
    write_atomically(tmp_path / "picture.svg", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.svg"]
    assert (tmp_path / "picture.svg").read_text() == "new"


@pytest.fixture(params=["without a name", "beside"])
def way(request, monkeypatch):
    """Both ways to write a file: that of Linux, and that of all systems."""
    if request.param == "beside":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


def test_a_file_may_be_read_and_written_by_whom_the_umask_lets(tmp_path, way):
    before = os.umask(0o002)
    try:
        write_atomically(tmp_path / "table.csv", "a,b")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "table.csv").stat().st_mode) == 0o664


def test_two_texts_for_one_file_are_refused_before_either_is_written(tmp_path):
    same = tmp_path / "folder" / ".." / "table.csv"
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="table.csv' twice: name another file"):
        check_writable(tmp_path / "table.csv", None, same)


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path, way):
    path = tmp_path / "trace.json"
    path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(UserError, match="trace.json': file too large; name a file elsewhere"):
            write_atomically(path, "new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


ENDS = """
import resource, signal
from ndparallel.base.files import write_atomically

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
write_atomically("trace.json", "new" * 1000)
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="this system has no files without a name")
def test_a_program_that_is_killed_while_it_writes_leaves_nothing(tmp_path):
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", ENDS], cwd=tmp_path, env=environment)
    assert done.returncode == -signal.SIGXFSZ and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_nameless", [True, False])
def test_lines_end_alike_on_every_system(has_nameless, tmp_path, monkeypatch):
    """A launch script that was written on Windows runs on a cluster."""
    monkeypatch.setattr(os, "linesep", "\r\n")
    slow = importlib.import_module("_pyio")  # which asks os.linesep, as the fast one does not
    monkeypatch.setattr(files, "open", slow.open, raising=False)
    monkeypatch.setattr(io, "open", slow.open)
    if not has_nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    write_atomically(tmp_path / "launch.sh", "#!/bin/bash\ntrue\n")
    assert (tmp_path / "launch.sh").read_bytes() == b"#!/bin/bash\ntrue\n"


def test_the_file_appears_whole_at_once(tmp_path, monkeypatch):
    path, seen = tmp_path / "trace.json", []
    replace = Path.replace

    def watched(self, target):
        seen.append((path.exists(), self.read_text()))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    write_atomically(path, "all of it")
    assert seen == [(False, "all of it")] and path.read_text() == "all of it"


@pytest.mark.parametrize(
    "path, reason",
    [
        ("missing/picture.svg", "there is no directory .*missing.*; make it first"),
        (".", "it is a directory; name a file in it"),
    ],
)
def test_an_unwritable_path_is_one_clear_sentence(tmp_path, path, reason):
    with pytest.raises(UserError, match=f"^cannot write '.*': {reason}\\.$"):
        write_atomically(tmp_path / path, "")


@pytest.mark.parametrize("target", ["missing/a.svg", "directory", "loop"])
@pytest.mark.parametrize(
    ("work", "program", "options"),
    [
        ("ndparallel.lessons.main.run_lesson", "1d_data_parallel", ["--svg"]),
        ("ndparallel.lessons.main.run_lesson", "4d_combined", ["--trace"]),
        ("ndparallel.lessons.comparison.run_entries", "compare", ["--svg"]),
        (
            "ndparallel.commands.schedule.timed",
            "schedule",
            ["1f1b", "--stages", "2", "--microbatches", "4", "--svg"],
        ),
        (
            "ndparallel.commands.scaling.scale",
            "scaling",
            ["--model", "gpt2", "--gpus", "8", "--global-batch", "8", "--svg"],
        ),
        ("ndparallel.commands.calibrate.load_torch", "calibrate", ["--out"]),
        ("ndparallel.commands.validate.here.load_torch", "validate", ["--here", "--save"]),
        ("ndparallel.explorer.saving.saved_page", "explore", ["--save"]),
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(
    work, program, options, target, tmp_path, monkeypatch, capsys
):
    def begun(*arguments):
        raise AssertionError("the work was begun")

    (tmp_path / "directory").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, begun)
    arguments = [*options, target]
    assert (lesson_main(load(program), arguments) if program in LESSONS else main([program, *arguments])) == 2
    assert capsys.readouterr().err.startswith(f"error: cannot write '{target}': ")


def test_a_directory_that_may_not_be_written_to_is_known_before(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not (path == tmp_path and mode == os.W_OK))
    with pytest.raises(
        UserError, match="permission denied; name a file in a directory that you may write to"
    ):
        check_writable(tmp_path / "picture.svg")


def test_a_device_is_known_to_be_writable():
    check_writable(None, os.devnull)


def test_a_directory_without_permission_is_named(tmp_path, monkeypatch):
    def refuse(self, mode, **text):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    with pytest.raises(
        UserError, match="permission denied; name a file in a directory that you may write to"
    ):
        write_atomically(tmp_path / "picture.svg", "")


def test_a_device_is_written_to_and_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_pipe_that_nobody_reads_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe': it is a pipe that nobody reads"):
        write_atomically(tmp_path / "pipe", "through")


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path):
    target, link = tmp_path / "target.svg", tmp_path / "link.svg"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_link_that_somebody_put_where_the_new_file_is_made_is_never_followed(tmp_path, way, monkeypatch):
    victim, path = tmp_path / "victim", tmp_path / "trace.json"
    victim.write_text("mine")
    monkeypatch.setattr(secrets, "token_hex", lambda size: "guessed")
    (tmp_path / ".trace.json.guessed.part").symlink_to(victim)
    with pytest.raises(UserError, match="cannot write"):
        write_atomically(path, "new")
    assert victim.read_text() == "mine" and not path.exists()


def test_a_pipe_that_nobody_writes_to_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: this is a pipe; name a file"):
        read_bytes(tmp_path / "pipe", 100)


def test_a_device_without_end_is_not_read():
    with pytest.raises(UserError, match="/dev/zero: this is a device; name a file"):
        read_bytes("/dev/zero", 100)


def test_a_file_is_read_up_to_its_limit_and_refused_beyond_it(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"1" * 100)
    assert read_bytes(path, 100) == b"1" * 100
    os.truncate(path, 10**9)  # no byte of which is on the disk, or may come into memory
    with pytest.raises(UserError, match="a.json: this file has 1.00 GB; at most 100 B are read"):
        read_bytes(path, 100)


def test_a_file_that_says_it_is_empty_is_not_read_without_end():
    """As those of /proc do."""
    with pytest.raises(UserError, match="/proc/self/maps: this file has .*; at most 10.0 B are read"):
        read_bytes("/proc/self/maps", 10)


def test_a_directory_is_named_as_one_where_the_system_says_only_that_permission_is_denied(
    tmp_path, monkeypatch
):
    """As Windows does."""
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(denied))
    with pytest.raises(UserError, match="this is a directory; name a file in it"):
        read_bytes(tmp_path, 100)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "'': cannot be read: no such file"),
        ("nowhere/a", "nowhere/a: cannot be read: no such file"),
        (".", r"\.: this is a directory; name a file in it"),
        ("a\0b", "no file has such a name"),
        ("x" * 300, "file name too long"),
    ],
)
def test_what_is_no_file_is_named(name, said):
    with pytest.raises(UserError, match=said):
        read_bytes(name, 100)


def test_text_may_begin_with_a_byte_order_mark_and_must_be_utf_8(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_text(path, 100) == "[1]" and read_json(path, 100) == [1]
    path.write_bytes(b"ab\xff")
    with pytest.raises(UserError, match="byte 2 is not UTF-8 text"):
        read_text(path, 100)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000])
def test_what_is_no_json_is_refused(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError, match="a.json: this is not JSON: "):
        read_json(path, 1e6)
