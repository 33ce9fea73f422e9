"""Run a lesson, as `python 1d_data_parallel.py` does in a checkout, list the lessons, or write them as files.

    ndparallel lesson                      the lessons, and where their files are
    ndparallel lesson 1d --gpus 8          run one; all that follows its name are its own options
    ndparallel lesson 1d --help            what these are
    ndparallel lesson --copy FOLDER        write all lessons' files into a folder, to change them

Limit  A copied lesson runs with the installed package; its reference is the single GPU of the installed 0D.
"""

import argparse
from pathlib import Path

from ndparallel.base.errors import UserError
from ndparallel.base.files import write_atomically
from ndparallel.lessons.main import run_and_show_words
from ndparallel.lessons.registry import LESSONS, file_of, full_name, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--copy", metavar="FOLDER", help="write the files of all lessons into this folder")
    names = "0d, 1d, 2d, 3d, 4d, cp, ep, or a lesson's file name"
    parser.add_argument("name", nargs="?", metavar="NAME", help=names)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of the lesson")


def run(arguments: argparse.Namespace) -> int:
    if arguments.copy is not None:
        copy_lessons(Path(arguments.copy), arguments.name)
    elif arguments.name is None:
        for name in LESSONS:
            print(f"{load(name).title:<40} {file_of(name)}")
        print("\nndparallel lesson 1d runs 1D, and so does python with its file.")
    else:
        name = full_name(arguments.name)
        return run_and_show_words(load(name), arguments.options, f"ndparallel lesson {arguments.name}")
    return 0


def copy_lessons(folder: Path, name: str | None) -> None:
    """Write every lesson's file into a folder, which may be new, and say where. Raises UserError where one is
    there already, or a lesson is to be run as well."""
    if name is not None:
        raise UserError(f"--copy writes all lessons and runs none: leave {name!r} out.")
    targets = {name: folder / f"{name}.py" for name in LESSONS}
    there = [target for target in targets.values() if target.exists()]
    if there:
        raise UserError(f"{str(there[0])!r} is there already, and would be overwritten; name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in targets.items():
        write_atomically(target, file_of(name).read_text("utf-8"))
        print(target)
