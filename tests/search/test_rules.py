"""Claims about what is legal: the planner and 4d_combined.py say the same, and the search leaves nothing
out."""

import random
from collections import Counter
from itertools import product

import pytest

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline.catalog import RECIPES, build, written_schedules
from ndparallel.pipeline.timing import peak_activations
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import is_folded, violations, why_not
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import time_step
from ndparallel.planner.software import find_stack
from ndparallel.search.candidates import candidates
from ndparallel.search.space import SearchSpace
from ndparallel.training.job import Job as ExecutedJob
from tests.support.common import SMALL, loss_and_gradient_difference, on_mesh, run

DENSE = SMALL.replace(layers=5, heads=6, kv_heads=3, hidden=24, ffn=36, sequence=48)
SPARSE = DENSE.replace(experts=6, expert_ffn=12)
BATCH = 12


def shape_of(model: ModelConfig) -> ModelShape:
    sizes = {name: getattr(model, name) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
    experts = Experts(model.experts, model.top_k, model.expert_ffn) if model.experts else None
    return ModelShape("pocket model", head_dim=model.head_dim, experts=experts, **sizes)


def planned(model: ModelConfig, software: str = "pocket") -> TrainingJob:
    return TrainingJob(shape_of(model), find_hardware("h100"), find_stack(software), model.sequence, BATCH)


def executed(model: ModelConfig, plan: Plan) -> ExecutedJob:
    """The plan as a job of 4d_combined.py. Raises UserError where there is none."""
    parts = plan.dp * plan.micro_batch
    if BATCH % parts:
        raise UserError("the batch cannot be cut")
    return ExecutedJob(
        model=model,
        mesh=Mesh(tp=plan.tp, pp=plan.pp, dp=plan.dp, ep=plan.ep, cp=plan.cp),  # tp cuts experts
        batch=BATCH,
        microbatches=BATCH // parts,
        recompute=plan.recompute,
        sequence_parallel="sp" if plan.sequence_parallel else "none",
        schedule=plan.schedule,
        stage_chunks=plan.chunks,
        zero=plan.zero,
        dtype="float64",
    )


def random_plans(count: int) -> list[tuple[ModelConfig, Plan]]:
    """Of random degrees, legal or not."""
    draw = random.Random(8)
    plans = []
    for _ in range(count):
        schedule = draw.choice(written_schedules())
        pp = draw.choice([1, 2, 3, 4, 5, 6, 7, 8])
        plan = Plan(
            tp=draw.choice([1, 1, 2, 3, 4, 6]),
            pp=pp,
            dp=draw.choice([1, 2, 3, 4, 6]),
            ep=draw.choice([1, 1, 2, 3, 4]),
            cp=draw.choice([1, 1, 2, 3, 4, 8]),
            chunks=(RECIPES[schedule].chunks or draw.choice([2, 3])) if pp > 1 else 1,
            micro_batch=draw.choice([1, 1, 2, 3]),
            zero=draw.choice([0, 1, 2, 3]),
            recompute=draw.choice(["none", "selective", "full"]),
            sequence_parallel=draw.random() < 0.3,
            schedule=schedule,
        )
        plans.append((draw.choice([DENSE, SPARSE]), plan))
    return plans


def test_a_plan_is_legal_for_the_planner_where_4d_can_be_set_up_for_it_and_nowhere_else():
    verdicts: Counter = Counter()
    for model, plan in random_plans(2000):
        legal = not any(violations(planned(model), plan))
        try:
            executed(model, plan)
            runs = True
        except UserError:
            runs = False
        assert legal == runs, (model, plan, list(why_not(planned(model), plan)))
        verdicts[legal] += 1
    assert min(verdicts.values()) > 50


def test_plans_that_the_planner_calls_legal_compute_what_one_gpu_computes_in_4d():
    small = [
        (model, plan)
        for model, plan in random_plans(2000)
        if plan.gpus in range(4, 11) and not any(violations(planned(model), plan))
    ]
    # embedding and head by themselves
    alone = [(DENSE, Plan(pp=7, schedule="1f1b")), (SPARSE, Plan(dp=2, ep=2, pp=7, schedule="zb-h1"))]
    for model, plan in [*small[:3], *alone]:
        job = executed(model, plan)
        found = run(on_mesh("4d_combined", "TP2 x PP2 x DP2", job.mesh), job, job.mesh.world_size)
        loss, gradients = loss_and_gradient_difference(found, job)
        assert loss < 1e-12 and gradients < 1e-10, plan


@pytest.mark.parametrize("words", [("none", 1), ("full", 0)])
def test_the_search_enumerates_every_legal_plan_and_no_other_but_slow_ones_with_folded_experts(words):
    job, gpus, (recompute, zero) = planned(SPARSE, "megatron-core"), 12, words
    found = candidates(SearchSpace(job, gpus, {"recompute": recompute, "zero": zero}, float("inf")))
    plans = {found.plan(place): found.seconds[place] for place in range(len(found.rows))}
    assert len(plans) == len(found.rows) == found.legal
    left_out = []
    degrees = [(tp, pp, cp) for tp, pp, cp in product(range(1, 13), repeat=3) if gpus % (tp * pp * cp) == 0]
    for tp, pp, cp in degrees:
        dp = gpus // (tp * pp * cp)
        for ep, size, parallel in product((1, 2, 3, 6), (1, 2, 3, 4, 6, 12), (False, True)):
            names = [name for name in (*written_schedules(), "zb-2p") if not RECIPES[name].by_name_only]
            for schedule, chunks in product(names if pp > 1 else ["1f1b"], (1, 2, 3, 4)):
                plan = Plan(tp, pp, dp, ep, cp, chunks, size, zero, 0, parallel, recompute, schedule=schedule)
                same = (zero and dp * cp == 1) or (parallel and tp == 1)
                legal = not any(violations(job, plan))
                if not same and legal and is_folded(plan) and plan not in plans:
                    left_out.append(plan)
                elif not same:
                    assert (plan in plans) == legal, plan
    assert any(map(is_folded, plans))
    some = time_step(job, min((plan for plan in plans if not is_folded(plan)), key=plans.__getitem__)).seconds
    assert all(time_step(job, plan).seconds > some for plan in left_out)


def test_what_a_rank_holds_in_closed_form_is_what_its_list_holds():
    for name, pp, microbatches in product(written_schedules(), (2, 3, 4, 8), (1, 2, 3, 4, 5, 8, 9, 16, 24)):
        for chunks in (1, 2, 3, 5):
            if RECIPES[name].chunks not in (None, chunks) or (RECIPES[name].group and microbatches < pp):
                continue
            listed = peak_activations(build(name, pp, microbatches, chunks))
            assert listed == [
                float(RECIPES[name].peak_in_flight(microbatches, rank, pp, chunks)) for rank in range(pp)
            ], (
                name,
                pp,
                microbatches,
                chunks,
            )
