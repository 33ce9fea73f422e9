"""torchtitan's own reading of recipes, without a GPU: `python torchtitan_parser.py ASKED ANSWERS`, where each
line of ASKED is JSON with "recipe" and "gpus". ANSWERS gets a line for each: the parameters of the model that
it builds on the meta device, or a sentence on what was wrong. Played are the other ranks of its meshes.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def answer(name: str, gpus: int) -> int | str:
    import torch
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=gpus)
    try:
        config = ConfigManager().parse_args(["--module", name, "--config", "plan"])
        ParallelDims.from_config(config.parallelism, gpus).build_mesh()
        with torch.device("meta"):
            model = config.model_spec.model.build()
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        distributed.destroy_process_group()
    return sum(weight.numel() for weight in model.parameters())


if __name__ == "__main__":
    asked, answers = sys.argv[1:]
    with TemporaryDirectory() as folder, open(asked) as lines, open(answers, "w") as said:
        sys.path.insert(0, folder)
        for number, line in enumerate(map(json.loads, lines)):
            Path(folder, f"recipe{number}.py").write_text(line["recipe"])
            print(json.dumps(answer(f"recipe{number}", line["gpus"])), file=said)
