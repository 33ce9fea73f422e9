"""How a launch script is started, in its own words: the directives of Slurm that stand in it, and the example
of its arguments in a comment.

Idea   What only a scheduler or a caller knows ($SLURM_NNODES, $4) is often written in the script itself, as
       #SBATCH --nodes=24, or as "# bash pretrain.sh 7B 8". A reader of the script would take it from there.
Limit  An example counts only where it names the script and has as many words as the script takes arguments: a
       copy of another script's, or one that a newer argument has outgrown, would put words in wrong places.
"""

import re
import shlex
from dataclasses import dataclass, field

DIRECTIVE = re.compile(r"^#SBATCH\s+--?(?P<option>[\w-]+)[=\s]\s*(?P<value>\S+)", re.MULTILINE)
EXAMPLE = re.compile(
    r"^[ \t]*#+[ \t]*(?:bash|sh)[ \t]+(?:\S*/)?(?P<script>[\w.-]+)[ \t]+(?P<words>.+)$", re.MULTILINE
)
ARGUMENT = re.compile(r"\$\{?(\d{1,2})")
NODES = ("nodes", "N")
GPUS_OF_NODE, TASKS_OF_NODE = ("gpus-per-node", "gres"), ("ntasks-per-node",)


@dataclass(frozen=True)
class Example:
    """Arguments that a script's comment shows, by their numbers, and its line; 0 where there is none."""

    arguments: dict[str, str] = field(default_factory=dict)
    line: int = 0


def example_of(text: str, name: str) -> Example:
    """The first example in the comments that calls the script by its `name` with all its arguments."""
    wanted = arguments_of(text)
    for found in EXAMPLE.finditer(text) if wanted else ():
        words = split(found["words"])
        if found["script"] == name and len(words) == wanted:
            return Example(by_number(words), text.count("\n", 0, found.start()) + 1)
    return Example()


def arguments_of(text: str) -> int:
    """How many arguments of its own a script asks for."""
    return max([int(number) for number in ARGUMENT.findall(text)], default=0)


def by_number(words: list[str]) -> dict[str, str]:
    """Arguments by their numbers, as the shell has them."""
    return {str(number): word for number, word in enumerate(words, 1)}


def split(words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError:
        return []


def scheduled(text: str) -> dict[str, str]:
    """The variables that Slurm sets from the script's own directives."""
    asked = {found["option"]: found["value"] for found in DIRECTIVE.finditer(text)}
    nodes, gpus, tasks = (count(asked, names) for names in (NODES, GPUS_OF_NODE, TASKS_OF_NODE))
    variables = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_GPUS_ON_NODE": gpus,
        "SLURM_GPUS_PER_NODE": gpus,
        "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_NTASKS": nodes * tasks,
    }
    return {name: str(number) for name, number in variables.items() if number}


def count(asked: dict[str, str], names: tuple[str, ...]) -> int:
    """The number that one of these options asks for, as 8 in gpu:a100:8; 0 for none."""
    words = next((asked[name] for name in names if name in asked), "").rpartition(":")[2]
    return int(words) if re.fullmatch(r"\d{1,6}", words) else 0
