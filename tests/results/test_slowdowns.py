"""Claims about what is said of disturbed strategies, on rows that are made up."""

import pytest

from ndparallel.hardware.disturbances import Disturbances
from ndparallel.results.slowdowns import sentences


def rows(**takes: float) -> list[dict]:
    return [{"strategy": name, "takes": times} for name, times in takes.items()]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, []),
        ({"DDP": 2.0}, []),  # compared with none
        ({"DDP": 2.0, "FSDP": 2.001}, ["All take 2.00x as long."]),
        ({"DDP": 2.0, "FSDP": 1.5, "TP": 1.25}, ["DDP suffers most (2.00x), TP least (1.25x)."]),
    ],
)
def test_who_suffers_most_and_least_is_said_of_several_strategies(given, said):
    assert [*sentences(rows(**given), Disturbances(), {})] == said


def test_a_slow_link_over_which_no_message_goes_is_named():
    link = Disturbances(slow_links=((0, 2, 4.0),))
    assert [*sentences([], link, {})] == ["No message goes over link 0-2, so that it slows nobody."]
