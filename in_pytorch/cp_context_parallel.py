"""CP in torch: ring attention written out, with log-sum-exp merging; Ulysses; and the library's, on GPUs.

Idea   Every rank has an early and a late chunk of each sequence ("zigzag"). Keys and values go round a ring,
       and a query's result is corrected with every block that it meets. Backward, the gradients of keys and
       values travel on with them, and so come home. Ulysses gives each rank all tokens of some of the heads,
       and takes the results back to the ranks of their tokens.
Limit  Every block is computed whole, and masked: the lessons skip the masked half of it. torch's own
       context_parallel needs the attention kernels of a GPU, and was not tried here.

Run    torchrun --nproc-per-node 4 in_pytorch/cp_context_parallel.py
"""

import installed  # noqa: F401  before torch: says in a sentence where that is missing

# isort: split
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from model import Attention, Config, Transformer, loss_fn
from running import Job, Outcome, main, share
from weights import draw


def zigzag(tokens: int, ranks: int, rank: int) -> Tensor:
    """The positions of a rank: one chunk counted from the start of the sequence, one from its end."""
    chunks = torch.arange(tokens).split(share(tokens, "tokens", 2 * ranks))
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])


class CutAttention(Attention):
    """Attention whose rank has some tokens of each sequence."""

    def positions(self, tokens: int) -> Tensor:
        return zigzag(tokens * dist.get_world_size(), dist.get_world_size(), dist.get_rank())


class RingAttention(CutAttention):
    """Attention whose keys and values go round a ring."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Ring.apply(q.unflatten(1, (k.shape[1], -1)), torch.stack([k, v]).unsqueeze(3)).flatten(1, 2)


class Ring(torch.autograd.Function):
    """Mix the values of all ranks for this rank's queries q (b, K, H/K, s, d); keys and values are
    (2, b, K, 1, s, d)."""

    @staticmethod
    def forward(context, q: Tensor, block: Tensor) -> Tensor:
        mixed, logsum = torch.zeros_like(q), torch.full_like(q[..., :1], -torch.inf)
        context.save_for_backward(q, block)
        for source in sources():
            k, v = block
            s = scores(q, k, source)
            new = torch.logaddexp(logsum, s.logsumexp(-1, keepdim=True))
            mixed = mixed * (logsum - new).exp() + (s - new).exp() @ v
            logsum, block = new, pass_on(block) if source != sources()[-1] else block
        context.mixed, context.logsum = mixed, logsum
        return mixed

    @staticmethod
    def backward(context, dmixed: Tensor) -> tuple[Tensor, Tensor]:
        (q, block), scale = context.saved_tensors, context.mixed.shape[-1] ** -0.5
        dq, dblock = torch.zeros_like(q), torch.zeros_like(block)
        row_sums = (dmixed * context.mixed).sum(-1, keepdim=True)
        for source in sources():
            k, v = block
            probabilities = (scores(q, k, source) - context.logsum).exp()
            dscores = probabilities * (dmixed @ v.mT - row_sums) * scale
            dq += dscores @ k
            dblock[0] += (dscores.mT @ q).sum(2, keepdim=True)
            dblock[1] += (probabilities.mT @ dmixed).sum(2, keepdim=True)
            block = pass_on(block) if source != sources()[-1] else block
            dblock = pass_on(dblock)
        return dq, dblock


def sources() -> list[int]:
    """The ranks whose blocks come by, this rank first."""
    return [(dist.get_rank() - hop) % dist.get_world_size() for hop in range(dist.get_world_size())]


def scores(q: Tensor, k: Tensor, source: int) -> Tensor:
    ranks, tokens = dist.get_world_size(), q.shape[-2] * dist.get_world_size()
    own, others = zigzag(tokens, ranks, dist.get_rank()), zigzag(tokens, ranks, source)
    hidden = (own[:, None] < others[None, :]).to(q.device)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)


def pass_on(block: Tensor) -> Tensor:
    """Send a block to the right, and return what comes from the left."""
    rank, ranks, arriving = dist.get_rank(), dist.get_world_size(), torch.empty_like(block)
    sending = dist.P2POp(dist.isend, block.contiguous(), (rank + 1) % ranks)
    receiving = dist.P2POp(dist.irecv, arriving, (rank - 1) % ranks)
    if ranks > 1:
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()
    return arriving if ranks > 1 else block


class HeadsAttention(CutAttention):
    """Attention with some of the heads, for all tokens."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ranks, tokens = dist.get_world_size(), q.shape[2] * dist.get_world_size()
        share(q.shape[1], "heads", ranks)
        k, v = (each.repeat_interleave(max(1, ranks // each.shape[1]), dim=1) for each in (k, v))
        arrived = torch.cat([zigzag(tokens, ranks, rank) for rank in range(ranks)])
        q, k, v = (AllToAll.apply(each, 1, 2)[:, :, arrived.argsort()] for each in (q, k, v))
        return AllToAll.apply(super().mix(q, k, v)[:, :, arrived], 2, 1)


class AllToAll(torch.autograd.Function):
    """Cut an array along one dimension, send a part to each rank, and join what comes along another."""

    @staticmethod
    def forward(context, whole: Tensor, cut: int, joined: int) -> Tensor:
        context.dimensions = cut, joined
        leaving = torch.stack(whole.chunk(dist.get_world_size(), cut))
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving)
        return torch.cat(arriving.unbind(), joined)

    @staticmethod
    def backward(context, dwhole: Tensor) -> tuple[Tensor, None, None]:
        return AllToAll.apply(dwhole, *context.dimensions[::-1]), None, None


def ring(job: Job) -> Outcome:
    return by_tokens(job, RingAttention)


def ulysses(job: Job) -> Outcome:
    return by_tokens(job, HeadsAttention)


def by_tokens(job: Job, attention: type[CutAttention]) -> Outcome:
    """Each rank takes its tokens of all sequences. The mean of the ranks' gradients is DDP's business."""
    model = Transformer(job.config)
    for layer in model.layers.values():
        layer.attention = attention(job.config)
    model = DistributedDataParallel(draw(model, job.config).to(job.device))
    mine = zigzag(job.config.sequence, dist.get_world_size(), dist.get_rank())
    optimizer, losses = job.make_optimizer(model.parameters()), []
    for tokens, targets in job.batches():
        loss = loss_fn(model(tokens[:, mine]), targets[:, mine])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return Outcome(losses, model)


class LibraryAttention(Attention):
    """Attention whose positions are cut with the tokens, as a buffer."""

    def __init__(self, config: Config, buffer: Tensor) -> None:
        super().__init__(config)
        self.buffer = buffer

    def positions(self, tokens: int) -> Tensor:
        return self.buffer


def library(job: Job) -> Outcome:
    """torch's context_parallel cuts these buffers along the sequence, and every attention inside it is a
    ring."""
    mesh, at = init_device_mesh("cuda", (dist.get_world_size(),)), torch.arange(job.config.sequence).cuda()
    model: nn.Module = Transformer(job.config)
    for layer in model.layers.values():
        layer.attention = LibraryAttention(job.config, at)
    model = DistributedDataParallel(draw(model, job.config).to(job.device))
    optimizer, losses = job.make_optimizer(model.parameters()), []
    for tokens, targets in job.batches():
        buffers = [tokens, targets, at]
        cut = context_parallel(
            mesh, buffers=buffers, buffer_seq_dims=[1, 1, 0], no_restore_buffers=set(buffers[:2])
        )
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), cut:
            loss = loss_fn(model(buffers[0]), buffers[1])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return Outcome(losses, model)


STRATEGIES = {"ring": ring, "Ulysses": ulysses}
if torch.cuda.is_available():
    STRATEGIES["library"] = library

if __name__ == "__main__":
    main(__doc__, STRATEGIES)
