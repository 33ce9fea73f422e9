"""torchrun over two hosts, which are network namespaces: the scripts compute there what the lessons do."""

import json

import pytest

from tests.support.two_hosts import missing_for_namespaces, two_hosts

pytest.importorskip("torch", reason='torch is not installed: pip install "ndparallel[torch]"')
pytestmark = [
    pytest.mark.skipif(missing_for_namespaces() is not None, reason=f"{missing_for_namespaces()}"),
    pytest.mark.timeout(900),
]


def test_1d_and_4d_on_two_hosts_of_two_processes_equal_their_lessons(tmp_path):
    compare = ("in_pytorch/compare.py", "1d_data_parallel", "4d_combined", "--json", "--dtype", "float64")
    with two_hosts(tmp_path) as hosts:
        before = hosts.bytes_over_the_cable()
        first, second = hosts.torchrun(4, *compare)
        out, err = first.communicate()
        second.communicate()
        sent = hosts.bytes_over_the_cable() - before
    assert (first.returncode, second.returncode) == (0, 0), err
    rows = json.loads(out)
    assert len(rows) == 11 and all(row["gradient_difference"]["float64"] < 1e-11 for row in rows)
    assert sent > sum(size for row in rows for _, size in row["torch_traffic"].values())
