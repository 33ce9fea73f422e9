"""The engine mpi over two hosts: the same bytes as on one, and an end on both whatever happens to either."""

import contextlib
import io
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from ndparallel.lessons.main import main
from ndparallel.lessons.registry import load
from tests.support.two_hosts import KEEPALIVE, missing, two_hosts

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"{missing()}")


@pytest.fixture
def hosts(tmp_path):
    with two_hosts(tmp_path) as hosts:
        yield hosts


@pytest.mark.parametrize(
    ("ranks", "lesson", "strategies"),
    [
        (4, "1d_data_parallel", ("DDP ring", "FSDP prefetch")),
        (8, "4d_combined", ("TP2 x PP2 x DP2", "with experts, EP")),
    ],
)
def test_a_lesson_prints_the_same_json_to_the_last_byte(hosts, ranks, lesson, strategies):
    options = [word for strategy in strategies for word in ("--strategy", strategy)] + ["--json"]
    before = hosts.bytes_over_the_cable()
    out, err = (run := hosts.mpirun(ranks, "-m", "mpi4py", f"{lesson}.py", *options)).communicate()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(load(lesson), [*options, "--engine", "inline"]) == 0
    assert (run.returncode, out) == (0, printed.getvalue()), err
    sent_by_one = sum(strategy["bytes_sent_per_gpu"] for strategy in json.loads(out)["strategies"])
    assert hosts.bytes_over_the_cable() - before > sent_by_one


# ---- one that goes on until somebody ends it


@pytest.fixture
def endless(hosts, tmp_path):
    script = ("-m", "mpi4py", "tests/support/mpi_script.py", "endless", f"{tmp_path / 'ranks'}")
    return Endless(hosts, hosts.mpirun(4, *script, options=KEEPALIVE), tmp_path / "ranks")


class Endless:
    """All-reduces over two hosts, which have begun."""

    def __init__(self, hosts, run, file: Path) -> None:
        self.hosts, self.run, self.file = hosts, run, file
        while not any(line.startswith("round") for line in self.lines()):
            assert run.poll() is None, run.stderr.read()
            time.sleep(0.01)

    def lines(self):
        return self.file.read_text().splitlines() if self.file.exists() else []

    def process_of(self, rank):
        return next(int(line.split()[2]) for line in self.lines() if line.startswith(f"rank {rank} "))

    def end(self):
        """What mpirun says at its end, once nothing runs on either host, with its exit code."""
        err = " ".join(self.run.communicate()[1].split())
        self.hosts.wait_until_empty()
        return err, self.run.returncode


def test_a_rank_that_is_killed_ends_the_run_on_both_hosts_and_leaves_nothing(hosts, endless):
    os.kill(endless.process_of(3), signal.SIGKILL)
    err, exit_code = endless.end()
    # mpirun names the rank that was killed, or the one that was the first to miss it
    assert exit_code != 0 and re.search(r'process rank \d.*(signal 9|calling "abort")', err), err
    assert hosts.left_in_shared_memory() == [] and list(hosts.temporary.iterdir()) == []


def test_a_daemon_that_is_killed_ends_the_run_on_both_hosts(hosts, endless):
    os.kill(parent_of(endless.process_of(3)), signal.SIGKILL)
    assert "lost communication with a remote daemon" in endless.end()[0]
    assert all("sm_segment" in file.name for file in hosts.left_in_shared_memory())


@pytest.mark.parametrize("also_killed", [None, 0])
def test_a_cable_that_is_cut_ends_the_run_on_both_hosts(hosts, endless, also_killed):
    hosts.set_retries(4)
    hosts.cut()
    if also_killed is not None:  # so that mpirun has something to say to the other host
        os.kill(endless.process_of(also_killed), signal.SIGKILL)
    endless.end()


def parent_of(process):
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
