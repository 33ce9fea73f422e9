"""Layouts that were run in production, beside what the guides advise and what the search finds.

Idea   One record a run: job, plan and source. All three plans are predicted on the same job, with the same
       software, so that what differs is the layout; and where a guide says so, rows go beside another
       microbatch's compute (`hides_dispatch`).
Cost   a search for every record.
Limit  What a source does not say is filled as `ndparallel validate` does it: one layer to a chunk where it is
       interleaved, recomputation only where it is named. None of these steps was measured here.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import SIZES, ModelShape
from ndparallel.planner.plan_name import name_of, parsed_name
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.planner.software import find_stack
from ndparallel.search.advice import advise


@dataclass(frozen=True)
class PublishedLayout:
    """One run: its plan by name, and where it is published."""

    model: str
    hardware: str
    batch: int
    sequence: int
    plan: str
    source: str
    software: str = "megatron-core"
    dtype: str = "bf16"
    moments: str = "fp32"
    recomputes: tuple[str, ...] = ()  # modules that selective recomputation runs again
    casts_weights: bool = False  # and keeps them in that type alone
    sizes: dict[str, Any] = field(default_factory=dict)  # of a model that is no preset

    @property
    def shape(self) -> ModelShape:
        return ModelShape(self.model, **self.sizes) if self.sizes else find_model(self.model)

    @property
    def job(self) -> TrainingJob:
        hardware, stack = find_hardware(self.hardware), find_stack(self.software)
        stack = replace(stack, selective=self.recomputes) if self.recomputes else stack
        stack = replace(stack, cast_weights=(self.dtype,)) if self.casts_weights else stack
        job = TrainingJob(self.shape, hardware, stack, self.sequence, self.batch)
        return replace(job, dtype=self.dtype, moments=self.moments)

    @property
    def run(self) -> Plan:
        return Plan(**parsed_name(self.plan))


PLAIN = {
    "activation": "gelu",
    "norm": "layernorm",
    "biases": ("qkv", "output", "mlp", "norm"),
    "tied_embeddings": True,
}
BLOOM = dict(zip(SIZES, (70, 14336, 112, 112, 128, 57344, 250880)))
NEMOTRON = dict(zip(SIZES, (96, 18432, 96, 8, 192, 73728, 256000)))
MT_NLG = dict(zip(SIZES, (105, 20480, 128, 128, 160, 81920, 51200)))

LAYOUTS = (
    PublishedLayout(
        "llama-3-405b",
        "h100",
        2048,
        8192,
        "TP8xPP16xDP128,zero1,sp,interleaved8,mbs1",
        "Grattafiori et al. 2407.21783, table 4",
    ),
    PublishedLayout(
        "llama-3-405b",
        "h100",
        128,
        131072,
        "TP8xCP16xPP16xDP8,zero1,sp,interleaved8,mbs1",
        "Grattafiori et al. 2407.21783, table 4",
    ),
    PublishedLayout(
        "deepseek-v3",
        "h800",
        15360,
        4096,
        "PP16xDP128xEP64,zero1,dualpipev,mbs1,selective",
        "DeepSeek-AI 2412.19437, sections 3.2 and 3.3: DualPipe, here the V of it",
        dtype="fp8-block",
        moments="bf16",
        recomputes=("layernorm", "mla_up_proj"),
        casts_weights=True,  # in blocks of 128 x 128, which both passes can read (section 3.3.2)
    ),
    PublishedLayout(
        "mixtral-8x7b",
        "h100",
        256,
        4096,
        "PP4xDP16xEP8,zero1,interleaved8,mbs1",
        "Megatron-Core, megatron/core/transformer/moe/README.md, Reference Best Parallel Mapping",
    ),
    PublishedLayout(
        "mixtral-8x22b",
        "h100",
        256,
        4096,
        "TP4xPP8xDP4xEP2,zero1,sp,interleaved7,mbs1",
        "Megatron-Core, megatron/core/transformer/moe/README.md, Reference Best Parallel Mapping",
    ),
    PublishedLayout(
        "qwen3-235b-a22b",
        "h100",
        2048,
        4096,
        "TP2xPP8xDP16xEP32,zero1,sp,interleaved4,mbs1",
        "yanring/Megatron-MoE-ModelZoo, Qwen3-235B-A22B on 256 H100",
    ),
    PublishedLayout(
        "Nemotron-4 340B",
        "h100",
        2304,
        4096,
        "TP8xPP12xDP64,zero1,sp,interleaved8,mbs1",
        "NVIDIA 2406.11704, section 2.2 and table 2",
        sizes=NEMOTRON | {"activation": "relu2", "norm": "layernorm"},
    ),
    PublishedLayout(
        "BLOOM 176B",
        "a100-80",
        2048,
        2048,
        "TP4xPP12xDP8,zero1,1f1b,mbs2,full",
        "BigScience 2211.05100, section 3.4, and bigscience-workshop/bigscience, tr11-176B-ml",
        software="megatron-2022",
        sizes=BLOOM | PLAIN | {"position": "alibi"},
    ),
    PublishedLayout(
        "MT-NLG 530B",
        "a100-80",
        1920,
        2048,
        "TP8xPP35xDP8,zero0,1f1b,mbs1,full",
        "Smith et al. 2201.11990, section 2.3, on 280 DGX A100",
        software="megatron-2021",
        sizes=MT_NLG | PLAIN | {"position": "learned", "positions": 2048},
    ),
)


@dataclass(frozen=True)
class LayoutCompared:
    """A published layout and its two rivals, predicted; `advised` is None where no advised plan fits."""

    published: PublishedLayout
    run: Prediction
    advised: Prediction | None
    best: Prediction

    @property
    def rows(self) -> dict[str, Prediction | None]:
        return {"run": self.run, "advise": self.advised, "search": self.best}

    def difference(self, way: str) -> float | None:
        """The share by which the step of `way` ("advise", "search") is longer than that of the plan that was
        run; None where that way found no plan."""
        found = self.rows[way]
        return found.seconds / self.run.seconds - 1 if found else None

    def as_dict(self) -> dict[str, Any]:
        job, rows = self.published.job, self.rows.items()
        return {
            "model": self.published.model,
            "gpus": int(self.run.plan.gpus),
            "hardware": job.hardware.name,
            "sequence": job.sequence,
            "source": self.published.source,
            "plans": {way: found and figures(found) for way, found in rows},
            "differences": {way: self.difference(way) for way in ("advise", "search")},
        }


def figures(found: Prediction) -> dict[str, Any]:
    memory = float(found.fullest.total)
    return {
        "plan": name_of(found.plan),
        "step_seconds": found.seconds,
        "memory_bytes": memory,
        "hides_dispatch": found.job.stack.hides_dispatch,
    }


def compare_layout(one: PublishedLayout) -> LayoutCompared:
    """A layout with what the guides advise and what the search finds."""
    found = advise(one.job, int(one.run.gpus))
    return LayoutCompared(one, predict(one.job, one.run), found.advised, found.found.best)
