"""How many public launch scripts `plan --from-megatron` reads: as they are, with --vocab and --gpus, and with
the script's own arguments too.

Idea   public_scripts.tsv lists every shell script of four repositories that has --num-layers and a command
       line of Megatron, by repository, commit and path, with GPUs that it can run on and arguments that its
       own comparisons ask for. Their texts are read from clones: `python benchmarks/read_scripts.py
       DIRECTORY`, which holds each as owner/name or owner+name.
Limit  A script that is read may still be another model than its author's, if it is a fork's: the notes say
       what was left out.
"""

import argparse
import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.options import numbered
from ndparallel.launch_flags.read_megatron import read_megatron
from ndparallel.launch_flags.reading import Beside

LIST = Path(__file__).with_name("public_scripts.tsv")
H100, VOCABULARY = find_hardware("h100"), 50304
WAYS = ("as they are", "with --vocab and --gpus", "and with arguments")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("clones", type=Path, metavar="DIRECTORY")
    parser.add_argument("--refused", action="store_true", help="say why each of the others is not read")
    arguments = parser.parse_args()
    read: Counter[tuple[str, str]] = Counter()
    with LIST.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows:
        text = text_of(arguments.clones, row)
        said = {way: refusal(text, row, way) for way in WAYS}
        read.update((row["repository"], way) for way in WAYS if not said[way])
        if arguments.refused and all(said.values()):
            print(f"{row['repository']} {row['path']}: {said[WAYS[-1]]}")
    for repository in dict.fromkeys(row["repository"] for row in rows):
        number = sum(row["repository"] == repository for row in rows)
        shown = ", ".join(f"{read[repository, way]} {way}" for way in WAYS)
        print(f"{repository}: {shown}, of {number}")
    for way in WAYS:
        number = sum(count for (_, read_so), count in read.items() if read_so == way)
        print(f"all, {way}: {number} of {len(rows)}, {number / len(rows):.0%}")


def text_of(clones: Path, row: dict[str, str]) -> str:
    owner, name = row["repository"].split("/")
    places = (clones / owner / name, clones / f"{owner}+{name}", clones / f"{owner}+{name}" / "repo")
    there = [place for place in places if any((place / inner).exists() for inner in (".git", "HEAD"))]
    if not there:
        sys.exit(f"there is no clone of {row['repository']} in {clones}: clone it to {places[0]}.")
    command = ["git", "-C", str(there[0]), "show", f"{row['commit']}:{row['path']}"]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode("utf-8", "replace")


def refusal(text: str, row: dict[str, str], way: str) -> str:
    """Why the script is not read; nothing where it is."""
    vocab, gpus = (VOCABULARY, int(row["gpus"] or 0) or None) if way != WAYS[0] else (None, None)
    given = numbered(row["arguments"]) if way == WAYS[-1] else {}
    try:
        read_megatron(text, H100, Beside(gpus, vocab, variables=given, name=Path(row["path"]).name))
    except UserError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
