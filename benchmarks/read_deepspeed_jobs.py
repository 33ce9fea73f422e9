"""How many public DeepSpeed jobs `plan --from-deepspeed` reads: as they are, with --model, --gpus and
--sequence, and with --set per_device_train_batch_size=1 too, where it asks for that.

Idea   public_deepspeed.tsv lists repositories by commit. Of each are taken: configurations, files of
       Accelerate's and of arguments that name DeepSpeed, and shell scripts that say deepspeed. Their texts
       are read from clones: `python benchmarks/read_deepspeed_jobs.py DIRECTORY`, which holds each as
       owner/name or owner+name.
Limit  Some scripts say deepspeed and train nothing, or with a program that makes its configuration itself.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from public_jobs import PublicJob, Row, count_read, rows_of

from ndparallel.base.errors import UserError, guarded
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.deepspeed.read import read_deepspeed
from ndparallel.launch_flags.reading import Beside

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
    count_read(str(__doc__), rows_of("public_deepspeed.tsv"), jobs_of, KINDS, WAYS)


def jobs_of(row: Row, clone: Path) -> Iterator[PublicJob]:
    """The files of a repository that are taken, by kind."""
    with tempfile.TemporaryDirectory() as folder:
        for path in written(clone, row["commit"], Path(folder)):
            file = Path(folder) / path
            text, kind = file.read_text(errors="replace"), path.rpartition(".")[2]
            if re.search(KINDS[kind], text, re.MULTILINE):
                yield PublicJob(kind, path, {way: refusal(text, file, way) for way in WAYS})


def written(clone: Path, commit: str, folder: Path) -> list[str]:
    """The repository's files that say deepspeed, or are its configurations, written below `folder`."""
    git = ["git", "-C", str(clone)]
    words = "deepspeed|DEEPSPEED|zero_optimization|train_micro_batch_size_per_gpu"
    ends = [f"*.{end}" for end in KINDS]
    found = subprocess.run([*git, "grep", "-IlE", words, commit, "--", *ends], capture_output=True, text=True)
    paths = [line.partition(":")[2] for line in found.stdout.splitlines()]
    for path in paths:
        text = subprocess.run([*git, "show", f"{commit}:{path}"], capture_output=True).stdout
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text[:LARGEST])
    return paths


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
    raise SystemExit(guarded(main))
