"""Golden outputs: run every lesson and command, and keep the sha256 of all that they print and write.

Idea   A change of layout, names or structure must not change a byte of what comes out. Run this before such a
       change and after it:

           python tests/golden.py save before.json        runs everything, a minute or two
           python tests/golden.py check before.json       runs it again, and names what differs

       What is compared: standard output, standard error, exit code, and the files that a command writes.
Limit  It is a habit of development and no test: an improvement that changes an output changes its hash, and
       that is as it should be. Losses may differ in the last digits between machines, so both runs have to be
       on one.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LESSONS = (
    "0d_single_gpu.py",
    "1d_data_parallel.py",
    "2d_tensor_parallel.py",
    "3d_pipeline_parallel.py",
    "4d_combined.py",
    "cp_context_parallel.py",
    "ep_expert_parallel.py",
)
JOB_MIXTRAL = "--model mixtral-8x7b --gpus 64 --global-batch 256 --sequence 4096"
JOB_DEEPSEEK = "--model deepseek-v3 --gpus 2048 --global-batch 8192 --sequence 4096"
JOB_70B = "--model llama-3-70b --gpus 512 --global-batch 512 --sequence 8192"
SCHEDULES = "naive gpipe 1f1b eager-1f1b interleaved looped-bfs zb-h1 zb-h2 zb-v dualpipev searched"
POCKET = (
    "--layers 8 --hidden 32 --heads 8 --kv-heads 2 --ffn 88 --vocab 256 --hardware pocket --global-batch 8 "
    "--sequence 64"
)

LESSON_OPTIONS = (
    "",
    "--json",
    "--json --dtype float64 --steps 2",
    "--json --gpus-per-node 2 --microbatches 2",
    "--json --hardware h100",
    "--json --model-size large",
    "--memory --timeline all",
    "--timeline none --narrate 0",
    "--timeline none --svg a.svg --trace a.json",
    "--timeline none --slow-gpu 1:2 --jitter 5",
    "--json --batch 6 --microbatches 1",
)
SWEEPS = {
    "0d_single_gpu.py": (),
    "1d_data_parallel.py": ("microbatches", "causes"),
    "2d_tensor_parallel.py": None,
    "3d_pipeline_parallel.py": None,
    "4d_combined.py": ("layouts", "orders", "zero", "capacity", "folding"),
    "cp_context_parallel.py": ("sequence", "hiding"),
    "ep_expert_parallel.py": ("experts", "capacity"),
}
EXTRA = f"""
python gpu.py
python collectives.py
python 0d_single_gpu.py --engine processes --json
python 1d_data_parallel.py --engine processes --json --gpus 8
python 2d_tensor_parallel.py --engine processes --json --gpus 8
python 3d_pipeline_parallel.py --engine processes --json --gpus 8
python 4d_combined.py --engine processes --json --gpus 16
python 4d_combined.py --engine inline --json --tp 2 --pp 2 --dp 2 --zero 3 --sequence-parallel sp-regather
python 4d_combined.py --engine inline --json --tp 2 --pp 2 --ep 2 --schedule zb-v --zero 2
python 4d_combined.py --engine inline --json --cp 2 --tp 2
python 4d_combined.py --engine inline --json --pp 4 --dp 2 --schedule interleaved --order dp-pp
python 4d_combined.py --engine inline --json --tp 3
python 1d_data_parallel.py --engine inline --strategy nope
python 1d_data_parallel.py --engine inline --gpus 3 --json
ndparallel compare --engine inline
ndparallel compare --engine inline --json
ndparallel compare --engine inline --gpus 8 --svg b.svg --trace b.json
ndparallel compare --engine inline --what-if
ndparallel nope
ndparallel schedule {SCHEDULES} --stages 4 --microbatches 8 --svg c.svg
ndparallel schedule {SCHEDULES} --stages 4 --microbatches 8 --p2p 0.3 --json
ndparallel schedule interleaved looped-bfs --stages 4 --microbatches 8 --chunks 4 --json
ndparallel schedule dualpipev --stages 4 --microbatches 8 --fused 2.5
ndparallel schedule nope --stages 4 --microbatches 8
ndparallel collective all_reduce
ndparallel collective all_gather --json
ndparallel collective all_to_all --ranks 16 --json
ndparallel collective broadcast --ranks 128 --json
ndparallel collective all_reduce --ranks 4 --show
ndparallel collective all_reduce --ranks 8 --algorithm hierarchical --gpus-per-node 4 --json
ndparallel mesh --tp 2 --pp 2 --dp 4
ndparallel mesh --tp 4 --pp 4 --dp 64 --ep 8 --json
ndparallel plan {JOB_70B} --tp 8 --pp 4 --zero 1 --json
ndparallel plan {JOB_70B} --tp 8 --pp 4 --zero 1 --schedule interleaved --chunks 5 --recompute selective
ndparallel plan {JOB_70B} --tp 8 --cp 4 --zero 3 --json
ndparallel plan {JOB_70B} --zero 3 --shards 8 --json
ndparallel plan {JOB_70B} --tp 8 --pp 8 --schedule zb-h1 --json
ndparallel plan {JOB_70B} --tp 8 --pp 4 --software megatron-core --json --what-if hardware=b200
ndparallel plan {JOB_70B} --tp 7
ndparallel plan {JOB_70B} --top 3 --json
ndparallel plan {JOB_70B} --top 20 --csv
ndparallel plan {JOB_70B} --emit megatron
ndparallel plan {JOB_70B} --software torchtitan --zero 3 --emit torchtitan
ndparallel plan {JOB_MIXTRAL} --tp 2 --pp 4 --ep 8 --zero 1 --json
ndparallel plan {JOB_MIXTRAL} --top 3
ndparallel plan {JOB_DEEPSEEK} --pp 16 --ep 64 --schedule dualpipev --json
ndparallel plan {JOB_DEEPSEEK} --pp 16 --ep 64 --emit megatron
ndparallel plan {POCKET} --gpus 8 --tp 2 --pp 2 --json
ndparallel plan {POCKET} --gpus 8 --cp 2 --tp 2 --zero 1 --json
ndparallel plan {POCKET} --gpus 4 --zero 3 --json
ndparallel plan --from-megatron docs/launch_example.sh --json
ndparallel explain {JOB_70B} --tp 8 --pp 4 --zero 1
ndparallel explain {JOB_70B} --tp 8 --pp 4 --zero 1 --json
ndparallel advise {JOB_70B} --json
ndparallel advise --model mixtral-8x7b --gpus 64 --global-batch 256
ndparallel scaling --model llama-3-8b --gpus 64 --global-batch 128 --sizes 8,64,512 --svg d.svg
ndparallel scaling --model llama-3-8b --gpus 64 --global-batch 128 --sizes 8,64,512 --json
ndparallel goodput --gpus 16384 --json
ndparallel goodput --gpus 1024 --checkpoint 2min --restart 20min --days 30 --interval 4h
ndparallel flags megatron --json
ndparallel flags torchtitan --json
ndparallel validate
ndparallel validate --json
ndparallel pictures --engine inline
ndparallel plan --model nope --gpus 8 --global-batch 8
ndparallel plan --gpus 8
ndparallel
"""


def sweeps_of(lesson: str) -> tuple[str, ...]:
    sweeps = SWEEPS[lesson]
    return ("",) if sweeps is None else sweeps


def documented() -> list[str]:
    """The commands of README.md and docs: what console blocks show, and what numbers are taken from."""
    texts = [path.read_text("utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
    shown = [
        command
        for text in texts
        for command in re.findall(r"```console\n\$ ((?:python|ndparallel) .*)\n", text)
    ]
    asked = [f"{command} --json" for text in texts for command in re.findall(r"<!-- numbers: (\S.*)\n", text)]
    return [without_pipe(command) for command in shown + asked]


def without_pipe(command: str) -> str:
    return command.partition("|")[0].strip()


def commands() -> list[str]:
    lessons = [
        f"python {lesson} --engine inline {options}" for lesson in LESSONS for options in LESSON_OPTIONS
    ]
    sweeps = [
        f"python {lesson} --engine inline --sweep {sweep}"
        for lesson in LESSONS
        for sweep in sweeps_of(lesson)
    ]
    swept = [f"{sweep} {form}" for sweep in sweeps for form in ("", "--json")]
    extra = [line for line in EXTRA.splitlines() if line]
    return list(dict.fromkeys(command.strip() for command in lessons + swept + extra + documented()))


def outcome(command: str) -> dict[str, str | int]:
    """Run a command in an empty folder that shows docs/, and return its exit code and the hash of each thing
    that came out."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "docs").symlink_to(ROOT / "docs")
        program, *arguments = shlex.split(command)
        argv = (
            [sys.executable, str(ROOT / arguments.pop(0))]
            if program == "python"
            else [sys.executable, "-m", "ndparallel"]
        )
        environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
        done = subprocess.run(
            argv + arguments,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        written = {path.name: digest(path.read_bytes()) for path in sorted(place.iterdir()) if path.is_file()}
    out: dict[str, str | int] = {"stdout": digest(done.stdout), "stderr": digest(done.stderr)}
    return {"exit": done.returncode} | out | written


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def run_all(chosen: list[str]) -> dict[str, dict]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(chosen, pool.map(outcome, chosen)))


def differences(before: dict[str, dict], after: dict[str, dict]) -> list[str]:
    """Name each command whose outcome is another one, and what of it."""
    changed = {
        command: [key for key in old | after[command] if old.get(key) != after[command].get(key)]
        for command, old in before.items()
    }
    return [f"{command}: {', '.join(keys)}" for command, keys in changed.items() if keys]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("save", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="commands that contain this")
    arguments = parser.parse_args()
    if arguments.action == "save":
        chosen = [command for command in commands() if arguments.only in command]
        arguments.file.write_text(json.dumps(run_all(chosen), indent=1))
        return 0
    before = {
        command: old
        for command, old in json.loads(arguments.file.read_text()).items()
        if arguments.only in command
    }
    differing = differences(before, run_all(list(before)))
    print("\n".join(differing) or f"{len(before)} commands: the same bytes.")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
