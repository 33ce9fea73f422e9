"""Claims about the controls of all screens: their stops are in order, and what is usual needs no option."""

from typing import Any

import pytest

from ndparallel.base.options import Parser
from ndparallel.commands import schedule
from ndparallel.explorer import cluster, cut
from ndparallel.explorer.saving import CONTROLS
from ndparallel.explorer.setup import words
from ndparallel.lessons.options import disturbed_hardware_from, job_from
from ndparallel.lessons.runner import entry_of
from ndparallel.planner.options import job_and_plan, with_defaults

EVERY = [(screen, control) for screen, controls in CONTROLS.items() for control in controls]
DEGREES = ("gpus", "gpus_per_node", "tp", "pp", "cp", "ep", "shards", "micro_batch")
NOT_AN_OPTION = ("usual", "none", "as it is", "nothing")  # what the page says where there is none
ALL_OF_IT = {("cluster", "chunks"), ("cluster", "shards")}  # 0 stands for as many as usual, or for all


def names(each: Any) -> str:
    return each if isinstance(each, str) else each.name


@pytest.mark.parametrize(("screen", "control"), EVERY, ids=names)
def test_stops_are_in_order_and_the_page_begins_at_one(screen, control):
    stops = list(control.stops)
    if stops and not control.is_words:
        assert stops == sorted(set(stops)) and control.first in stops
    if control.name in DEGREES and screen in ("cut", "cluster"):
        assert all(each & (each - 1) == 0 for each in (*stops, control.first, control.most if stops else 0))


def asked(screen: str, given: list[str]) -> Any:
    """What a command line asks for."""
    if screen == "cluster":
        return job_and_plan(with_defaults(cluster.parser().parse_args(given)))
    if screen == "schedule":
        schedule.add_arguments(parser := Parser())
        return parser.parse_args(["1f1b", *given])
    arguments, lesson = cut.parser().parse_args(given), cut.lesson()
    assert lesson.strategies_for
    (strategy,) = lesson.strategies_for(lesson, arguments)
    found = entry_of(strategy, job_from(arguments, lesson.defaults, arguments.gpus), arguments.gpus)
    return found.job, found.strategy.mesh(arguments.gpus), disturbed_hardware_from(arguments)


USUAL = [
    (screen, control)
    for screen, control in EVERY
    if control.usual not in (None, *NOT_AN_OPTION) and (screen, control.name) not in ALL_OF_IT
]


@pytest.mark.parametrize(("screen", "control"), USUAL, ids=names)
def test_what_is_usual_is_what_the_command_does_without_the_option(screen, control):
    setup = {each.name: each.first for each in CONTROLS[screen]} | {"batch": 32}  # that all can share
    others = [each for each in CONTROLS[screen] if each != control and each.name != "what_if"]
    left_out = words(others, setup)
    assert asked(screen, [*left_out, control.option, str(control.usual)]) == asked(screen, left_out)


@pytest.mark.parametrize(
    "setup", [{}, {"tp": 8, "pp": 1}, {"gpus": 4}, {"tp": 1, "pp": 4, "batch": 16}], ids=str
)
def test_reasons_name_what_is_on_the_page_and_no_option(setup):
    controls = cut.answer(setup)["controls"]
    reasons = {
        f"{each['name']} {stop['value']}": stop["reason"] for each in controls for stop in each["stops"]
    }
    assert any(reasons.values()) and not [words for words in reasons.values() if "--" in words]
    if not setup:
        assert reasons["gpus 16"].endswith(
            "parts of 4 microbatches; the nearest batch that can is 16; the nearest "
            "number of microbatches is 2; the nearest number of GPUs is 8."
        )
        assert (
            reasons["tp 8"]
            == "tp * pp * cp is 16, which does not divide 8 GPUs: choose gpus 16, or other degrees."
        )
