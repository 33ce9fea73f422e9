"""One layer of experts, the smallest model that needs expert parallelism: a router, and small MLPs of which
each token passes through a few, held against a target.

Idea   A lesson writes out the way of the tokens: to their experts, back, and the same way again with
       gradients. Here is what a GPU computes: the router's choice, and its experts on the rows that arrive.
Cost   top_k MLPs for a token: 3 * 2 * tokens * top_k * hidden * ffn * 2 FLOPs for forward and backward.
Limit  Experts are relu(rows A) B, multiplied one after another; no loss balances the router.

Glossary
    row        a token on its way to one of its top_k experts
    batch      some of this rank's tokens, and what is known of their way
    skew       what the router adds to the logits of expert 0, so that it is everybody's favourite
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from collectives import all_reduce
from gpu import GPU
from ndparallel.base.bfloat16 import as_dtype
from ndparallel.model import functional, routing
from ndparallel.model.units import Routed, Saved
from ndparallel.parallel.expert import ExpertParallel, TokenDispatcher
from ndparallel.parallel.slices import part
from ndparallel.training.by_hand import ByHand, Slice
from ndparallel.training.job import Job


@dataclass
class Batch:
    """Tokens (t, hidden), and their way to the experts."""

    x: np.ndarray
    saved: Saved  # for the backward pass
    dispatcher: TokenDispatcher = field(init=False)
    order: np.ndarray = field(init=False)
    gates: np.ndarray = field(init=False)
    dgates: np.ndarray = field(init=False)


class ExpertLayer(ByHand):
    """The router, and this rank's experts: all, or its part of them."""

    def __init__(self, gpu: GPU, job: Job, skew: float = 0.0) -> None:
        super().__init__(gpu, job)
        self.ep, self.skew = ExpertParallel.on(gpu, job.mesh), skew
        dp, experts = (job.mesh.group(name, gpu.rank) for name in ("dp", "expert_dp"))
        hidden, ffn = job.model.hidden, job.model.expert_ffn
        self.router = self.hold_router(copies=dp.size)
        self.a = self.hold_experts("a", hidden, ffn, copies=experts.size)
        self.b = self.hold_experts("b", ffn, hidden, copies=experts.size)
        self.averaged_over = {dp: [self.router], experts: [self.a, self.b]}
        tokens = part(self.tokens, dp.size, dp.index(gpu.rank))
        self.x, self.target = (each[tokens] for each in self.drawn((2, self.tokens, hidden)))

    def hold_router(self, copies: int) -> Slice:
        """All of the router (hidden, experts), which every rank has."""
        hidden, experts = self.job.model.hidden, self.job.model.experts
        return self.hold("router", (hidden, experts), (slice(0, hidden), slice(0, experts)), copies=copies)

    def hold_experts(self, name: str, inputs: int, outputs: int, copies: int) -> Slice:
        """A matrix of each of this rank's experts: its part of (experts, inputs, outputs)."""
        experts = self.job.model.experts
        mine = part(experts, self.ep.size, self.ep.index)
        place = (mine, slice(0, inputs), slice(0, outputs))
        return self.hold(name, (experts, inputs, outputs), place, deviation=inputs**-0.5, copies=copies)

    def batches(self, parts: int) -> list[Batch]:
        """This rank's tokens in so many parts, each with a way of its own; what became of the last ones is
        noted."""
        self.outcome.routed.append({})
        return [Batch(x, Saved(self.gpu)) for x in np.array_split(self.x, parts)]

    @cached_property
    def top_k(self) -> int:
        return self.job.model.top_k

    # ---- the router

    def route(self, batch: Batch) -> np.ndarray:
        """Choose the experts of every token; return how many rows go to each."""
        model = self.job.model
        logits = self.matmul("forward router", batch.x, self.router.weight)
        logits += self.skew * as_dtype(np.arange(model.experts) == 0, self.job.dtype)
        self.elementwise("forward route", logits.size, 2)
        probabilities = functional.softmax(logits)
        chosen = routing.top_k(probabilities, self.top_k)
        batch.gates = routing.gates(probabilities, chosen, model.renormalise)
        limit = routing.capacity(model.capacity_factor, len(batch.x), self.top_k, model.experts)
        batch.order, counts = routing.assign(chosen, model.experts, limit)
        batch.saved.keep(probabilities=probabilities, chosen=chosen)
        return counts

    def route_backward(self, batch: Batch) -> np.ndarray:
        """Return the tokens' gradient through the gates; add up the router's."""
        probabilities, chosen = batch.saved.take_all("probabilities", "chosen")
        self.elementwise("backward route", probabilities.size, 3)
        dprobabilities = routing.gates_backward(
            batch.dgates, probabilities, chosen, self.job.model.renormalise
        )
        dlogits = functional.softmax_backward(dprobabilities, probabilities)
        self.router.gradient += self.matmul("backward router weight", batch.x.T, dlogits)
        return self.matmul("backward router", dlogits, self.router.weight.T)

    # ---- tokens to rows and back

    def permute(self, batch: Batch) -> np.ndarray:
        """Copy each token to one row for each of its experts, sorted by expert."""
        rows = routing.permute(batch.x, batch.order, self.top_k)
        self.elementwise("forward permute", rows.size, 2)
        return rows

    def permute_backward(self, batch: Batch, drows: np.ndarray) -> np.ndarray:
        self.elementwise("backward permute", batch.x.size + drows.size, 1)
        return routing.permute_backward(drows, batch.order, len(batch.x), self.top_k)

    def weigh(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
        """Sum every token's rows (choices, h), weighed by its gates: (t, h)."""
        batch.saved.keep(returned=rows)
        self.elementwise("forward combine", batch.x.size + rows.size, 1)
        return routing.combine(rows, batch.gates, batch.order)

    def weigh_backward(self, batch: Batch, dy: np.ndarray) -> np.ndarray:
        """Return the rows' gradient; keep that of the gates."""
        returned = batch.saved.take("returned")
        self.elementwise("backward combine", dy.size + 2 * returned.size, 1)
        drows, batch.dgates = routing.combine_backward(dy, returned, batch.gates, batch.order)
        return drows

    # ---- the experts of this rank

    def run_experts(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
        """Run each expert on its rows, (r, hidden) sorted by expert."""
        z = np.empty_like(rows, shape=(len(rows), self.job.model.expert_ffn))
        out = np.empty_like(rows)
        for expert, its in batch.dispatcher.busy_experts():
            z[its] = self.matmul("forward expert", rows[its], self.a.weight[expert])
            self.elementwise("forward relu", z[its].size, 2)
            out[its] = self.matmul("forward expert", np.maximum(z[its], 0), self.b.weight[expert])
        batch.saved.keep(rows=rows, z=z)
        self.note(batch)
        return out

    def run_experts_backward(self, batch: Batch, dout: np.ndarray) -> np.ndarray:
        """Return the gradient of the rows; keep what the weights' gradients take."""
        z, drows = batch.saved["z"], np.empty_like(dout)
        dz = np.empty_like(z)
        for expert, its in batch.dispatcher.busy_experts():
            dh = self.matmul("backward expert", dout[its], self.b.weight[expert].T)
            self.elementwise("backward relu", dh.size, 3)
            dz[its] = dh * (z[its] > 0)
            drows[its] = self.matmul("backward expert", dz[its], self.a.weight[expert].T)
        batch.saved.keep(dz=dz, dout=dout)
        return drows

    def experts_weight(self, batch: Batch) -> None:
        """Add up the weights' gradients: of the rows of all ep ranks, each of which is a mean over its own
        tokens."""
        rows, z, dz, dout = batch.saved.take_all("rows", "z", "dz", "dout")
        for expert, its in batch.dispatcher.busy_experts():
            da = self.matmul("weight expert", rows[its].T, dz[its])
            db = self.matmul("weight expert", np.maximum(z[its], 0).T, dout[its])
            self.a.gradient[expert] += da / self.ep.weight
            self.b.gradient[expert] += db / self.ep.weight

    # ---- the loss, and who averages what

    def loss_gradient(self, y: np.ndarray) -> np.ndarray:
        return self.distance_gradient(y, self.target)

    def average_gradients(self) -> None:
        """The router's over all ranks, the experts' over those that have the same ones."""
        for group, parts in self.averaged_over.items():
            if group.size > 1:
                for each in parts:
                    all_reduce(self.gpu, each.gradient, group, "average")

    def note(self, batch: Batch) -> None:
        """Say how many rows this rank's experts got, and how many choices of its own tokens were dropped."""
        went, noted = batch.dispatcher, self.outcome.routed[-1]
        dropped: Any = batch.saved["chosen"].size - batch.order.size
        noted["experts", len(noted)] = Routed(tuple(went.by_expert), tuple(went.sent), dropped)
