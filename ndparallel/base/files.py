"""Files that are either whole or not there."""

import errno
import os
import secrets
from pathlib import Path

from ndparallel.base.errors import UserError


def write_atomically(path: str | Path, text: str) -> None:
    """Write `text` to a temporary file beside `path` and rename it, so that no reader finds half a file.
    Raises UserError where the file cannot be written."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # a device or a pipe, as /dev/stdout: never to be replaced by a file
            path.write_text(text, encoding="utf-8")
        else:
            _write_beside_and_rename(path.resolve(), text)
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {_reason(path, error)}.") from None


def check_writable(*paths: str | Path | None) -> None:
    """Raise UserError, before long work, for a path that cannot be written afterwards. None is accepted."""
    for path in [Path(given) for given in paths if given is not None]:
        if error := _surely_wrong(path):
            raise UserError(f"cannot write {str(path)!r}: {_reason(path, error)}.")


def _surely_wrong(path: Path) -> OSError | None:
    if path.is_dir():
        return IsADirectoryError()
    if not path.parent.is_dir():
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    # a device itself, of a file its directory
    to_change = path if path.exists() and not path.is_file() else path.resolve().parent
    return None if os.access(to_change, os.W_OK) else PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _write_beside_and_rename(path: Path, text: str) -> None:
    if path.is_dir():
        raise IsADirectoryError
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    file = beside.open("x", encoding="utf-8")  # a new one: never a file or a link that somebody put there
    try:
        with file:
            file.write(text)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _reason(path: Path, error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return "it is a directory; name a file in it"
    if not path.parent.exists():
        return f"there is no directory {str(path.parent)!r}; make it first"
    return f"{(error.strerror or str(error)).lower()}; name a file in a directory that you may write to"
