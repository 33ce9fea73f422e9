"""EP: expert parallelism. The GPUs share out the experts, and tokens travel to theirs.

Idea    A mixture of experts has many small MLPs, and sends each token through the few that a router chooses.
        So it has many more weights than a token is multiplied by. GPUs that have different tokens can share
        the work in two ways:
            everywhere    every GPU has all experts, as in data parallelism: no token travels, and the
                          gradients of all experts are averaged
            divided       every GPU has some of the experts: a token's row travels to its experts, the result
                          back, and their gradients the same way again; an expert's gradient is complete
                          where it is
        Both can be mixed: ep divides dp. The ep ranks share out the experts, dp / ep ranks have the same
        ones, and average their gradients.
Cost    Divided: four all-to-alls of tokens * top_k * hidden, two forward and two backward, whatever the
        number of experts. Everywhere: an all-reduce of all experts' gradients, whatever the number of
        tokens.
Limit   The GPU with the most popular expert gets the most rows, and all wait for it. A capacity bounds it,
        and drops what is over it.

Glossary
    row           a token on its way to one of its experts
    dispatch      send the rows to their experts;  combine: the weighted sum of what comes back
    dispatcher    who sends how many rows to whom: known only when the router has chosen
    skewed        a router that has a favourite
    capacity      the most rows that an expert takes of a GPU's tokens, in even shares (capacity_factor)

Run     python ep_expert_parallel.py    and with --gpus-per-node 1, --memory, --sweep (experts, capacity)
"""

import sys

from gpu import GPU, Handle  # before numpy: it sets one BLAS thread a GPU

import numpy as np  # isort: skip
from ndparallel.lessons.expert_parallel import SWEEPS, mixture, notice
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.expert_layer import Batch, ExpertLayer
from ndparallel.training.job import Job
from ndparallel.training.overlapped import ddp_overlapped
from ndparallel.training.replica import Outcome

Array = np.ndarray


def dispatch(layer: ExpertLayer, batch: Batch) -> Handle:
    """Choose every token's experts, tell their GPUs how many rows are coming, and send the rows."""
    batch.dispatcher = layer.ep.dispatcher(layer.route(batch))
    return batch.dispatcher.to_experts(layer.permute(batch))


def dispatch_backward(layer: ExpertLayer, batch: Batch, drows: Array) -> Array:
    """The gradient of a token is the sum of its rows', and what comes through the router."""
    return layer.permute_backward(batch, drows) + layer.route_backward(batch)


def at_experts(layer: ExpertLayer, batch: Batch, rows: Array) -> Handle:
    """Run this GPU's experts on the rows that have arrived, and send the results back."""
    return batch.dispatcher.from_experts(layer.run_experts(batch, rows))


def at_experts_backward(layer: ExpertLayer, batch: Batch, dout: Array) -> Handle:
    """Send the rows' gradients back; add up those of the weights while they travel."""
    returning = batch.dispatcher.from_experts(layer.run_experts_backward(batch, dout))
    layer.experts_weight(batch)
    return returning


def combine(layer: ExpertLayer, batch: Batch, rows: Array) -> Array:
    """The sum of what a token's experts return, weighed by the router's probabilities."""
    return layer.weigh(batch, rows)


def combine_backward(layer: ExpertLayer, batch: Batch, dy: Array) -> Handle:
    """The results' gradients go to the experts by the way that the rows went."""
    return batch.dispatcher.to_experts(layer.weigh_backward(batch, dy))


def experts(gpu: GPU, job: Job) -> Outcome:
    """There and back, forward and backward. Where a GPU has all experts, no row leaves it."""
    return train(ExpertLayer(gpu, job))


def experts_skewed(gpu: GPU, job: Job) -> Outcome:
    """The same with a router that sends most tokens to expert 0: its GPU gets most rows."""
    return train(ExpertLayer(gpu, job, skew=2.0))


def train(layer: ExpertLayer) -> Outcome:
    for _ in layer.steps():
        (batch,) = layer.batches(1)
        arrived = dispatch(layer, batch).wait()
        returned = at_experts(layer, batch, arrived).wait()
        y = combine(layer, batch, returned)
        dy = layer.loss_gradient(y)
        arrived = combine_backward(layer, batch, dy).wait()
        returned = at_experts_backward(layer, batch, arrived).wait()
        dispatch_backward(layer, batch, returned)  # for the layer below
        layer.average_gradients()
    return layer.outcome


def experts_overlapped(gpu: GPU, job: Job) -> Outcome:
    """Two halves of the tokens: the rows of one travel while the experts compute those of the other."""
    layer = ExpertLayer(gpu, job)
    for _ in layer.steps():
        halves = layer.batches(2)
        arriving = [dispatch(layer, half) for half in halves]
        returning = [at_experts(layer, half, rows.wait()) for half, rows in zip(halves, arriving)]
        y = np.concatenate([combine(layer, half, rows.wait()) for half, rows in zip(halves, returning)])
        dys = np.array_split(layer.loss_gradient(y), 2)
        arriving = [combine_backward(layer, half, dy) for half, dy in zip(halves, dys)]
        returning = [at_experts_backward(layer, half, rows.wait()) for half, rows in zip(halves, arriving)]
        for half, rows in zip(halves, returning):
            dispatch_backward(layer, half, rows.wait())
        layer.average_gradients()
    return layer.outcome


def expert_parallel(gpu: GPU, job: Job) -> Outcome:
    """The whole model, with experts in place of every MLP (ndparallel/model/experts.py): 1D's loop, in which
    experts are averaged over the GPUs that have the same ones."""
    return ddp_overlapped(gpu, job)


def everywhere(gpus: int) -> Mesh:
    return Mesh(dp=gpus)


def divided(gpus: int) -> Mesh:
    return Mesh(dp=gpus, ep=gpus)


def mixed(gpus: int) -> Mesh:
    """Half as many parts as GPUs: two GPUs have the same experts."""
    return Mesh(dp=gpus, ep=max(1, gpus // 2))


MIXTURE = {"model": mixture}
STRATEGIES = [
    Strategy("experts, everywhere", experts, everywhere, MIXTURE, reference=experts),
    Strategy("experts, divided", experts, divided, MIXTURE, reference=experts),
    Strategy("experts, ep divides dp", experts, mixed, MIXTURE, reference=experts),
    Strategy("experts, overlapped", experts_overlapped, divided, MIXTURE, reference=experts),
    Strategy("experts, skewed", experts_skewed, divided, MIXTURE, reference=experts_skewed),
    Strategy("DP with experts", expert_parallel, everywhere, MIXTURE),
    Strategy("EP", expert_parallel, divided, MIXTURE),
    Strategy("EP across nodes", expert_parallel, divided, MIXTURE, {"gpus_per_node": 1}),
]

LESSON = Lesson(
    name="ep_expert_parallel",
    title="EP: expert parallelism",
    strategies=STRATEGIES,
    contrast=("experts, divided", "experts, skewed"),
    compare=("EP",),
    notice=notice,
    sweeps=SWEEPS,
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
