"""Wrong and slow answers to `who_sits_where`. The docstring of each is in what its reader is told."""


def tp_across():
    """tp crosses the nodes"""
    return "pp-dp-tp"


def dp_across():
    """dp crosses the nodes"""
    return "tp-pp-dp"


def no_order():
    """return tp, dp and pp in some order, joined by -"""
    return ["tp", "dp", "pp"]
