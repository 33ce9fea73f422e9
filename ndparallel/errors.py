"""Errors meant for people: what is wrong, with which values, and what would do instead."""

import difflib
import sys
from collections.abc import Callable, Iterable


class UserError(ValueError):
    """Something that the user can put right. The command line prints its sentence and exits with 2; anything else is our bug."""


def unknown(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """Say that there is no such `kind`, which one is nearest, and which there are."""
    by_lower = {choice.lower(): choice for choice in choices}
    begun = [choice for choice in by_lower if name and choice.startswith(name.lower())]
    near = begun or difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f" Did you mean {by_lower[near[0]]!r}?" if near else ""
    return UserError(f"unknown {kind} {name!r}.{hint} There are: {', '.join(by_lower.values())}.")


def guarded(work: Callable[[], int]) -> int:
    """Do `work` and turn the errors meant for people into one sentence and exit code 2."""
    try:
        return work()
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
