"""Launch files of YAML, read as words.

Limit  It takes PyYAML.
"""

import importlib
import re
from itertools import accumulate
from typing import Any

from ndparallel.base.errors import UserError

MERGED = ("tag:yaml.org,2002:merge", re.compile("<<"))
LARGEST = 50_000  # characters: what is published has 6,000
DEEPEST = 50  # brackets in one another: to read them takes as many steps as their square
MOST_ALIASES = 16  # which say again what stands elsewhere, and that again: more could grow without end


def loaded(text: str) -> Any:
    """Lists and mappings of words; a number is the word that is written."""
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise UserError("it is YAML, and to read that takes PyYAML: pip install pyyaml.") from None
    if len(text) > LARGEST:
        raise UserError(f"it has {len(text)} characters, more than the {LARGEST} of any launch file.")
    if max(accumulate((char in "[{") - (char in "]}") for char in text), default=0) > DEEPEST:
        raise UserError(f"it has more than {DEEPEST} brackets in one another.")
    words = type("Words", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {"<": [MERGED]}})
    try:
        aliases = sum(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
        said = yaml.load(text, Loader=words) if aliases <= MOST_ALIASES else None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise UserError(f"{line}{getattr(error, 'problem', None) or 'this is not YAML'}.") from None
    if aliases > MOST_ALIASES:
        raise UserError(f"it has more than {MOST_ALIASES} aliases (*NAME).")
    return said


def mapping(said: Any, key: str) -> dict[str, Any]:
    """What stands below a key; nothing where it is missing."""
    found = (said.get(key) if isinstance(said, dict) else None) or {}
    if not isinstance(found, dict):
        raise UserError(f"{key} must have a line `NAME: value` for each of its names.")
    return found
