"""The groups that a rank is in, and the links that they run on.

Idea   tp ranks are neighbours, then come cp, dp and pp: a group's ranks are a stride apart, and stride and
       size say how many of them are in each node.
Limit  Every rank's groups lie alike.

Glossary
    stride   ranks between neighbours of a group
    rails    the network ports of the same number in all nodes: one for each GPU of a node
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gpu import Hardware
from ndparallel.hardware.accelerator import host_bandwidth
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.numbers import doublings, either, larger, smaller
from ndparallel.planner.ports import PortUse


@dataclass(frozen=True)
class GroupLinks:
    """How a group of `ranks` GPUs, `stride` apart, lies on the nodes."""

    ranks: Any
    stride: Any
    hardware: Hardware
    rail_share: Any = 1.0  # of its rails, that a collective uses

    @cached_property
    def nodes(self):
        return -(-self.ranks // larger(self.hardware.gpus_per_node // self.stride, 1))

    @cached_property
    def per_node(self):
        """Ranks of the group in each of its nodes, rounded down where not all can have as many."""
        return self.ranks // self.nodes

    @cached_property
    def bandwidth(self):
        """Bytes a second that pass any point of the ring."""
        inside, across = self.inside_bandwidth, self.rails_bandwidth
        return either(self.nodes > 1, smaller(inside, across), inside)

    @cached_property
    def rails_bandwidth(self):
        """Bytes a second that a node's ports send for one ring."""
        return self.across_bandwidth * larger(1, self.per_node * self.rail_share)

    @cached_property
    def inside_bandwidth(self):
        """Bytes a second of a GPU to the others of its group in the node: all, or of links without a switch
        those that lead to them, and PCIe where some are not linked at all."""
        bandwidth = self.hardware.inside.bandwidth_bytes_per_second
        if (linked := getattr(self.hardware, "gpus_linked_directly", 0)) < 2:
            return bandwidth
        direct = bandwidth * smaller(larger(self.per_node - 1, 1), linked - 1) / (linked - 1)
        if linked >= self.hardware.gpus_per_node:
            return direct
        beyond = (self.per_node - 1) * self.stride >= linked
        return either(beyond, smaller(direct, host_bandwidth(self.hardware)), direct)

    @cached_property
    def across_bandwidth(self):
        """Bytes a second of a GPU's port in a ring.

        The uplinks of a leaf of L GPUs carry L * share ports. A group with m ranks in the leaf, on
        m / per_node of its nodes, leaves it from the last of these alone, over per_node ports. All L / m
        groups like it do so at once: L / m * per_node flows have L * share ports, each share * m / per_node
        of one, and no more than one."""
        return self.port_beyond_leaf(self.leaf_share * self.in_leaf / self.per_node)

    @cached_property
    def hop_bandwidth(self):
        """Bytes a second of one message of each GPU to the next one of its group, where that is slowest:
        over the network it leaves by the port of its GPU alone (ncclTopoGetNetDev in nccl/src/graph/search.cc
        takes the local one where there is no graph). A leaf's last members share its uplinks."""
        inside = replace(self, ranks=smaller(self.ranks, 2)).inside_bandwidth
        across = self.port_beyond_leaf(self.leaf_share * self.in_leaf)
        return either(self.nodes > 1, across, inside)

    @property
    def hop_latency(self):
        """Seconds before the first byte of such a message is there."""
        inside, across = self.hardware.inside.latency_seconds, self.hardware.across.latency_seconds
        return either(self.nodes > 1, across, inside)

    @cached_property
    def spread_bandwidth(self):
        """Bytes a second of a GPU's port in an all-to-all, whose flows all cross to the other leaves: what
        uplinks leave, where there are any."""
        return self.port_beyond_leaf(self.leaf_share)

    def port_beyond_leaf(self, share: Any) -> Any:
        """Bytes a second of a GPU's port: this share of it, or all of it inside a leaf."""
        if self.leaf_share == 1:  # the network is as good as one leaf switch
            return self.port
        return either(self.spans_leaves, self.port * smaller(1.0, share), self.port)

    @property
    def port(self) -> float:
        return self.hardware.across.bandwidth_bytes_per_second

    @property
    def leaf_share(self) -> float:
        return getattr(self.hardware, "leaf_share", 1.0)

    @property
    def leaf(self) -> int:
        return getattr(self.hardware, "gpus_per_leaf", 0) or self.hardware.gpus_per_node

    @property
    def in_leaf(self):
        """Ranks of the group below one leaf switch."""
        return larger(self.leaf // self.stride, 1)

    @property
    def spans_leaves(self):
        return (self.ranks - 1) * self.stride >= self.leaf

    @cached_property
    def ring_use(self) -> PortUse:
        """How a ring uses a GPU's ports: those to other nodes share what crosses each node's border."""
        return PortUse(
            self.bandwidth / self.inside_bandwidth if self.per_node > 1 else 0.0,
            self.bandwidth / self.rails_bandwidth if self.nodes > 1 else 0.0,
        )

    @cached_property
    def all_to_all_use(self) -> PortUse:
        """How an all-to-all does, that takes as long as the busier port."""
        inside = (self.per_node - 1) / self.inside_bandwidth
        across = (self.ranks - self.per_node) / self.spread_bandwidth
        longer = larger(inside, across)
        return PortUse(inside / longer, across / longer) if longer else PortUse(0.0, 0.0)

    @cached_property
    def ring_latency_seconds(self):
        """Latency once round the ring."""
        across, hardware = self.nodes - 1, self.hardware
        inside = (self.ranks - 1 - across) * hardware.inside.latency_seconds
        return inside + across * hardware.across.latency_seconds

    @cached_property
    def tree_latency_seconds(self):
        """Latency down a tree whose branches are chains inside the nodes."""
        inside = (self.per_node - 1) * self.hardware.inside.latency_seconds
        return inside + doublings(self.nodes) * self.hardware.across.latency_seconds


@dataclass(frozen=True)
class Groups:
    """The groups that a rank is in, on the machine: tp ranks are neighbours, then cp, dp and pp."""

    plan: Plan
    job: TrainingJob

    def links(self, name: str) -> GroupLinks:
        return getattr(self, name)

    def port_use(self, name: str) -> PortUse:
        """How a group's collectives, or its messages between stages or round a ring, use a GPU's ports."""
        links = self.links(name)
        way = self.job.stack.context_parallel if name == "cp" else ""
        if name == "pp" or way == "ring":
            return PortUse(0.0, 1.0) if links.nodes > 1 else PortUse(float(links.ranks > 1), 0.0)
        return links.all_to_all_use if name == "ep" or way == "all-to-all" else links.ring_use

    @cached_property
    def on_shared_ports(self) -> dict[str, PortUse]:
        """The groups that use a port of a GPU which another one uses as well, and how they use such ports."""
        data = ("shards", "replicas") if self.plan.zero == 3 else ("dp",)
        experts = ("ep", "experts_dp") if self.job.shape.experts else ()
        used = {name: self.port_use(name) for name in ("tp", "cp", "pp", *data, *experts)}
        users = [sum(map(bool, shares)) for shares in zip(*used.values())]
        shared = {
            name: PortUse(*(share * (count > 1) for share, count in zip(use, users)))
            for name, use in used.items()
        }
        return {name: use for name, use in shared.items() if any(use)}

    def _links(self, ranks, stride) -> GroupLinks:
        return GroupLinks(ranks, stride, self.job.hardware, self.job.stack.rail_share)

    @cached_property
    def tp(self) -> GroupLinks:
        return self._links(self.plan.tp, 1)

    @cached_property
    def cp(self) -> GroupLinks:
        return self._links(self.plan.cp, self.plan.tp)

    @cached_property
    def dp(self) -> GroupLinks:
        """Ranks with the same weights: data-parallel and context-parallel ones."""
        return self._links(self.plan.dp * self.plan.cp, self.plan.tp)

    @cached_property
    def stage(self) -> GroupLinks:
        """All ranks of one stage."""
        return self._links(self.stage_stride, 1)

    @cached_property
    def pp(self) -> GroupLinks:
        """Stages that follow one another."""
        return self._links(self.plan.pp, self.stage_stride)

    @cached_property
    def ep(self) -> GroupLinks:
        """Ranks with different experts; where tp cuts experts, tp ranks have parts of the same ones."""
        return self._links(self.plan.ep, self.plan.etp(self.job.stack))

    @cached_property
    def shards(self) -> GroupLinks:
        """Ranks that FSDP shards a layer over."""
        return self._links(self.plan.sharding_ranks, self.plan.tp)

    @cached_property
    def replicas(self) -> GroupLinks:
        """Ranks that hold the same shard (HSDP)."""
        return self._links(self.plan.dp * self.plan.cp / self.shards.ranks, self.plan.tp * self.shards.ranks)

    @cached_property
    def experts_dp(self) -> GroupLinks:
        """Ranks with the same experts; with replicas, those of them that share their states."""
        return self._links(self.plan.expert_ranks(self.job.stack), self.plan.expert_parts(self.job.stack))

    @cached_property
    def to_host(self) -> GroupLinks:
        """A rank alone, beside its host."""
        return self._links(1, 1)

    @cached_property
    def ends(self) -> GroupLinks:
        """The first and the last stage: neighbours, as far as links go, where a node has the pipeline."""
        apart = (self.plan.pp - 1) * self.stage_stride
        return self._links(2, either(self.pp.nodes > 1, apart, 1))

    @property
    def stage_stride(self):
        """Ranks between neighbours in the pipeline."""
        return self.plan.tp * self.plan.cp * self.plan.dp
