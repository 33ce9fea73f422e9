"""How a launch script is started, in its own words: the directives of Slurm that stand in it, the example of
its arguments in a comment, and what its launcher starts.

Idea   What only a scheduler or a caller knows ($SLURM_NNODES, $4) is often written in the script itself, as
       #SBATCH --nodes=24, or as "# bash pretrain.sh 7B 8". A reader of the script would take it from there.
       The GPUs are torchrun's, else WORLD_SIZE, else what mpirun or srun starts.
Limit  An example counts only where it names the script and has as many words as the script takes arguments: a
       copy of another script's, or one that a newer argument has outgrown, would put words in wrong places.
       Nodes that no line names may be named to sbatch: they are not taken for one.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from ndparallel.base.errors import UserError

DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(?P<options>.*?)(?:(?<=\s)#.*)?$", re.MULTILINE)
SLURM_OPTION = re.compile(r"--(?P<name>[\w-]+)(?:=(?P<value>.*))?|-(?P<letter>\w)=?(?P<glued>.*)", re.DOTALL)
MPI_OPTION = re.compile(r"--?(?P<name>[\w-]+)(?:=(?P<value>.*))?", re.DOTALL)
LETTERS = {"N": "nodes", "n": "ntasks", "G": "gpus"}
SWITCHES = re.compile(  # of srun and of mpirun: no value follows them as a word of its own
    r"[EKOQXZklsuv]|exclusive|hold|label|no-\w+|over\w+|pty|quiet|contiguous|disable-status|requeue"
    r"|kill-on-bad-exit|preserve-env|spread-job|unbuffered|verbose"
    r"|allow-run-as-root|nooversubscribe|report-bindings|tag-output|display-(?:map|allocation)"
)
PAIRS = re.compile(r"g?mca|genv|env")  # of mpirun: two values follow
EXAMPLE = re.compile(
    r"^[ \t]*#+[ \t]*(?:bash|sh)[ \t]+(?:\S*/)?(?P<script>[\w.-]+)[ \t]+(?P<words>.+)$", re.MULTILINE
)
ARGUMENT = re.compile(r"\$\{?(\d{1,2})")
TASKS = ("nodes", "ntasks", "ntasks-per-node")
# of torchrun, and of DeepSpeed's launcher
PER_NODE = ("--nproc-per-node", "--nproc_per_node", "--num_gpus", "--num-gpus")
NODES = ("--nnodes", "--num_nodes", "--num-nodes")
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed", "accelerate")
MPI = ("mpirun", "mpiexec", "mpiexec.hydra")


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
            return Example(by_number(words), text[: found.start()].count("\n") + 1)
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


def scheduled(text: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that Slurm sets from the script's own directives, and from those of them that are
    `given`."""
    asked: dict[str, str] = {}
    for line in DIRECTIVE.finditer(text):
        asked |= options_of(split(line["options"]))
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


# ------------------------------------------------------------------------------------- what a launcher starts


def launcher_and_program(words: list[str]) -> tuple[list[str], list[str]]:
    """The launcher's words and the program's. Raises UserError where the parts of mpirun's command, between
    colons, have not all the same."""
    program = next((place for place, word in enumerate(words) if word.endswith(".py")), -1) + 1
    if not is_mpi(words[:program]) or ":" not in words[program:]:
        return words[:program], words[program:]
    own, rest = words[program:].index(":") + program, words[words.index(":", program) + 1 :]
    launcher, same = launcher_and_program(["mpirun", *rest])
    if same != words[program:own]:
        raise UserError("the parts of mpirun's command, between its colons, give a program different flags.")
    return [*words[:program], ":", *launcher[1:]], same


def is_mpi(words: list[str]) -> bool:
    return any(word.rpartition("/")[2] in MPI for word in words)


def world_size(words: list[str], variables: Mapping[str, list[str]]) -> int:
    """What the launcher starts. Raises UserError where the file does not say."""
    known = {name: " ".join(value) for name, value in variables.items()}
    if (ranks := launched_by_torch(words, known)) is not None:
        return ranks
    if (size := known.get("WORLD_SIZE", "")).isdecimal() and len(size) < 12:
        return int(size)
    if ranks := started(words, known):
        return ranks
    raise UserError(
        "how many GPUs? The file does not say it in numbers (--nnodes, --nproc-per-node, or #SBATCH --nodes, "
        "--gpus-per-node and srun): add --gpus."
    )


def launched_by_torch(words: list[str], known: Mapping[str, str]) -> int | None:
    """What torchrun, or DeepSpeed's launcher, is told to start; None where that is no number."""
    told = {
        word.partition("=")[0]: word.partition("=")[2] or after
        for word, after in zip(words, [*words[1:], ""])
    }
    each = next((told[name] for name in PER_NODE if name in told), "")
    each = known.get("SLURM_GPUS_ON_NODE", each) if each in ("gpu", "auto") else each
    nodes = next((told[name] for name in NODES if name in told), "1")
    if each.isdecimal() and nodes.isdecimal() and len(each + nodes) < 12:
        return int(each) * int(nodes)
    return slots_in(told.get("--include", "")) or None


def gpus_started(words: list[str], variables: Mapping[str, list[str]]) -> int:
    """How many GPUs `world_size` finds; 0 where the file does not say."""
    try:
        return world_size(words, variables)
    except UserError:
        return 0


def slots_in(hosts: str) -> int:
    """The GPUs in localhost:2,3 or in worker-0:0,1@worker-1:0,1, as DeepSpeed's launcher has them; 0 where a
    host names none."""
    slots = [host.partition(":")[2] for host in hosts.split("@")]
    return sum(len(each.split(",")) for each in slots) if all(slots) else 0


def started(words: list[str], known: Mapping[str, str]) -> int:
    """The ranks of mpirun or srun, where each is the program itself; 0 where they are not known."""
    programs = [word.rpartition("/")[2] for word in words]
    place = next((place for place, name in enumerate(programs) if name in ("srun", *MPI)), None)
    if place is None or any(name in LAUNCHERS for name in programs):
        return 0
    if programs[place] == "srun":
        return tasks_of(options_of(words[place + 1 :]), known)
    parts = [options_of(part, MPI_OPTION) for part in parted(words[place + 1 :])]
    ranks = [whole(own.get("np", own.get("n"))) for own in parts if own.keys() & {"np", "n"}]
    if not ranks:
        return tasks_of({}, known)
    return sum(ranks) if all(ranks) and len(ranks) == len(parts) else 0


def parted(words: list[str]) -> list[list[str]]:
    """The parts of mpirun's command, which colons part: each starts ranks of its own."""
    ends = [place for place, word in enumerate(words) if word == ":"]
    return [words[start:end] for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(words)])]


def tasks_of(own: Mapping[str, str], known: Mapping[str, str]) -> int:
    """The tasks of srun, by its `own` options and by what is `known` of the job: one for each GPU where no
    tasks are asked for. Raises UserError where there are more or fewer tasks than GPUs."""
    if any(not whole(own[name]) for name in TASKS if name in own):
        return 0
    nodes = whole(own.get("nodes")) or whole(known.get("SLURM_NNODES"))
    each = gpus_of_node(own) or whole(known.get("SLURM_GPUS_ON_NODE"))
    gpus = gpus_in(own.get("gpus", "")) or whole(known.get("SLURM_GPUS")) or nodes * each
    tasks = (
        whole(own.get("ntasks"))
        or nodes * whole(own.get("ntasks-per-node"))
        or whole(known.get("SLURM_NTASKS"))
    )
    if tasks and gpus and tasks != gpus:
        raise UserError(
            f"it starts {tasks} tasks on {gpus} GPUs, and Megatron is one task on each GPU: set "
            "--ntasks-per-node to the GPUs of a node, or add --gpus."
        )
    return tasks or gpus
