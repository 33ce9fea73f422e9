"""Bytes at the head of the model: logits, and what goes into them."""

from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.kept import normed_bytes
from ndparallel.planner.layers.layer import LayerLists, lists_of
from ndparallel.planner.layers.operations import HALF
from ndparallel.planner.stages import padded_vocab, table_elements


def logits_bytes(job: TrainingJob, plan: Plan):
    """Bytes at the head: logits while the loss turns round, the last norm's input and output, the logits of
    other microbatches before and after they are joined, and the head's dummy gradient."""
    stack, shape, share = job.stack, job.shape, plan.share(job)
    kept = (job.half and stack.logits_kept_half) or stack.logits_kept
    kept = kept + stack.logits_kept_more * stack.parallel_loss * (plan.tp > 1)
    # of other microbatches, and joined with this one's
    whole = stack.keeps_outputs * (plan.pp > 1) * (2 * plan.microbatches(job) - 1)
    vocab = padded_vocab(shape, stack, plan.tp)
    logits = share.rows * vocab / (plan.tp if stack.parallel_loss else 1)
    dummy = stack.dummy_gradients * (not job.adapters) * table_elements(job, plan.tp) * HALF
    head = logits * kept + head_input_bytes(lists_of(job, plan))
    return head * (1 + shape.prediction_layers) + logits * HALF * whole + dummy


def head_input_bytes(lists: LayerLists):
    """Bytes of the last norm's input and output, which may be gathered into a copy."""
    share, width = lists.share, lists.shape.hidden * lists.itemsize
    if not (lists.stack.gathers_head and share.sequence_parallel):
        return normed_bytes(lists)
    copies = 1 + (share.tp > 1) * (share.micro_batch > 1)
    return (share.shard + share.rows * copies) * width
