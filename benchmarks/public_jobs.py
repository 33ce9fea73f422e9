"""What read_scripts.py and read_deepspeed_jobs.py share: command line, lists, clones and counts.

Idea   A list has a row for each public script, or repository. What a benchmark finds in the clone of one are
       jobs: of each it says, for each of several ways to read it, why it is not read.
"""

import argparse
import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ndparallel.base.errors import UserError

Row = dict[str, str]


class PublicJob(NamedTuple):
    """Why a job is not read, by way; nothing where it is. Those of one `group` are counted together."""

    group: str
    path: str
    refusals: dict[str, str]


def rows_of(name: str) -> list[Row]:
    """The rows of a list that lies beside this file."""
    with Path(__file__).with_name(name).open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def count_read(
    about: str,
    rows: Sequence[Row],
    jobs_of: Callable[[Row, Path], Iterable[PublicJob]],
    groups: Iterable[str],
    ways: Sequence[str],
) -> list[PublicJob]:
    """Find the jobs of each row in its repository's clone, and print how many of each group are read, way by
    way; with --refused also why the others are not. Return all jobs."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("clones", type=Path, metavar="DIRECTORY")
    parser.add_argument("--refused", action="store_true", help="say why each of the others is not read")
    arguments = parser.parse_args()
    found = []
    for row in rows:
        for job in jobs_of(row, clone_of(row["repository"], arguments.clones)):
            found.append(job)
            if arguments.refused and job.refusals[ways[-1]]:
                print(f"{row['repository']} {job.path}: {job.refusals[ways[-1]]}")
    for group in dict.fromkeys(groups):
        alike = [job for job in found if job.group == group]
        shown = ", ".join(f"{number_read(alike, way)} {way}" for way in ways)
        print(f"{group}: {shown}, of {len(alike)}")
    return found


def number_read(jobs: Iterable[PublicJob], way: str) -> int:
    return sum(not job.refusals[way] for job in jobs)


def clone_of(repository: str, clones: Path) -> Path:
    """The clone of "owner/name" in a folder. Raises UserError where there is none."""
    owner, name = repository.split("/")
    places = (clones / owner / name, clones / f"{owner}+{name}", clones / f"{owner}+{name}" / "repo")
    there = [place for place in places if any((place / inner).exists() for inner in (".git", "HEAD"))]
    if not there:
        raise UserError(f"there is no clone of {repository} in {clones}: clone it to {places[0]}.")
    return there[0]
