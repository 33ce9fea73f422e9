"""Files that a script names, where they lie beside it: configurations, and those that it runs as its own
lines (`source FILE`).

Limit  Nobody knows in which folder a script will run: a file is looked for in the script's own, and in those
       around it. Of a path with a part that only the shell knows (`$(dirname "$0")/model.sh`), what stands
       behind that is looked for beside the script.
"""

import os
import re
from pathlib import Path

ENDINGS = (".sh", ".bash", ".env", ".conf", ".config", ".cfg")  # of files with variables
UNKNOWN = re.compile(r".*[$`()\"'][^/]*/", re.DOTALL)  # up to the last part that only the shell knows
UPWARDS = re.compile(r"^(?:\.{1,2}/)+")


def included_file(word: str, folder: Path | None) -> Path | None:
    """The script that a word names, where it can be found."""
    if folder is None:
        return None
    known = UNKNOWN.sub("", word)
    places = [folder] if known != word else [folder, *folder.parents]
    found = (place / known for place in places if known.endswith(ENDINGS) and os.path.isfile(place / known))
    return next(found, None)


def beside(file: str, folder: Path | None) -> Path | None:
    """A file in the folder; None for one that is not there, or leads out of it."""
    if not folder or len(file) > 200 or ".." in file or file.startswith("/"):
        return None
    return path if (path := folder / file).is_file() else None


def around(file: str, folder: Path | None) -> Path | None:
    """A file by its path in the folder or in one around it, the nearest first, or by its name in the folder;
    None for one that is in none."""
    if not folder:
        return None
    path = UNKNOWN.sub("", file)
    known = UPWARDS.sub("", path)
    places = [folder, *folder.parents][path.count("../") :]
    found = (beside(known, place) for place in places)
    return next(filter(None, found), None) or beside(known.rpartition("/")[2], folder)
