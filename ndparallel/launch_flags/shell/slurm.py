"""What a job asks of Slurm: in the directives of its script, and in the options of srun.

Idea   What only the scheduler knows ($SLURM_NNODES) is often written in the script itself, as
       #SBATCH --nodes=24. A reader of the script would take it from there.
Limit  Nodes that no line names may be named to sbatch: they are not taken for one.
"""

import re
from collections.abc import Mapping

from ndparallel.launch_flags.shell.words import plain_words

DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(?P<options>.*?)(?:(?<=\s)#.*)?$", re.MULTILINE)
SLURM_OPTION = re.compile(r"--(?P<name>[\w-]+)(?:=(?P<value>.*))?|-(?P<letter>\w)=?(?P<glued>.*)", re.DOTALL)
LETTERS = {"N": "nodes", "n": "ntasks", "G": "gpus"}
SWITCHES = re.compile(  # of srun and of mpirun: no value follows them as a word of its own
    r"[EKOQXZklsuv]|exclusive|hold|label|no-\w+|over\w+|pty|quiet|contiguous|disable-status|requeue"
    r"|kill-on-bad-exit|preserve-env|spread-job|unbuffered|verbose"
    r"|allow-run-as-root|nooversubscribe|report-bindings|tag-output|display-(?:map|allocation)"
)
PAIRS = re.compile(r"g?mca|genv|env")  # of mpirun: two values follow


def scheduled(text: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that Slurm sets from the script's own directives, and from those of them that are
    `given`."""
    asked: dict[str, str] = {}
    for line in DIRECTIVE.finditer(text):
        asked |= options_of(plain_words(line["options"]))
    given = given or {}
    nodes = whole(given.get("SLURM_NNODES")) or whole(asked.get("nodes"))
    tasks = whole(given.get("SLURM_NTASKS_PER_NODE")) or whole(asked.get("ntasks-per-node"))
    variables = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_GPUS": gpus_in(asked.get("gpus", "")),
        "SLURM_GPUS_ON_NODE": gpus_of_node(asked),
        "SLURM_GPUS_PER_NODE": gpus_of_node(asked),
        "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_NTASKS": whole(asked.get("ntasks")) or nodes * tasks,
    }
    return {name: str(number) for name, number in variables.items() if number}


def options_of(words: list[str], option: re.Pattern = SLURM_OPTION) -> dict[str, str]:
    """The options that these words begin with, by their long names; of one given twice the last counts."""
    found, left = dict[str, str](), words[::-1]
    while left and (written := option.fullmatch(left[-1])):
        left.pop()
        parts = written.groupdict()
        name = parts["name"] or LETTERS.get(parts["letter"], parts["letter"])
        value = parts["value"] or parts.get("glued") or ""
        follow = 0 if value or SWITCHES.fullmatch(name) else 2 if PAIRS.fullmatch(name) else 1
        for _ in range(follow):
            value = left.pop() if left and not left[-1].startswith("-") else value
        found[name] = value
    return found


def whole(text: str | None) -> int:
    """A number of a job's size; 0 for anything else."""
    return int(text) if text and re.fullmatch(r"\d{1,6}", text) else 0


def gpus_of_node(asked: Mapping[str, str]) -> int:
    """GPUs of a node: 8 in --gpus-per-node=a100:8 and in --gres=gpu:a100:8,nvme:1; 0 for none."""
    generic = [words for words in asked.get("gres", "").split(",") if re.match(r"gpu(?::|$)", words)]
    return gpus_in(asked.get("gpus-per-node", "")) or sum(gpus_in(words) for words in generic)


def gpus_in(words: str) -> int:
    """The number in 8, a100:8 or gpu:a100:8(S:0-1)."""
    return whole(words.partition("(")[0].rpartition(":")[2])
