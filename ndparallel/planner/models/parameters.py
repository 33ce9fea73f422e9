"""Parameters of a model, counted by kind.

Idea   Kinds and not one sum, because they live in different places: tensor parallelism cuts the attention,
       expert parallelism deals out the experts, the first pipeline stage holds the embedding and the last one
       the head.
"""

from dataclasses import dataclass

from ndparallel.planner.models.kinds import has_window, is_linear


@dataclass(frozen=True)
class Parameters:
    """Parameters by kind. Attention, windowed and linear (attention), dense_mlp, router, expert,
    shared_experts and layer_norms are of one layer, expert of one expert.

    `attention` includes its own norms (of queries and keys, of latent vectors), `router` those that only a
    mixture has. A tied head counts 0: its matrix is the token embedding. A prediction layer is a layer and
    `prediction_head`, its projection and norms; published totals leave prediction layers out, and so do
    `total` and `active`.
    """

    token_embedding: int
    position_embedding: int
    embedding_norm: int
    attention: int
    windowed: int
    linear: int
    dense_mlp: int
    router: int
    expert: int
    shared_experts: int
    layer_norms: int
    final_norm: int
    head: int
    head_bias: int
    prediction_head: int
    prediction_layers: int
    dense_layers: int
    moe_layers: int
    windowed_layers: int
    linear_layers: int
    windowed_prediction: bool
    experts: int
    top_k: int

    @property
    def embedding(self) -> int:
        return self.token_embedding + self.position_embedding + self.embedding_norm

    @property
    def dense_layer(self) -> int:
        return self.attention + self.dense_mlp + self.layer_norms

    @property
    def moe_layer(self) -> int:
        return self._moe_layer(self.experts)

    @property
    def total(self) -> int:
        return self._model(self._moe_layer(self.experts))

    @property
    def active(self) -> int:
        """Parameters that one token uses: all but the experts it does not choose; the embedding counts
        (published figures differ in this: see the tests)."""
        return self._model(self._moe_layer(self.top_k))

    @property
    def prediction(self) -> int:
        """All prediction layers; the last kind of layer is theirs."""
        return self._prediction(self.experts)

    @property
    def prediction_active(self) -> int:
        """Parameters that one token uses in all prediction layers, the head again in each left out."""
        return self._prediction(self.top_k)

    def _prediction(self, experts: int) -> int:
        layer = self._moe_layer(experts) if self.moe_layers else self.dense_layer
        layer += self.windowed_prediction * (self.windowed - self.attention)
        return self.prediction_layers * (layer + self.prediction_head)

    def mixer(self, kind: str) -> int:
        """What mixes the tokens of a layer of this kind."""
        if is_linear(kind):
            return self.linear
        return self.windowed if has_window(kind) else self.attention

    def _moe_layer(self, experts: int) -> int:
        return self.attention + self.layer_norms + self.router + experts * self.expert + self.shared_experts

    def _model(self, moe_layer: int) -> int:
        layers = self.dense_layers * self.dense_layer + self.moe_layers * moe_layer
        layers += self.windowed_layers * (self.windowed - self.attention)
        layers += self.linear_layers * (self.linear - self.attention)
        return self.embedding + layers + self.final_norm + self.head + self.head_bias
