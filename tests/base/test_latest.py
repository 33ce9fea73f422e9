"""Claims about functions that remember their latest answer."""

from ndparallel.base.latest import latest


def test_the_very_same_things_are_asked_about_once_and_equal_ones_again():
    asked: list[tuple[list[int], list[int]]] = []

    @latest
    def both(one: list[int], other: list[int]) -> list[int]:
        asked.append((one, other))
        return one + other

    one, other, like_one = [1], [2], [1]
    assert both(one, other) is both(one, other)
    assert len(asked) == 1
    assert both(like_one, other) == both(one, other) == [1, 2]
    assert len(asked) == 3  # equal is not the same, and only the latest is known
    assert both(other, one) == [2, 1]


def test_nothing_is_an_answer_too_and_none_is_a_thing():
    found = latest(lambda thing: thing)
    assert found(None) is None and found(1) == 1
