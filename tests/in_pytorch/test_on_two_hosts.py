"""torchrun over two hosts, which are network namespaces: the scripts compute there what the lessons do."""

import json

import pytest

from tests.in_pytorch import needs_torch
from tests.support.two_hosts import missing_for_namespaces, two_hosts

STRATEGIES = ("DDP ring", "HSDP", "TP2 x PP2")  # one group over the cable; in nodes and across; stages across
pytestmark = [
    needs_torch,
    pytest.mark.skipif(missing_for_namespaces() is not None, reason=f"{missing_for_namespaces()}"),
    pytest.mark.timeout(900),
]


def test_1d_and_4d_on_two_hosts_of_two_processes_equal_their_lessons(tmp_path):
    chosen = [word for name in STRATEGIES for word in ("--strategy", name)]
    compare = ("in_pytorch/compare.py", "--json", "--dtype", "float64", *chosen)
    with two_hosts(tmp_path) as hosts:
        before = hosts.bytes_over_the_cable()
        first, second = hosts.torchrun(4, *compare)
        out, err = first.communicate()
        second.communicate()
        sent = hosts.bytes_over_the_cable() - before
    assert (first.returncode, second.returncode) == (0, 0), err
    rows = json.loads(out)
    assert len(rows) == len(STRATEGIES) and all(row["gradient_difference"]["float64"] < 1e-11 for row in rows)
    assert sent > sum(size for row in rows for _, size in row["torch_traffic"].values())
