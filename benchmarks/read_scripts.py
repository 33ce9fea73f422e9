"""How many public launch scripts `plan --from-megatron` reads: as they are, with --vocab and --gpus, and with
the script's own arguments too.

Idea   public_scripts.tsv lists every shell script of four repositories that has --num-layers and a command
       line of Megatron, by repository, commit and path, with GPUs that it can run on and arguments that its
       own comparisons ask for. Their texts are read from clones: `python benchmarks/read_scripts.py
       DIRECTORY`, which holds each as owner/name or owner+name.
Limit  A script that is read may still be another model than its author's, if it is a fork's: the notes say
       what was left out.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from public_jobs import PublicJob, Row, count_read, number_read, rows_of

from ndparallel.base.errors import UserError, guarded
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.megatron.read import read_megatron
from ndparallel.launch_flags.options import numbered
from ndparallel.launch_flags.reading import Beside

H100, VOCABULARY = find_hardware("h100"), 50304
WAYS = ("as they are", "with --vocab and --gpus", "and with arguments")


def main() -> None:
    rows = rows_of("public_scripts.tsv")
    found = count_read(str(__doc__), rows, jobs_of, [row["repository"] for row in rows], WAYS)
    for way in WAYS:
        number = number_read(found, way)
        print(f"all, {way}: {number} of {len(found)}, {number / len(found):.0%}")


def jobs_of(row: Row, clone: Path) -> Iterator[PublicJob]:
    """The script that a row names."""
    command = ["git", "-C", str(clone), "show", f"{row['commit']}:{row['path']}"]
    text = subprocess.run(command, capture_output=True, check=True).stdout.decode("utf-8", "replace")
    yield PublicJob(row["repository"], row["path"], {way: refusal(text, row, way) for way in WAYS})


def refusal(text: str, row: Row, way: str) -> str:
    """Why the script is not read; nothing where it is."""
    vocab, gpus = (VOCABULARY, int(row["gpus"] or 0) or None) if way != WAYS[0] else (None, None)
    given = numbered(row["arguments"]) if way == WAYS[-1] else {}
    try:
        read_megatron(text, H100, Beside(gpus, vocab, variables=given, name=Path(row["path"]).name))
    except UserError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    raise SystemExit(guarded(main))
