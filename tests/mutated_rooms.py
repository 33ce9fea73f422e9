"""The files that tests/mutations.py changes, room by room, and the tests that are about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Room:
    """Files that are mutated, and the tests that are about them."""

    files: Sequence[str]
    tests: Sequence[str]
    in_other_processes: bool = False  # whether code runs where it cannot be noted: every test may call it
    limit_seconds: int = 900  # of a test that hangs


def files_of(folder: str) -> list[str]:
    """The modules of a folder, all but its __init__.py."""
    return [f"{folder}/{path.name}" for path in sorted((ROOT / folder).glob("[!_]*.py"))]


OTHER_ROOMS = ("kept.py", "collective_time.py")
SEARCH = (
    "advice",
    "fitting_plans",
    "fixed",
    "guide_rules",
    "guides",
    "layouts",
    "no_plan",
    "pruning",
    "remedies",
    "rows",
    "scaling",
    "search",
    "some_layers",
    "space",
    "what_if",
    "why",
)
FLAGS = (
    "fields",
    "frameworks",
    "frozen",
    "launcher",
    "megatron/beyond",
    "megatron/given",
    "megatron/read",
    "megatron/read_job",
    "megatron/read_model",
    "megatron/read_notes",
    "megatron/read_plan",
    "megatron/write_model",
    "tables",
    "torchtitan/models",
    "torchtitan/rules",
)
MODEL_TESTS = (
    "gated_files",
    "head_gates",
    "own_norms",
    "windowed_files",
    "windowed_heads",
)
STEPS = (
    "action_seconds",
    "data_collectives",
    "framework",
    "paired",
    "parameter_kernels",
    "pipeline",
    "searched_schedule",
    "stage_messages",
    "step",
)
JOBS = (
    "adapters",
    "describe",
    "difference",
    "dispatchers",
    "imbalance",
    "job",
    "optimizer_kernels",
    "ports",
    "prediction",
    "stages",
    "state_options",
    "token_counts",
)
MPI = ("coordinator", "mpi", "world")
COMMANDS = (
    "advise",
    "collective",
    "explain/__init__",
    "explain/rows",
    "goodput",
    "mesh",
    "plan/better_plan",
    "plan/given",
    "plan/measured",
    "plan/remedies",
    "plan/search",
    "scaling",
    "schedule",
    "shared_ports",
    "validate/__init__",
)
ROOMS = {
    "clock": Room(
        ["gpu.py"],
        [
            "tests/test_gpu.py",
            "tests/engines/test_launch.py",
            "tests/results/test_measure.py",
            "tests/lessons/test_single_gpu.py",
            "tests/hardware/test_disturbances.py",
            "tests/collective/test_numbers.py",
            "tests/ladder/test_rung2_seconds.py",
        ],
    ),
    "collectives": Room(
        ["collectives.py", "ndparallel/collective/algorithms.py", "ndparallel/collective/lockstep.py"],
        ["tests/collective", "tests/ladder/test_rung2_seconds.py"],
    ),
    "memory": Room(
        [*files_of("ndparallel/planner/memory"), "ndparallel/planner/layers/kept.py"],
        [
            "tests/planner/test_memory.py",
            "tests/planner/test_memory_by_hand.py",
            "tests/planner/test_deepspeed_memory.py",
            "tests/planner/test_linear_attention.py",
            "tests/planner/test_own_norms.py",
            "tests/planner/test_states.py",
            "tests/planner/test_windows_and_prediction.py",
            "tests/ladder/test_rung3_framework.py",
            "tests/planner/test_imbalance.py",
            "tests/planner/test_sane.py",
            "tests/ladder/test_rung4_reality.py",
        ],
    ),
    "rules": Room(
        [
            "ndparallel/parallel/divisibility.py",
            "ndparallel/planner/legality.py",
            "ndparallel/planner/model_cuts.py",
            "ndparallel/planner/attention_kernels.py",
            "ndparallel/planner/fitted_software.py",
            "ndparallel/hardware/architecture.py",
            "ndparallel/launch_flags/rules.py",
            "ndparallel/launch_flags/megatron/rules.py",
            *(f"ndparallel/launch_flags/{name}/write.py" for name in ("megatron", "torchtitan", "deepspeed")),
        ],
        [
            "tests/parallel/test_divisibility.py",
            "tests/planner/test_legality.py",
            "tests/search/test_rules.py",
            "tests/hardware/test_hardware.py",
            "tests/planner/test_attention_kernels.py",
            "tests/planner/test_plan_options.py",
            "tests/search/test_launchable.py",
            "tests/launch_flags",
        ],
    ),
    "prices": Room(
        [
            "ndparallel/collective/prices.py",
            *(
                f"ndparallel/hardware/{name}.py"
                for name in ("accelerator", "figures", "launch_modes", "collective_links")
            ),
            "ndparallel/planner/groups.py",
            "ndparallel/planner/layers/collective_time.py",
        ],
        [
            "tests/collective/test_prices.py",
            "tests/collective/test_formulas.py",
            "tests/hardware",
            "tests/planner/test_time.py",
            "tests/planner/test_groups.py",
            "tests/planner/test_launches.py",
        ],
    ),
    "layers": Room(
        [
            "ndparallel/planner/software.py",
            "ndparallel/planner/stack.py",
            "ndparallel/planner/stack_words.py",
            "ndparallel/planner/launches.py",
            *(file for file in files_of("ndparallel/planner/layers") if not file.endswith(OTHER_ROOMS)),
            *files_of("ndparallel/planner/layers/attention"),
            *files_of("ndparallel/planner/layers/experts"),
        ],
        [
            "tests/planner/test_bridge_adapters.py",
            "tests/planner/test_mixtures.py",
            "tests/planner/test_launches.py",
            "tests/planner/test_stack_words.py",
            "tests/planner/test_linear_attention.py",
            "tests/planner/test_latent.py",
            "tests/planner/test_copies.py",
            "tests/planner/test_memory_by_hand.py",
            "tests/planner/test_time.py",
            "tests/planner/test_plan_options.py",
            "tests/planner/test_memory.py",
            "tests/planner/test_states.py",
            "tests/planner/test_windows_and_prediction.py",
            "tests/ladder/test_rung3_lists.py",
            "tests/ladder/test_rung3_framework.py",
            "tests/ladder/test_rung4_reality.py",
        ],
    ),
    "models": Room(
        [*files_of("ndparallel/planner/models"), *files_of("ndparallel/planner/models/huggingface")],
        [
            "tests/planner/test_models.py",
            "tests/planner/test_mixtures.py",
            "tests/planner/test_latent.py",
            "tests/planner/test_linear_attention.py",
            "tests/planner/test_windows_and_prediction.py",
            *(f"tests/planner/test_{name}.py" for name in MODEL_TESTS),
            "tests/launch_flags/test_model_flags.py",
        ],
    ),
    "overlap": Room(
        [f"ndparallel/planner/step/{name}.py" for name in ("overlap", "streams", "tail")],
        [
            "tests/planner/test_overlap.py",
            "tests/planner/test_step.py",
            "tests/planner/test_tail.py",
            "tests/ladder/test_rung3_framework.py",
            "tests/ladder/test_rung3_scale.py",
            "tests/ladder/test_rung3_ports.py",
        ],
    ),
    "ports": Room(
        [f"ndparallel/planner/{name}.py" for name in ("ports", "step/journal", "step/pipeline_journal")],
        ["tests/planner/test_ports.py", "tests/ladder/test_rung3_ports.py"],
    ),
    "schedules": Room(files_of("ndparallel/pipeline"), ["tests/pipeline", "tests/planner/test_step.py"]),
    "bounds": Room(
        files_of("ndparallel/search/bounds"),
        [
            "tests/search/test_bounds.py",
            "tests/search/test_search.py",
            "tests/search/test_layouts.py",
            "tests/planner/test_laws.py",
        ],
    ),
    "search": Room(
        [f"ndparallel/search/{name}.py" for name in SEARCH], ["tests/search", "tests/commands/test_search.py"]
    ),
    "choice": Room(
        [f"ndparallel/search/{name}.py" for name in ("candidates", "kinds", "timing_queue")],
        [
            *(f"tests/search/test_{name}.py" for name in ("kinds", "search", "timing_queue")),
            "tests/commands/test_search.py",
        ],
    ),
    "forks": Room(
        ["ndparallel/engines/forking.py"],
        ["tests/engines/test_forking.py"],
        in_other_processes=True,
        limit_seconds=60,
    ),
    "flags": Room(
        [f"ndparallel/launch_flags/{name}.py" for name in FLAGS],
        ["tests/launch_flags", "tests/search/test_launchable.py"],
    ),
    "recipes": Room(
        [
            f"ndparallel/launch_flags/torchtitan/{name}.py"
            for name in ("recipe_file", "settings", "read", "read_plan")
        ],
        ["tests/launch_flags/test_read_torchtitan.py"],
    ),
    "programs": Room(
        [
            *files_of("ndparallel/launch_flags/deepspeed"),
            *files_of("ndparallel/launch_flags/accelerate"),
            *files_of("ndparallel/launch_flags/program"),
        ],
        [
            "tests/launch_flags/test_deepspeed.py",
            "tests/launch_flags/test_deepspeed_programs.py",
            "tests/launch_flags/test_accelerate.py",
        ],
    ),
    "contention": Room(
        [*files_of("ndparallel/contention"), "ndparallel/results/contention.py"],
        ["tests/contention", "tests/results/test_contention.py"],
    ),
    "validation": Room(
        [
            *files_of("ndparallel/validation"),
            *files_of("ndparallel/validation/words"),
            "ndparallel/planner/error_bar.py",
        ],
        ["tests/validation", "tests/search/test_kinds.py", "tests/ladder/test_rung4_reality.py"],
    ),
    "goodput": Room(["ndparallel/planner/goodput.py"], ["tests/planner/test_goodput.py"]),
    "training": Room(
        files_of("ndparallel/training"),
        [
            "tests/training",
            *(
                f"tests/lessons/test_{name}_parallel.py"
                for name in ("tensor", "pipeline", "context", "expert")
            ),
            "tests/lessons/test_clipping.py",
            "tests/lessons/test_equal_to_one_gpu.py",
            "tests/lessons/test_single_gpu.py",
            "tests/lessons/test_data_parallel.py",
            "tests/lessons/test_tied_embeddings.py",
            "tests/model/test_nonfinite.py",
        ],
    ),
    "results": Room(
        [f"ndparallel/results/{name}.py" for name in ("measure", "by_axis", "event_sums", "slowdowns")],
        ["tests/results", "tests/hardware/test_disturbances.py"],
    ),
    "exercises": Room(
        files_of("ndparallel/exercises"), ["tests/exercises", "tests/commands/test_exercise.py"]
    ),
    "hardware": Room(
        [
            f"ndparallel/hardware/{name}.py"
            for name in ("attention_rates", "disturbances", "dtypes", "matmul_efficiency")
        ],
        ["tests/hardware", "tests/planner/test_time.py", "tests/planner/test_launches.py"],
    ),
    "calibration": Room(
        files_of("ndparallel/calibration"), ["tests/calibration", "tests/planner/test_constants.py"]
    ),
    "drawing": Room(
        [file for folder in ("", "/svg", "/terminal") for file in files_of(f"ndparallel/drawing{folder}")],
        [
            "tests/drawing",
            "tests/book/test_pictures.py",
            "tests/commands/test_collective.py",
            "tests/commands/test_schedule.py",
            "tests/explorer/test_cut.py",
        ],
    ),
    "hops": Room(
        [f"ndparallel/collective/{name}.py" for name in ("clocks", "hops", "runs")],
        ["tests/collective", "tests/commands/test_collective.py", "tests/hardware/test_disturbances.py"],
    ),
    "model": Room(
        files_of("ndparallel/model"),
        [
            "tests/model",
            "tests/training",
            "tests/lessons/test_context_parallel.py",
            "tests/lessons/test_equal_to_one_gpu.py",
            "tests/ladder/test_rung1_numbers.py",
        ],
    ),
    "mesh": Room(
        [f"ndparallel/parallel/{name}.py" for name in ("context", "expert", "mesh", "slices", "tensor")],
        [
            "tests/parallel",
            "tests/lessons/test_equal_to_one_gpu.py",
            "tests/lessons/test_tensor_parallel.py",
            "tests/ladder/test_rung1_numbers.py",
        ],
    ),
    "base": Room(
        files_of("ndparallel/base"), ["tests/base", "tests/lessons/test_bfloat16.py", "tests/test_gpu.py"]
    ),
    "steps": Room(
        [f"ndparallel/planner/step/{name}.py" for name in STEPS],
        [
            "tests/planner/test_overlap.py",
            "tests/planner/test_step.py",
            "tests/planner/test_time.py",
            "tests/planner/test_tp_overlap.py",
            "tests/planner/test_launches.py",
            "tests/planner/test_states.py",
            "tests/planner/test_mixtures.py",
            "tests/planner/test_copies.py",
            "tests/planner/test_deepspeed_memory.py",
            "tests/planner/test_windows_and_prediction.py",
            "tests/ladder/test_rung3_framework.py",
            "tests/ladder/test_rung3_scale.py",
        ],
    ),
    "jobs": Room(
        [f"ndparallel/planner/{name}.py" for name in JOBS],
        ["tests/planner", "tests/commands/test_plan.py", "tests/ladder/test_rung3_framework.py"],
    ),
    "lesson_runs": Room(
        files_of("ndparallel/planner/lesson_runs"),
        [
            "tests/planner/test_record.py",
            "tests/planner/test_ports.py",
            "tests/ladder/test_rung3_lists.py",
            "tests/ladder/test_rung3_ports.py",
            "tests/ladder/test_rung3_programs.py",
            "tests/ladder/test_rung3_scale.py",
            "tests/ladder/test_rung3_sizes.py",
            "tests/ladder/test_rung3_without_grid.py",
        ],
    ),
    "explorer": Room(
        [f"ndparallel/explorer/{name}.py" for name in ("cluster", "cut", "rings", "lanes", "schedules")],
        [f"tests/explorer/test_{name}.py" for name in ("cluster", "cut", "rings", "schedules", "setup")],
    ),
    "tables": Room(
        [
            *(f"ndparallel/commands/{name}.py" for name in COMMANDS),
            *(
                f"ndparallel/results/{name}.py"
                for name in ("against_one_gpu", "outputs", "remarks", "table_columns", "tables")
            ),
            "ndparallel/search/tables.py",
        ],
        [
            *(
                f"tests/commands/test_{name}.py"
                for name in ("collective", "plan", "plan_microbatches", "schedule", "search")
            ),
            "tests/results",
            "tests/planner/test_goodput.py",
            "tests/parallel/test_mesh.py",
            "tests/search/test_advice.py",
            "tests/search/test_kinds.py",
        ],
    ),
    "engines": Room(
        [
            file
            for file in files_of("ndparallel/engines")
            if file not in [f"ndparallel/engines/{name}.py" for name in (*MPI, "forking")]
        ],
        ["tests/engines", "tests/test_gpu.py", "tests/contention/test_replay.py"],
        in_other_processes=True,
        limit_seconds=60,
    ),
    "mpi": Room(  # needs mpi4py and mpirun
        [f"ndparallel/engines/{name}.py" for name in MPI],
        ["tests/engines/test_mpi.py", "tests/engines/test_two_hosts.py"],
        in_other_processes=True,
        limit_seconds=120,
    ),
    "lessons": Room(
        files_of("ndparallel/lessons"),
        [
            "tests/lessons",
            "tests/commands/test_lesson.py",
            "tests/results",
            "tests/hardware/test_disturbances.py",
        ],
    ),
    "tasks": Room(
        files_of("ndparallel/exercises/tasks"),
        ["tests/exercises", "tests/commands/test_exercise.py"],
        in_other_processes=True,
    ),
    "shell": Room(
        [
            *files_of("ndparallel/launch_flags/shell"),
            *(
                f"ndparallel/launch_flags/{name}.py"
                for name in ("options", "settings", "nodes", "reading", "megatron/forks")
            ),
        ],
        ["tests/launch_flags"],
    ),
    "reports": Room(
        [
            f"ndparallel/results/{name}.py"
            for name in ("columns", "printing", "progress", "record", "report", "show")
        ],
        ["tests/results", "tests/lessons", "tests/commands/test_lesson.py"],
    ),
}
