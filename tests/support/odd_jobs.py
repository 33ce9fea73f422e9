"""Every script's strategies with options that do not fit, on the processes that torchrun has started.

Prints as JSON the loss of each, or the sentence with which it refused, by strategy and by options.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "in_pytorch"))

import torch.distributed as dist

from model import Config
from running import Job, Refused, mean_losses, start

SCRIPTS = [path.stem for path in sorted((ROOT / "in_pytorch").glob("[0-9ce][dp]_*.py"))]
TINY = Config(layers=8, hidden=8, heads=4, kv_heads=4, ffn=8, sequence=16)
ODD: dict[str, dict[str, Any]] = {
    "batch 8": {},
    "batch 8, 5 microbatches": {"microbatches": 5},
    "batch 6, 3 microbatches": {"batch": 6, "microbatches": 3},
    "more than the text": {"batch": 10_000},
}


def said(strategy, job: Job) -> float | str:
    try:
        return mean_losses(strategy(job), job.device)[0]
    except Refused as refused:
        return str(refused)


def main() -> None:
    device = start()
    found = {
        f"{script} {name}": {
            odd: said(strategy, Job(TINY, device=device, steps=1, **options)) for odd, options in ODD.items()
        }
        for script in SCRIPTS
        for name, strategy in import_module(script).STRATEGIES.items()
    }
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
