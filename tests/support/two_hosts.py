"""Two hosts on one machine: two network namespaces, joined by a virtual cable, and an mpirun or a torchrun
that starts ranks in both.

Each host has a network and a host name of its own; processors, memory and disk are shared. In place of ssh,
mpirun is given a script that enters the other namespace. Making namespaces takes root.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = shutil.which(
    "mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
)
ADDRESSES = ("10.213.0.1", "10.213.0.2")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
KEEPALIVE = (
    tuple(  # seconds of silence, seconds between questions, and how many of them may go without an answer
        word
        for name, value in {"time": 2, "intvl": 1, "probes": 3}.items()
        for word in ("--prtemca", f"oob_tcp_keepalive_{name}", f"{value}")
    )
)
AGENT = """#!/bin/sh
shift
setsid ip netns exec {there} unshare --uts sh -c "hostname {there}; $*" &
wait $!
while ip netns exec {here} grep -q down /sys/class/net/cable/operstate; do sleep 0.1; done
"""  # the last line: an ssh too hears of the end over the cable


@cache
def missing() -> str | None:
    """What this machine lacks for two hosts, in a sentence; None where it lacks nothing."""
    if importlib.util.find_spec("mpi4py") is None or MPIRUN is None:
        return "two hosts need mpirun and mpi4py: pip install 'ndparallel[mpi]'"
    return missing_for_namespaces()


@cache
def missing_for_namespaces() -> str | None:
    if not (shutil.which("ip") and shutil.which("unshare")):
        return "two hosts need the commands ip (iproute2) and unshare (util-linux)"
    name = f"try-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "exec", name, "unshare", "--uts", "true")
        ip("netns", "del", name)
    except subprocess.CalledProcessError:
        return "two hosts need network namespaces, which root may make"
    return None


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator["TwoHosts"]:
    """Two hosts that reach each other by TCP alone. At the end nothing is left of them."""
    hosts = TwoHosts(folder)
    try:
        hosts.set_up()
        yield hosts
    finally:
        hosts.take_down()


class TwoHosts:
    def __init__(self, folder: Path) -> None:
        self.names = (f"hosta-{os.getpid()}", f"hostb-{os.getpid()}")
        self.agent, self.temporary = folder / "agent", folder / "temporary"
        within = ("ip", "netns", "exec", self.names[0], "unshare", "--uts", "sh", "-c")
        self.on_the_first = (*within, f'hostname {self.names[0]}; exec "$@"', "sh")

    def set_up(self) -> None:
        self.temporary.mkdir()
        self.agent.write_text(AGENT.format(here=self.names[0], there=self.names[1]), "utf-8")
        self.agent.chmod(0o755)
        for name in self.names:
            ip("netns", "add", name)
        ends = [("name", "cable", "netns", name) for name in self.names]
        ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for name, address in zip(self.names, ADDRESSES):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")

    def take_down(self) -> None:
        for name in self.names:
            for process in self.processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        for file in self.left_in_shared_memory():
            file.unlink()

    def mpirun(self, ranks: int, *words: str, options: tuple[str, ...] = ()) -> subprocess.Popen:
        """Start this Python with these words, half of the ranks on each host."""
        hosts = ",".join(f"{address}:{ranks // 2}" for address in ADDRESSES)
        assert MPIRUN
        command = [MPIRUN, "-n", f"{ranks}", "--host", hosts, "--bind-to", "none", *options]
        return subprocess.Popen(
            [*self.on_the_first, *command, "--prtemca", "plm_ssh_agent", self.agent, sys.executable, *words],
            cwd=ROOT,
            env=os.environ | AS_ROOT | {"PYTHONPATH": f"{ROOT}", "TMPDIR": f"{self.temporary}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def torchrun(self, processes: int, *words: str) -> list[subprocess.Popen]:
        """Start torchrun on both hosts, half of the processes on each; they meet on the first."""
        return [
            subprocess.Popen(
                [
                    *("ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run"),
                    *("--nnodes", "2", "--node-rank", f"{rank}", "--nproc-per-node", f"{processes // 2}"),
                    *("--master-addr", ADDRESSES[0], "--master-port", "29500", *words),
                ],
                cwd=ROOT,
                env=os.environ
                | {"PYTHONPATH": f"{ROOT}", "GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, name in enumerate(self.names)
        ]

    def cut(self) -> None:
        ip("-n", self.names[0], "link", "set", "cable", "down")

    def set_retries(self, number: int) -> None:
        """How often TCP sends again what nobody says to have received, before it gives a connection up."""
        for name in self.names:
            ip("netns", "exec", name, "sysctl", "-q", "-w", f"net.ipv4.tcp_retries2={number}")

    def processes(self, name: str) -> list[int]:
        """What runs on a host."""
        found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        return [int(word) for word in found.stdout.split()]

    def bytes_over_the_cable(self) -> int:
        """Bytes that have come to and left the first host by now."""
        counters = ("cat", *(f"/sys/class/net/cable/statistics/{way}_bytes" for way in ("rx", "tx")))
        return sum(int(word) for word in ip("netns", "exec", self.names[0], *counters).split())

    def left_in_shared_memory(self) -> list[Path]:
        """What Open MPI has left in memory that the ranks of one of these hosts shared."""
        return [file for name in self.names for file in Path("/dev/shm").glob(f"*.{name}.*")]

    def wait_until_empty(self) -> None:
        """Return when nothing runs on either host; the test's own time limit ends a wait in vain."""
        while any(self.processes(name) for name in self.names):
            time.sleep(0.01)


def ip(*words: str) -> str:
    """What the command `ip` prints. Raises CalledProcessError where it refuses."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
