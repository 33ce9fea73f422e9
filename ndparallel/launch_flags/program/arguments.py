"""A program that a launcher starts: its command, its arguments, and the files that these name.

Limit  A file is looked for where shell/files.py looks; what the program itself decides is not known.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from ndparallel.base.errors import UserError
from ndparallel.base.files import read_text
from ndparallel.base.quoting import brief
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.program.adapters import MATRICES
from ndparallel.launch_flags.shell.files import around
from ndparallel.launch_flags.shell.reader import read_script
from ndparallel.launch_flags.shell.script import Script
from ndparallel.launch_flags.shell.slurm import scheduled
from ndparallel.launch_flags.shell.words import LARGEST
from ndparallel.launch_flags.yaml_text import loaded, mapping

AXOLOTL = {"micro_batch_size": fields.TRANSFORMERS_MICRO, "optimizer": "optim"}  # its words, transformers'
YAML = (".yaml", ".yml")
EMPTY = ("", "~", "null", None)  # values in YAML
DOCUMENT = re.compile(r"<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")  # cat <<END > FILE
TARGET = re.compile(r">[ \t]*(\"[^\"]*\"|[^\s<>]+)")
EXPR = re.compile(r"\$\(expr ([^()]*)\)|`expr ([^`]*)`")  # $(expr 64 / $N)
VARIABLE = re.compile(r"\$(?:(?P<plain>\w+)|\{(?P<braced>\w+)\})")


class Files(NamedTuple):
    """Files that a command may name: those that its script writes, by their names, and those that lie in the
    script's folder or around it."""

    folder: Path | None = None
    written: Mapping[str, str] = {}

    def get(self, file: str) -> str:
        """A file's text; "" where there is none."""
        return (
            self.written.get(file) or ((path := around(file, self.folder)) and read_text(path, LARGEST)) or ""
        )

    def text(self, file: str, what: str = "its configuration") -> str:
        """A file's text. Raises UserError where there is none."""
        if file not in self.written and not around(file, self.folder):
            instead = "set its variables with --set" if "$" in file else "put it beside this file"
            raise UserError(f"it takes {what} from {brief(file)}, which is not found: {instead}.")
        return self.get(file)


def script_and_files(text: str, variables: Mapping[str, str], folder: Path | None) -> tuple[Script, Files]:
    """What a script runs, and the files that its commands may name."""
    lines, written = without_documents(text)
    lines = EXPR.sub(lambda found: f"$(({found[1] or found[2]}))".replace("\\", ""), lines)
    script = read_script(lines, variables, scheduled(text, variables), folder)
    known = {name: " ".join(words) for name, words in script.variables.items()}
    return script, Files(
        folder,
        {expanded(file, known): body if kept else expanded(body, known) for file, kept, body in written},
    )


def without_documents(text: str) -> tuple[str, list[tuple[str, bool, str]]]:
    """A script without the files that it writes itself (cat <<END > FILE); and these, each with its name and
    whether variables in it stay as they are written."""
    left, kept, written = iter(text.splitlines()), list[str](), list[tuple[str, bool, str]]()
    for line in left:
        document, target = DOCUMENT.search(line), TARGET.search(line)
        if document and target:
            body = "\n".join(takewhile(document["end"].__ne__, map(str.strip, left)))
            written.append((target[1].strip('"'), bool(document["quote"]), body))
        else:
            kept.append(line)
    return "\n".join(kept), written


def expanded(text: str, variables: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda name: variables.get(name["plain"] or name["braced"], name[0]), text)


# ------------------------------------------------------------------------------------------------- arguments


def programs_arguments(words: list[str], files: Files) -> dict[str, str]:
    """The arguments in a program's command, and in a file of them that it names and that is found."""
    file = file_of_arguments(words)
    text = files.get(file) if file else ""
    return (words_in(text) if text else {}) | arguments_of(words)


def file_of_arguments(words: list[str]) -> str:
    """The file of a program's arguments that stands alone in its command, as in `llamafactory-cli train
    FILE`, or behind --config; "" where there is none."""
    alone = (word for before, word in zip(["", *words], words) if word.endswith(YAML) and before[:1] != "-")
    file = arguments_of(words).get("config") or next(alone, "")
    return file if file.endswith(YAML) else ""


def words_in(text: str) -> dict[str, str]:
    """The arguments in a file of a program's: those that are one word."""
    said = mapping({"the file": loaded(text)}, "the file")
    words = {AXOLOTL.get(name, name): value for name, value in said.items() if value not in EMPTY}
    if "CutCrossEntropyPlugin" in str(said.get("plugins")):  # which does so by default
        words.setdefault("cut_cross_entropy", "true")
    if fields.TRANSFORMERS_ACCELERATOR in words:
        words[fields.TRANSFORMERS_ACCELERATOR] = f"{words[fields.TRANSFORMERS_ACCELERATOR]}"
    for name in words.keys() & {*MATRICES}:
        words[name] = ",".join(map(str, words[name])) if isinstance(words[name], list) else words[name]
    return {
        name: "true" if (name, value) == ("bf16", "auto") else value
        for name, value in words.items()
        if isinstance(value, str)
    }


def arguments_of(words: Iterable[str]) -> dict[str, str]:
    """Arguments by their names: --bf16 true, --max-length=2048; "true" where no value stands. Of several
    values the first, but those of a list of matrices, with commas."""
    found, name, listed = dict[str, str](), "", ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value if equals else "true"
            name, listed = "" if equals else name, ""
        elif name:
            found[name], listed, name = word, name if name in MATRICES else "", ""
        elif listed:
            found[listed] += f",{word}"
    return found


def accelerates(text: str) -> dict[str, Any]:
    """The options of `accelerate launch` in a file of `accelerate config`."""
    said = mapping({"the file": loaded(text)}, "the file")
    parts = ("deepspeed_config", "fsdp_config", "parallelism_config", "dynamo_config")
    return said | {name: value for part in parts for name, value in mapping(said, part).items()}
