"""Wrong and slow answers to `fit_one_gpu`. The docstring of each is in what its reader is told."""


def everything_again():
    """computes a third of the work twice"""
    return 4, "full"


def only_parts():
    """has 3.00 MB of memory"""
    return 8, "none"


def no_such_thing():
    """unknown"""
    return 8, "some"


def one_value():
    """return a whole number and a word"""
    return 8


def the_wrong_way_round():
    """choose() returned ('full', 2): return a whole number and a word"""
    return "full", 2


def a_number_in_quotes():
    """choose() returned ('2', 'full'): return a whole number and a word"""
    return "2", "full"


def parts_that_do_not_divide():
    """8 sequences cannot be taken in 3 equal parts: take 1, 2, 4 or 8."""
    return 3, "none"


def true_is_no_number():
    """choose() returned (True, 'selective'): return a whole number and a word"""
    return True, "selective"
