"""Embedding and head, the units at the two ends of the model; their table is cut over tp by its rows, the
vocabulary.

Idea   A rank looks up the rows that it has, and one sum completes them. The loss needs the logits' maximum
       and sum over tp, and never the logits of other ranks.
Cost   As in layers.py, beside the mathematics.
Limit  Tied embeddings are two equal tables, also where one rank has both ends: it holds, reduces and steps
       two, where Megatron and torch have one.
"""

import numpy as np

from ndparallel.base.bfloat16 import in_float32
from ndparallel.model.layers import norm_parameter
from ndparallel.model.units import Context, Saved, Unit, rows
from ndparallel.parallel.slices import Parameter, part


def table(context: Context, index: tuple[slice, ...]) -> Parameter:
    """The vectors of the vocabulary: small where they are logits' weights too."""
    config = context.config
    return Parameter(
        "embedding.table", (config.vocab, config.hidden), index, config.hidden**-0.5 if config.tied else 1.0
    )


class TiedTable(Unit):
    """The table of tied embeddings, as one end of the model has it. It is a unit of its own inside embedding
    and head, so that its bucket is cut into the same shards at both ends (as Megatron-Core's is,
    megatron/core/distributed/param_and_grad_buffer.py)."""

    def __init__(self, end: Unit, index: tuple[slice, ...], is_copy: bool) -> None:
        super().__init__(f"{end.name}.tied", end.context, [table(end.context, index)])
        self.is_copy = is_copy

    def fused(self, flat: np.ndarray, named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"logits": named["table"]}


def with_table(end: Unit) -> Unit:
    """Return the unit that has the embedding's or the head's table: the one inside, where it is tied."""
    return end.inner[0] if end.inner else end


def held(symbols: np.ndarray, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    """Return which symbols are in this slice of the vocabulary, and their places in it; 0 for the others."""
    mine = (symbols >= rows.start) & (symbols < rows.stop)
    return mine, np.where(mine, symbols - rows.start, 0)


class Embedding(Unit):
    """Bytes to vectors; tp cuts the vocabulary, and sums."""

    def __init__(self, name: str, context: Context) -> None:
        config = context.config
        self.rows = part(config.vocab, context.tp.size, context.tp.index)
        index = (self.rows, slice(0, config.hidden))
        super().__init__(name, context, [] if config.tied else [table(context, index)])
        self.inner += [TiedTable(self, index, is_copy=False)] * config.tied

    def forward(self, tokens: np.ndarray, microbatch: int) -> np.ndarray:
        """Look up the rows of tokens (s, b): (s, b, h)."""
        self.context.phase = "forward"
        self.elementwise("lookup", tokens.size * self.context.config.hidden, 2)
        self.keep(microbatch).keep(tokens=tokens)
        mine, places = held(tokens, self.rows)
        x = with_table(self).w["table"][places]
        x[~mine] = 0
        return self.context.tp.row_output(x)

    def backward_input(self, dy: np.ndarray, microbatch: int) -> None:
        """Add up the table's gradient, or keep what it takes; nothing comes before the embedding."""
        self.context.phase = "backward"
        if self.defers:
            self.keep(microbatch).keep(dy=dy)
        else:
            self.add_rows(dy, microbatch)

    def backward_weight(self, microbatch: int) -> None:
        self.context.phase = "weight"
        self.add_rows(self.keep(microbatch).take("dy"), microbatch)

    def add_rows(self, dy: np.ndarray, microbatch: int) -> None:
        dy, tokens = self.context.tp.row_output_backward(dy), self.keep(microbatch).take("tokens")
        self.elementwise("lookup weight", dy.size, 3)
        mine, places = held(tokens, self.rows)
        np.add.at(with_table(self).g["table"], places[mine], dy[mine])


class Head(Unit):
    """The last norm, the logits and the loss; tp cuts the vocabulary and never gathers the logits."""

    begins_backward = True

    def __init__(self, name: str, context: Context) -> None:
        h, vocab = context.config.hidden, context.config.vocab
        self.rows = part(vocab, context.tp.size, context.tp.index)
        index = (self.rows, slice(0, h))
        tied, logits = context.config.tied, Parameter(f"{name}.logits", (vocab, h), index, h**-0.5)
        super().__init__(name, context, [norm_parameter(f"{name}.norm", context), *[logits] * (not tied)])
        self.inner += [TiedTable(self, index, is_copy=True)] * tied

    def forward(self, x: np.ndarray, microbatch: int) -> float:
        """Return the mean loss, in nats per token, of predicting the context's targets (s, b) from x
        (s, b, h)."""
        self.context.phase = "forward"
        tp, targets = self.context.tp, self.context.targets[microbatch]
        normed = self.norm("norm", x)
        gathered = tp.column_input(normed)
        logits = self.matmul("logits", rows(gathered), with_table(self).w["logits"].T)
        logits = in_float32(logits).reshape(*targets.shape, -1)
        loss = self.cross_entropy(logits, targets)
        probabilities = self.context.in_dtype(logits)
        saved = self.keep(microbatch)
        saved.keep(x=x, normed=normed if tp.regathers else gathered, probabilities=probabilities)
        self.context.losses[microbatch] = loss
        return loss

    def cross_entropy(self, logits: np.ndarray, targets: np.ndarray) -> float:
        """Return the mean loss of the targets (s, b), and make probabilities of this rank's logits
        (s, b, vocab/tp), in place."""
        reduce = self.context.tp.reduce
        self.elementwise("cross_entropy", logits.size, 2)
        logits -= reduce(logits.max(axis=-1), "max")[..., None]
        mine, places = held(targets, self.rows)
        target = reduce(np.where(mine, np.take_along_axis(logits, places[..., None], axis=-1)[..., 0], 0))
        np.exp(logits, out=logits)
        total = reduce(logits.sum(axis=-1))
        logits /= total[..., None]
        return float(np.mean(np.log(total) - target))

    def backward_input(self, dy: None, microbatch: int) -> np.ndarray:
        """Start the backward pass: the logits' gradient is the probabilities less 1 at each target."""
        self.context.phase = "backward"
        saved = self.keep(microbatch)
        targets, probabilities = self.context.targets[microbatch], saved.take("probabilities")
        self.elementwise("cross_entropy", probabilities.size, 2)
        dlogits = self.less_targets(probabilities, targets)
        dlogits *= self.context.loss_scale / targets.size
        dgathered = self.matmul("logits", rows(dlogits), with_table(self).w["logits"])
        dgathered = dgathered.reshape(*targets.shape, -1)
        if self.defers:
            saved.keep(dlogits=dlogits)
        else:
            self.add_weight(dlogits, saved)
        return self.norm_backward("norm", self.context.tp.column_input_backward(dgathered), saved)

    def backward_weight(self, microbatch: int) -> None:
        self.context.phase = "weight"
        saved = self.keep(microbatch)
        self.add_weight(saved.take("dlogits"), saved)

    def add_weight(self, dlogits: np.ndarray, saved: Saved) -> None:
        normed = saved.take("normed")
        gathered = self.context.tp.gather(normed) if self.context.tp.regathers else normed
        gradient = self.matmul("logits weight", rows(dlogits).T, rows(gathered))
        with_table(self).g["logits"] += gradient

    def less_targets(self, probabilities: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Take 1 off the targets' probabilities, in place."""
        mine, places = held(targets, self.rows)
        probabilities[(*np.nonzero(mine), places[mine])] -= 1
        return probabilities
