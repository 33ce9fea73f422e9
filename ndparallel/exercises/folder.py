"""The reader's folder: the answers, and the marks that they got.

Idea   Nothing that a reader has written is ever overwritten: a file that is there is graded, and one that is
       to begin anew is renamed first. A mark holds for the text that got it, and for no other.
"""

import hashlib
import json
from pathlib import Path

from ndparallel.base.errors import UserError
from ndparallel.base.files import read_bytes, write_atomically
from ndparallel.exercises.answer import MOST_BYTES
from ndparallel.exercises.verdict import IN_WORDS, NOT_BEGUN, Verdict

MARKS_FILE = ".marks.json"
CHANGED = "*"  # behind the mark of an answer that has changed since


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, name: str) -> Path:
        return self.path / f"{name}.py"

    def write(self, name: str, text: str) -> None:
        """Write a new file. Raises UserError where there is one already."""
        if self.file(name).exists():
            raise UserError(f"{self.file(name)} is there already; --reset begins anew and keeps it.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be made: {(error.strerror or str(error)).lower()}."
            ) from None
        write_atomically(self.file(name), text)

    def put_aside(self, name: str) -> Path | None:
        """Rename the reader's file to one with a number, and return that; None where there is no file."""
        if not self.file(name).exists():
            return None
        number = 1
        while (kept := self.path / f"{name}.{number}.py").exists():
            number += 1
        return self.file(name).rename(kept)

    def mark(self, name: str) -> str:
        """Return the mark of an answer in words, and CHANGED behind it where the file has changed since."""
        if not self.file(name).exists():
            return ""
        noted = self.marks().get(name)
        if noted is None:
            return NOT_BEGUN
        mark = IN_WORDS.get(noted["mark"], noted["mark"])
        return mark + ("" if noted["sha256"] == self.hash(name) else CHANGED)

    def note(self, verdict: Verdict) -> None:
        """Keep a verdict's mark beside the answers."""
        marks = self.marks() | {
            verdict.exercise: {"mark": verdict.mark, "sha256": self.hash(verdict.exercise)}
        }
        write_atomically(self.path / MARKS_FILE, json.dumps(marks, indent=1) + "\n")

    def marks(self) -> dict[str, dict[str, str]]:
        """Return the marks by exercise; none where their file is missing or broken."""
        try:
            marks = json.loads(read_bytes(self.path / MARKS_FILE, MOST_BYTES))
            return {
                name: {"mark": str(mark["mark"]), "sha256": mark["sha256"]} for name, mark in marks.items()
            }
        except (UserError, ValueError, AttributeError, TypeError, KeyError, RecursionError):
            return {}

    def hash(self, name: str) -> str:
        return hashlib.sha256(read_bytes(self.file(name), MOST_BYTES)).hexdigest()
