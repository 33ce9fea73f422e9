"""Files that are read whole and never for long, and written so that they are either whole or not there.

Limit  Only regular files are read: a device or a pipe may have no end. A program that is killed while it
       writes can leave a file .NAME.*.part: on Linux only between two system calls, when all is written;
       where there are no files without a name (other systems, NFS), at any time of the write.
       Lines end as on Linux on every system: a launch script is written on one computer, and run on another.
"""

import errno
import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.quantities import si

MOST_IN_A_LINE = 1000  # of TOML: of a key with many dots, tomllib's time grows with the square
NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # which Windows has not, as it has no pipes that are files


def read_bytes(path: str | Path, most_bytes: float) -> bytes:
    """Return what is in a regular file. Raises UserError, before it reads anything, where there is none or
    it has more than `most_bytes`."""
    name = str(path) or "''"
    if "\0" in name:
        raise UserError(f"{name}: no file has such a name.")
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                kind = "a pipe" if stat.S_ISFIFO(found.st_mode) else "a device"
                raise UserError(f"{name}: this is {kind}; name a file.")
            content = file.read(int(most_bytes) + 1) if found.st_size <= most_bytes else b""
    except OSError as error:
        if os.path.isdir(path):  # Windows says of one that permission is denied
            raise UserError(f"{name}: this is a directory; name a file in it.") from None
        raise UserError(f"{name}: cannot be read: {(error.strerror or str(error)).lower()}.") from None
    size = max(found.st_size, len(content))
    if size > most_bytes:
        raise UserError(f"{name}: this file has {si(size, 'B')}; at most {si(most_bytes, 'B')} are read.")
    return content


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to would make an open that waits wait for ever."""
    return os.open(path, flags | NONBLOCK)


def read_text(path: str | Path, most_bytes: float) -> str:
    """Return the text of a regular file. Raises UserError as read_bytes does, and for what is not UTF-8."""
    try:
        return read_bytes(path, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8 text.") from None


def read_json(path: str | Path, most_bytes: float) -> Any:
    """Return the value in a JSON file. Raises UserError as read_text does, and for what is not JSON."""
    text = read_text(path, most_bytes)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: this is not JSON: {error}.") from None


def read_toml(path: str | Path, most_bytes: float) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises UserError as read_text does, for what is not TOML, and for a
    line longer than any number needs."""
    text = read_text(path, most_bytes)
    longest = max(map(len, text.splitlines()), default=0)
    if longest > MOST_IN_A_LINE:
        raise UserError(
            f"{path}: a line has {longest:,} characters, and a line of TOML may have {MOST_IN_A_LINE:,}."
        )
    try:
        return parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: this is not TOML: {error}.") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of TOML. Raises ValueError for text that is not TOML."""
    import tomllib  # the lessons need no such file

    return tomllib.loads(text)


def write_atomically(path: str | Path, text: str) -> None:
    """Write `text` to a new file and give it its name when it is whole, so that no reader finds half a file,
    and none is left behind. Raises UserError where the file cannot be written."""
    path = Path(path)
    try:
        if is_special(path):  # as /dev/stdout: never to be replaced by a file
            with open(path, "w", encoding="utf-8", newline="\n", opener=_without_waiting) as file:
                if NONBLOCK:
                    os.set_blocking(file.fileno(), True)
                file.write(text)
        else:
            _write_beside_and_rename(path.resolve(), text)
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {_reason(path, error)}.") from None


def is_special(path: Path) -> bool:
    """Whether a path is a device or a pipe. Raises OSError for links that lead to one another."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def check_writable(*paths: str | Path | None) -> None:
    """Raise UserError, before long work, for a path that cannot be written afterwards, or is the same as an
    earlier one. None is accepted."""
    files: set[Path] = set()
    for path in [Path(given) for given in paths if given is not None]:
        if error := _surely_wrong(path):
            raise UserError(f"cannot write {str(path)!r}: {_reason(path, error)}.")
        if path.resolve() in files:
            raise UserError(f"cannot write {str(path)!r} twice: name another file.")
        if not is_special(path):
            files.add(path.resolve())


def _surely_wrong(path: Path) -> OSError | None:
    if path.is_dir():
        return IsADirectoryError()
    if not path.parent.is_dir():
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    try:
        # a device itself, of a file its directory
        to_change = path if is_special(path) else path.resolve().parent
    except OSError as error:
        return error
    return None if os.access(to_change, os.W_OK) else PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _write_beside_and_rename(path: Path, text: str) -> None:
    if path.is_dir():
        raise IsADirectoryError
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        _write_new(beside, text)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _write_new(path: Path, text: str) -> None:
    """Write a new file, never one or through a link that somebody put there. Where the system has files
    without a name it gets its own when it is whole, so that who is killed before leaves none."""
    with (
        suppress(OSError, AttributeError),
        open(path.parent, "w", encoding="utf-8", newline="\n", opener=_nameless) as file,
    ):
        file.write(text)
        file.flush()
        os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=file.fileno())
        return
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _nameless(folder: str, flags: int) -> int:
    return os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o666)


def _reason(path: Path, error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return "it is a directory; name a file in it"
    if error.errno == errno.ENXIO:
        return "it is a pipe that nobody reads"
    if not path.parent.exists():
        return f"there is no directory {str(path.parent)!r}; make it first"
    forbidden = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    elsewhere = "in a directory that you may write to" if forbidden else "elsewhere"
    return f"{(error.strerror or str(error)).lower()}; name a file {elsewhere}"
