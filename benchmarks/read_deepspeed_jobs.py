"""How many public DeepSpeed jobs `plan --from-deepspeed` reads: as they are, with --model, --gpus and
--sequence, and with --set per_device_train_batch_size=1 too, where it asks for that.

Idea   public_deepspeed.tsv lists repositories by commit. Of each are taken: configurations, files of
       Accelerate's and of arguments that name DeepSpeed, and shell scripts that say deepspeed. Their texts
       are read from clones: `python benchmarks/read_deepspeed_jobs.py DIRECTORY`, which holds each as
       owner/name or owner+name.
Limit  Some scripts say deepspeed and train nothing, or with a program that makes its configuration itself.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.read_deepspeed import read_deepspeed
from ndparallel.launch_flags.reading import Beside

LIST = Path(__file__).with_name("public_deepspeed.tsv")
H100 = find_hardware("h100")
WAYS = ("as they are", "with --model, --gpus and --sequence", "and with a microbatch")
LARGEST = 100_000  # bytes
BESIDE = {"model": "llama-3-8b", "gpus": 8, "sequence": 2048}
MICROBATCH = {"per_device_train_batch_size": "1"}
KINDS = {  # what is taken, by how its name ends
    "json": r'"(zero_optimization|train_micro_batch_size_per_gpu)"',
    **dict.fromkeys(("yaml", "yml"), r"^(distributed_type: *['\"]?DEEPSPEED|deepspeed: *[\w./]+ *(#.*)?$)"),
    "sh": r"\bdeepspeed\b",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("clones", type=Path, metavar="DIRECTORY")
    parser.add_argument("--refused", action="store_true", help="say why each of the others is not read")
    arguments = parser.parse_args()
    read: Counter[tuple[str, str]] = Counter()
    with LIST.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows:
        with tempfile.TemporaryDirectory() as folder:
            for kind, path, said in answers(written(arguments.clones, row, Path(folder)), Path(folder)):
                read.update([(kind, "all"), *((kind, way) for way, reason in said.items() if not reason)])
                if arguments.refused and said[WAYS[-1]]:
                    print(f"{row['repository']} {path}: {said[WAYS[-1]]}")
    for kind in KINDS:
        shown = ", ".join(f"{read[kind, way]} {way}" for way in WAYS)
        print(f"{kind}: {shown}, of {read[kind, 'all']}")


def written(clones: Path, row: dict[str, str], folder: Path) -> list[str]:
    """The repository's files that say deepspeed, or are its configurations, written below `folder`."""
    owner, name = row["repository"].split("/")
    places = (clones / owner / name, clones / f"{owner}+{name}", clones / f"{owner}+{name}" / "repo")
    there = [place for place in places if any((place / inner).exists() for inner in (".git", "HEAD"))]
    if not there:
        sys.exit(f"there is no clone of {row['repository']} in {clones}: clone it to {places[0]}.")
    git = ["git", "-C", str(there[0])]
    words = "deepspeed|DEEPSPEED|zero_optimization|train_micro_batch_size_per_gpu"
    ends = [f"*.{end}" for end in KINDS]
    found = subprocess.run(
        [*git, "grep", "-IlE", words, row["commit"], "--", *ends], capture_output=True, text=True
    )
    paths = [line.partition(":")[2] for line in found.stdout.splitlines()]
    for path in paths:
        text = subprocess.run([*git, "show", f"{row['commit']}:{path}"], capture_output=True).stdout
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text[:LARGEST])
    return paths


def answers(paths: list[str], folder: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Kind, path and why it is not read, in each of the ways, of the files that are taken."""
    for path in paths:
        text = (folder / path).read_text(errors="replace")
        kind = path.rpartition(".")[2]
        if re.search(KINDS[kind], text, re.MULTILINE):
            yield kind, path, {way: refusal(text, folder / path, way) for way in WAYS}


def refusal(text: str, path: Path, way: str, **given: Any) -> str:
    """Why a file is not read; nothing where it is."""
    own = given if way == WAYS[0] else BESIDE | given
    try:
        read_deepspeed(text, H100, Beside(name=path.name, folder=path.parent, **own))
    except UserError as error:
        asked = way == WAYS[-1] and not given and "not given, or auto" in str(error)
        return refusal(text, path, way, variables=MICROBATCH) if asked else str(error)
    return ""


if __name__ == "__main__":
    main()
