"""What the launcher of a command starts: torchrun, DeepSpeed's and Accelerate's launchers, mpirun or srun.

Idea   The GPUs are torchrun's, else WORLD_SIZE, else what mpirun or srun starts.
Limit  Only numbers that the file says: what the machine decides is not known.
"""

import re
from collections.abc import Mapping

from ndparallel.base.errors import UserError
from ndparallel.launch_flags.shell.slurm import gpus_in, gpus_of_node, options_of, whole

MPI_OPTION = re.compile(r"--?(?P<name>[\w-]+)(?:=(?P<value>.*))?", re.DOTALL)
TASKS = ("nodes", "ntasks", "ntasks-per-node")
# of torchrun, and of DeepSpeed's launcher
PER_NODE = ("--nproc-per-node", "--nproc_per_node", "--num_gpus", "--num-gpus")
NODES = ("--nnodes", "--num_nodes", "--num-nodes")
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed", "accelerate")
MPI = ("mpirun", "mpiexec", "mpiexec.hydra")


def launcher_and_program(words: list[str]) -> tuple[list[str], list[str]]:
    """The launcher's words and the program's. Raises UserError where the parts of mpirun's command, between
    colons, have not all the same."""
    start = next((place for place, word in enumerate(words) if word.endswith(".py")), -1) + 1
    launcher, program = words[:start], words[start:]
    if ":" not in program or not is_mpi(launcher):
        return launcher, program
    colon = program.index(":")
    others, same = launcher_and_program(["mpirun", *program[colon + 1 :]])
    if same != program[:colon]:
        raise UserError("the parts of mpirun's command, between its colons, give a program different flags.")
    return [*launcher, ":", *others[1:]], same


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
    told = dict[str, str]()
    for word, after in zip(words, [*words[1:], ""]):
        name, _, value = word.partition("=")
        told[name] = value or after
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
