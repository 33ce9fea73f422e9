"""Claims about a plan's name: it is read back as the same plan, and what is no name is refused in a
sentence."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import Plan
from ndparallel.planner.plan_name import explained, name_of, parsed_name
from ndparallel.planner.stack import MODULES, ordered_modules

DEGREE = st.integers(1, 4096)
CHUNKS = {
    name: st.just(recipe.chunks) if recipe.chunks else st.integers(1, 64) for name, recipe in RECIPES.items()
}
MODULE_SETS = st.sets(st.sampled_from([*MODULES])).map(ordered_modules)


@st.composite
def plans(draw) -> Plan:
    schedule, recompute = (
        draw(st.sampled_from([*RECIPES])),
        draw(st.sampled_from(["none", "selective", "full"])),
    )
    return Plan(
        **{name: draw(DEGREE) for name in ("tp", "cp", "pp", "dp", "ep", "micro_batch")},
        zero=draw(st.integers(0, 3)),
        shards=draw(st.integers(0, 64)),
        sequence_parallel=draw(st.booleans()),
        recompute=recompute,
        recompute_layers=draw(st.integers(0, 9)) if recompute == "full" else 0,
        recompute_modules=draw(MODULE_SETS) if recompute == "selective" else (),
        schedule=schedule,
        chunks=draw(CHUNKS[schedule]),
        stage_layers=tuple(draw(st.lists(st.integers(0, 99), max_size=4))),
    )


@settings(max_examples=300, deadline=None)
@given(plans(), st.randoms(use_true_random=False))
def test_a_name_is_read_back_as_the_same_plan_in_any_order_and_case(plan, draw):
    degrees, *words = name_of(plan).split(",")
    axes = degrees.split("x")
    draw.shuffle(axes)
    draw.shuffle(words)
    for name in (name_of(plan), ",".join(["x".join(axes), *words]).upper()):
        assert Plan(**parsed_name(name)) == plan


@pytest.mark.parametrize("schedule", [*RECIPES])
def test_a_plan_without_a_pipeline_has_no_schedule_and_its_name_is_taken(schedule, capsys):
    job = ["plan", "--model", "llama-3-8b", "--gpus", "8", "--global-batch", "8", "--json"]
    given = ["--zero", "3", "--tp", "8", "--schedule", schedule]
    assert main([*job, *given]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == "TP8,zero3,sp,mbs1"
    assert main([*job, "--plan", told["name"]]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] == told["plan"]


def test_names_are_short_and_say_what_a_launch_script_would():
    deep = Plan(tp=8, pp=4, dp=16, chunks=5, zero=1, sequence_parallel=True, schedule="interleaved")
    assert name_of(deep) == "TP8xPP4xDP16,zero1,sp,interleaved5,mbs1"
    assert name_of(Plan(dp=64, ep=8, zero=3, shards=8, recompute="full", recompute_layers=2)) == (
        "DP64xEP8,zero3,shards8,mbs1,full2"
    )
    assert name_of(Plan()) == "DP1,zero0,mbs1"
    modules = Plan(dp=64, recompute="selective", recompute_modules=("layernorm", "moe_act"))
    assert name_of(modules) == "DP64,zero0,mbs1,selective[layernorm+moe_act]"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TP8PP4", "no degree"),
        ("TP8xPP", "no degree"),
        ("TP8,zer1", "Did you mean 'zero'"),
        ("TP8,interleavd2", "Did you mean 'interleaved'"),
        ("TP8,zb-h12", "Did you mean 'zb-h2'"),
        ("TP2,DP4", "joined by x: write it as in TP8xPP4xDP16,zero1"),
        ("TP8xTP4", "gives tp twice"),
        ("TP8,zero1,zero3", "gives zero twice"),
        ("", "no degree"),
        ("TP8,zero1,selective[layernom]", "Did you mean 'layernorm'"),
        ("TP8,zero1,full[layernorm]", "unknown part of a plan's name"),
    ],
)
def test_what_is_no_name_is_refused_with_the_part_that_is_wrong(name, said):
    with pytest.raises(UserError, match=said):
        parsed_name(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "TP2xPP3,zero1,sp,interleaved41,mbs2",
            "zero1 shards the optimizer's states; sp is sequence parallelism; interleaved41 is the "
            "pipeline's schedule, with 41 chunks of layers on each pipeline rank; mbs2 has 2 sequences in a "
            "microbatch",
        ),
        (
            "DP8,zero3,shards4,mbs1,full3",
            "zero3 shards weights, gradients and the optimizer's states; shards4 does so over 4 ranks; mbs1 "
            "has 1 sequence in a microbatch; full3 recomputes whole layers, 3 of each stage",
        ),
    ],
)
def test_every_word_of_a_name_is_explained(name, said):
    assert explained(Plan(**parsed_name(name))) == said


def answer(capsys, *words: str) -> dict:
    job = ("--model", "llama-3-8b", "--gpus", "32", "--global-batch", "64")
    assert main([words[0], *job, *words[1:], "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_name_is_the_options_that_it_stands_for(capsys):
    options = ("--tp", "2", "--pp", "4", "--zero", "1", "--chunks", "2", "--no-sequence-parallel")
    for command in ("plan", "explain"):
        named = answer(capsys, command, "--plan", "TP2xPP4xDP4,zero1,interleaved2,mbs1")
        assert named == answer(capsys, command, *options)
    assert answer(capsys, "plan", "--plan", "tp8") == answer(capsys, "plan", "--tp", "8")


def test_explain_takes_the_smallest_job_of_the_degrees_where_none_is_given(capsys):
    printed = []
    for job in ([], ["--gpus", "16", "--global-batch", "16"]):
        assert (
            main(["explain", "--model", "llama-3-8b", "--plan", "TP2xPP4xDP2,zero1,mbs2", *job, "--json"])
            == 0
        )
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--plan", "TP8", "--zero", "1"], "leave it out, or --zero"),
        (["--plan", "TP8", "--recompute-modules", "mlp"], "leave it out, or --recompute-modules"),
        (["--plan", "TP8xDP8"], "is 64 GPUs, not 32"),
        (["--plan", "TP7xDP1"], "tp=7 cannot"),
    ],
)
def test_a_name_that_does_not_go_with_the_job_is_refused_in_a_sentence(capsys, options, said):
    assert main(["plan", "--model", "llama-3-8b", "--gpus", "32", "--global-batch", "64", *options]) == 2
    assert said in capsys.readouterr().err
