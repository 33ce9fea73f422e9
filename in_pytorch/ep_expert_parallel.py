"""EP in torch: each rank has some of the experts, and tokens travel to them and back in all-to-alls.

Idea   A router sends every token to the two experts that suit it best. Rows are sorted by expert, exchanged,
       sorted by local expert, computed, and go back the same way; autograd takes their gradients along.
Limit  An expert after another: no grouped kernel. torch has no public expert parallelism; this is the shape
       that torchtitan and Megatron-Core write out too.

Run    torchrun --nproc-per-node 4 in_pytorch/ep_expert_parallel.py

Glossary
    rows        tokens at their experts: a token that goes to two experts is two rows
    counts      rows by expert, which the receiver must know first
"""

import installed  # noqa: F401  before torch: says in a sentence where that is missing

# isort: split
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from model import Config, Transformer, linear, loss_fn
from running import Job, Outcome, main, share
from weights import draw

EXPERTS, TOP_K, EXPERT_FFN, BALANCE = 8, 2, 44, 0.01


class AllToAll(torch.autograd.Function):
    """Send `leaving` rows to each rank, and receive `arriving` rows from each; gradients go back."""

    @staticmethod
    def forward(context, rows: Tensor, leaving: list[int], arriving: list[int]) -> Tensor:
        context.splits = leaving, arriving
        out = rows.new_empty(sum(arriving), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), arriving, leaving)
        return out

    @staticmethod
    def backward(context, dout: Tensor) -> tuple[Tensor, None, None]:
        leaving, arriving = context.splits
        drows = dout.new_empty(sum(leaving), dout.shape[1])
        dist.all_to_all_single(drows, dout.contiguous(), leaving, arriving)
        return drows, None, None


class Experts(nn.Module):
    """Gated MLPs side by side: all gates and ups in one parameter, all downs in another."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(EXPERTS, 2, EXPERT_FFN, config.hidden))
        self.down = nn.Parameter(torch.empty(EXPERTS, config.hidden, EXPERT_FFN))

    def keep(self, mine: slice) -> None:
        """Keep these experts alone."""
        self.gate_up = nn.Parameter(self.gate_up[mine].detach().clone())
        self.down = nn.Parameter(self.down[mine].detach().clone())

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        out = []
        for x, (gate, up), down in zip(rows.split(counts), self.gate_up, self.down):
            out.append((F.silu(x @ gate.T) * (x @ up.T)) @ down.T)
        return torch.cat(out)


class MoE(nn.Module):
    """A router and experts in place of the MLP; (b, s, h) to (b, s, h)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.router, self.experts = linear(config.hidden, EXPERTS), Experts(config)

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(-1)
        gates, chosen = probabilities.flatten(0, 1).topk(TOP_K)
        self.balance_loss = balance_loss(probabilities, chosen.view(*x.shape[:2], TOP_K))
        gates = gates / gates.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        rows = x.flatten(0, 1)[order // TOP_K]
        out = self.through_experts(rows, chosen.flatten().bincount(minlength=EXPERTS))
        weighed = out * gates.flatten()[order, None]
        return torch.zeros_like(x).flatten(0, 1).index_add(0, order // TOP_K, weighed).view_as(x)

    def through_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Send rows that are sorted by expert to the ranks that have the experts, and back."""
        leaving = counts.view(dist.get_world_size(), -1)
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving)
        there, here = leaving.sum(1).tolist(), arriving.sum(1).tolist()
        expert_of_row = torch.arange(arriving.shape[1], device=rows.device).repeat(arriving.shape[0])
        by_expert = expert_of_row.repeat_interleave(arriving.flatten()).argsort(stable=True)
        came = AllToAll.apply(rows, there, here)
        out = self.experts(came[by_expert], arriving.sum(0).tolist())
        return AllToAll.apply(out[by_expert.argsort()], here, there)


def balance_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """1 where the experts are equally busy: the share of a sequence's choices, times the mean probability."""
    share = F.one_hot(chosen, EXPERTS).sum(dim=(1, 2)) / (TOP_K * chosen.shape[1])
    return EXPERTS * (share.to(probabilities) * probabilities.mean(1)).sum(-1).mean()


def average(model: nn.Module, ranks: int) -> None:
    """The mean of the ranks' gradients; what comes to an expert from all ranks is their sum already."""
    for name, weight in model.named_parameters():
        if ".experts." not in name:
            dist.all_reduce(weight.grad)
        weight.grad /= ranks


def expert_parallel(job: Job) -> Outcome:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = share(EXPERTS, "experts", ranks)
    model = Transformer(job.config)
    for layer in model.layers.values():
        layer.mlp = MoE(job.config)
    draw(model, job.config)
    for layer in model.layers.values():
        layer.mlp.experts.keep(slice(rank * mine, (rank + 1) * mine))
    model.to(job.device)
    optimizer, losses = job.make_optimizer(model.parameters()), []
    for tokens, targets in job.batches(rank, ranks):
        loss = loss_fn(model(tokens), targets)
        loss = loss + BALANCE * sum(layer.mlp.balance_loss for layer in model.layers.values())
        loss.backward()
        average(model, ranks)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return Outcome(losses, model)


STRATEGIES = {"EP": expert_parallel}

if __name__ == "__main__":
    main(__doc__, STRATEGIES)
