"""The two ends of the model, and prediction layers, which stand at its end.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from gpu import Operation
from ndparallel.planner.layers.operations import CollectiveOp, Layer
from ndparallel.planner.layers.parts import LayerParts
from ndparallel.planner.models.matrices import Linear
from ndparallel.planner.stages import padded_vocab


class ModelEnds(LayerParts):
    """Writes the lists of the embedding and of the head."""

    def embedding(self) -> Layer:
        """Every tp rank looks up what it has of the vocabulary; the sum over them is counted where the stack
        says so."""
        into, back = self.lookup(False), self.lookup(True)
        normed = [[self.norm(way)] * self.shape.embedding_norm for way in (False, True)]
        summed = self.tp.sum_parts(into) if self.stack.vocabulary_sums else []
        gathered = self.tp.gather(back) if self.stack.vocabulary_sums else []
        backward: tuple[list, list] = ([], [*normed[True], *gathered, back])
        return Layer(
            [into, *summed, *normed[False]], [], *(backward if self.stack.table_waits else reversed(backward))
        )

    def lookup(self, backward: bool) -> Operation:
        """Copy rows of the table, or add up their gradients in it."""
        return self.elementwise("lookup", self.share.rows * self.shape.hidden, 3 if backward else 2)

    def head(self) -> Layer:
        """Final norm, logits and loss: forward, backward for inputs, backward for weights."""
        vocab = padded_vocab(self.shape, self.stack, self.share.tp)
        matrix = Linear("logits", self.shape.hidden, vocab, False, "columns")
        logits, back, weight = (self.product(matrix, side) for side in ("forward", "dgrad", "wgrad"))
        whole, loss = self.whole_logits(vocab), self.loss(vocab)
        return Layer(
            [self.norm(False), *self.tp.gather(logits), logits, *whole, loss, *self.sums_of_loss()],
            [],
            [loss, back, *self.tp.sum_parts(weight, True), self.norm(True)],
            self.weight(matrix),
        )

    def whole_logits(self, vocab) -> list[CollectiveOp]:
        """All logits of every token, where no rank can use its own alone."""
        if self.stack.parallel_loss:
            return []
        return [CollectiveOp("tp logits", "all_gather", "tp", self.share.rows * vocab * self.itemsize)]

    def loss(self, vocab) -> Operation:
        elements = self.share.rows * vocab / (self.share.tp if self.stack.parallel_loss else 1)
        return self.elementwise("loss", elements, self.stack.logit_bytes / 2 / self.itemsize)

    def sums_of_loss(self) -> list[CollectiveOp]:
        """Sums over tp of a number for each token: the largest logit, the target's, the sum of
        exponentials."""
        size = self.share.rows * self.itemsize
        return [CollectiveOp("tp all_reduce", "all_reduce", "tp", size)] * (3 * self.stack.vocabulary_sums)

    def with_prediction(self, layer: Layer) -> Layer:
        """The head, and for each prediction layer two norms, the matrix that joins two hidden states, a
        `layer`, and the head again (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""
        head, times = self.head(), self.shape.prediction_layers
        one = [sum(lists, []) for lists in zip(self.joined(), layer, head)]
        return Layer(*(mine + more * times for mine, more in zip(head, one)))

    def joined(self) -> Layer:
        """Two hidden states made one; of a column matrix tp ranks hold parts of the output, wanted whole."""
        (matrix,) = self.shape.prediction()
        into, back = (self.product(matrix, side) for side in ("forward", "dgrad"))
        whole = CollectiveOp("tp all_gather", "all_gather", "tp", self.tp.activation_bytes)
        return Layer(
            [self.norm(False)] * 2 + [*self.tp.gather(into) * 2, into, whole],
            [],
            [back, *self.tp.sum_parts(back, True), *[self.norm(True)] * 2],
            self.weight(matrix),
        )
