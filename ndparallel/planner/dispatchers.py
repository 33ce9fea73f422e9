"""Token dispatchers: how the rows of a mixture of experts get to their experts and back.

Idea   A dispatcher says how often a row travels, and how many copies of it kernels make on its way. One
       record each, counted in Megatron-Core's code: megatron/core/transformer/moe/token_dispatcher.py
       (core_v0.16.0), and moe_utils.py for permutations.
Cost   Passes over rows, of a forward pass: dispatch and combine. The backward pass makes the same copies.
Limit  A padded row costs nothing but the copy of all rows that padding takes.

Glossary
    choice    one expert of a token;  own: rows of the rank's tokens, one each
    sent      rows that leave, one for each choice;  arriving: rows that come, one for each token that
              chose an expert of the rank;  received: rows of the rank's experts, one for each choice
    once      a token's row travels once to a node, and once to a rank, however many experts it has there
    fused     Transformer Engine's permutation, which reads a token's row once (--moe-permute-fusion); else
              index_select reads it for each choice, and scatter_add reads and writes what it adds to
    padding   of each expert's rows to what a product of 8 bits needs (experts.py, quantization_padding),
              where the dispatcher has not done so
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dispatcher:
    """One way to experts and back; numbers are passes over rows, reads and writes."""

    name: str
    once: bool = False
    gathers: bool = False  # every rank gets the rows of all, and its part of their sum
    own: int = 0
    sent: int = 0
    unfused: int = 0  # over the rows that the permutation makes, where it is not fused
    arriving: int = 0
    received: int = 0
    sorts: int = 0  # over received rows, where a rank has several experts
    pads: int = 0


_ALL = (
    # MoEAlltoAllTokenDispatcher: permute, sort by expert; back the same way
    Dispatcher("alltoall", own=2, sent=2, unfused=3, sorts=4, pads=4),
    # MoEAllGatherTokenDispatcher: gather all tokens, permute those of the rank's experts; back, scatter sums
    Dispatcher("allgather", gathers=True, arriving=2, received=2, unfused=3, pads=4),
    # _DeepepManager: rows are copied by the kernels that send them, and permuted where they arrive
    Dispatcher("deepep", once=True, arriving=2, received=2, unfused=3, pads=4),
    # _HybridEPManager: rows are copied where other ranks can read them, and the permutation pads
    Dispatcher("hybridep", once=True, own=2, arriving=2, received=2),
)
DISPATCHERS = {one.name: one for one in _ALL}

# DeepEP's kernels, as Megatron-Core calls them (get_buffer in megatron/core/transformer/moe/fused_a2a.py)
DEEPEPS_NODE = 8  # GPUs on one NVLink: LEGACY_NUM_MAX_NVL_PEERS in csrc/kernels/legacy/compiled.cuh
# ranks that get_dispatch_config and get_combine_config know (deep_ep/buffers/legacy.py), and those that
# release 1.2.1 does not
DEEPEPS_RANKS, DEEPEPS_LATER_RANKS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160), (48, 96)
