"""A mixture of experts in place of the MLP: a router sends every token to the few experts that suit it best.

Idea   A token passes through top_k of many small MLPs, so a model has many more parameters than a token pays
       for. What the router decides (ndparallel/model/routing.py) is different for every token, so tokens must
       travel to the ranks that hold their experts (ndparallel/parallel/expert.py). Under tensor parallelism
       each rank routes its own part of the tokens, and experts are sliced over all tp ranks, or over fewer.
Cost   top_k experts for a token, and the shared ones; four all-to-alls of the chosen rows a layer, two
       forward and two backward. The shared experts compute while rows travel to the experts, and the experts'
       weight gradients while gradients travel back.
Limit  Experts are multiplied one after another, a kernel each; the counts of rows, a few integers for each
       expert, are not counted as memory. tp divides the tokens of a sequence that a rank has.

Glossary
    rows        tokens at their experts: a token that goes to two experts is two rows
    routed      the tokens that this rank routes: its tp share
    permute     copy tokens to rows that are sorted by expert;  combine: the weighed sum of what the experts
                return
"""

import numpy as np

from gpu import Handle
from ndparallel.base.bfloat16 import in_float32
from ndparallel.model import functional, routing
from ndparallel.model.layers import Block, Gated, gated_parameters, norm_parameter, small_deviation
from ndparallel.model.units import Context, Routed, Saved, Unit, rows
from ndparallel.parallel.expert import TokenDispatcher
from ndparallel.parallel.slices import Parameter, part


class MoELayer(Gated):
    """Router, experts, and shared experts that every token goes to; etp cuts every expert, and ep shares them
    out."""

    norm, add = "norm2", "add2"

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self.ep, self.config = self.context.ep, self.context.config
        self.linears = {"router": "routed"}
        if self.config.shared_experts:
            self.linears |= {"down": "activated", "gate_up": "normed"}
        self.experts = LocalExperts(f"{block.name}.experts", self.context)
        block.inner.append(self.experts)
        self.dispatchers: dict[int, TokenDispatcher] = {}
        self.frequencies: dict[int, np.ndarray] = {}

    @staticmethod
    def parameters(name: str, context: Context) -> list[Parameter]:
        """Parameters that the dp ranks average: all but the experts. Every tp rank finds the part of the
        router's gradient that its tokens give."""
        config = context.config
        h = config.hidden
        router = (slice(0, config.experts), slice(0, h))
        shared = (
            gated_parameters(name, context, config.shared_experts * config.expert_ffn)
            if config.shared_experts
            else []
        )
        return [
            norm_parameter(f"{name}.norm2", context),
            Parameter(f"{name}.router", (config.experts, h), router, h**-0.5, shared_by=context.tp.size),
            *shared,
        ]

    def forward(self, x: np.ndarray, microbatch: int) -> np.ndarray:
        saved = self.saved(microbatch)
        normed = self.block.norm("norm2", x)
        saved.keep(x=x)
        routed = self.tp.share(normed)
        counted = self.route(routed, saved)
        dispatcher, arriving = self.permute(routed, saved)
        self.dispatchers[microbatch] = dispatcher
        y = x + self.shared_experts(normed, saved)
        out = self.experts.forward_rows(arriving.wait(), dispatcher, saved)
        mixed = self.combine(dispatcher.from_experts(out), saved)
        self.note(counted, microbatch, saved)
        self.block.elementwise("add2", y.size, 3)
        return y + self.tp.unshare(mixed)

    def backward_input(self, dy: np.ndarray, microbatch: int) -> np.ndarray:
        saved, dispatcher = self.saved(microbatch), self.dispatchers[microbatch]
        arriving, dgates = self.combine_backward(self.tp.share(dy), dispatcher, saved)
        dnormed = self.shared_experts_backward(dy, saved)
        returning = dispatcher.from_experts(self.experts.backward_rows(arriving.wait(), dispatcher, saved))
        if not self.block.defers:
            self.experts.rows_weight(self.dispatchers.pop(microbatch), saved)
        drouted = self.route_backward(dgates, microbatch, saved)
        drouted += self.permute_backward(returning, saved, drouted.shape)
        dx = self.block.norm_backward("norm2", dnormed + self.tp.unshare(drouted), saved)
        self.block.elementwise("add2", dx.size, 3)
        return dx + dy

    def backward_weight(self, microbatch: int) -> None:
        super().backward_weight(microbatch)
        self.experts.rows_weight(self.dispatchers.pop(microbatch), self.saved(microbatch))

    # ---- the router: which experts, and how busy they are

    def route(self, routed: np.ndarray, saved: Saved) -> Handle | None:
        """Choose every token's experts; count the choices, where a loss is to balance them."""
        logits = self.linear("router", routed, self.block.w["router"])
        self.block.elementwise("route", logits.size, 2)
        probabilities = functional.softmax(logits)
        chosen = routing.top_k(rows(probabilities), self.config.top_k)
        saved.keep(routed=routed, probabilities=probabilities, chosen=chosen)
        return (
            self.ep.sum_over_sequence(routing.balance_counts(chosen, in_float32(probabilities)))
            if self.config.balance_loss
            else None
        )

    def route_backward(self, dgates: np.ndarray, microbatch: int, saved: Saved) -> np.ndarray:
        """Return the routed tokens' gradient through the router: by the gates and by the balance loss."""
        self.block.elementwise("route", saved["probabilities"].size, 3)
        probabilities, chosen = saved.take("probabilities"), saved.take("chosen")
        dprobabilities = routing.gates_backward(
            dgates, rows(probabilities), chosen, self.config.renormalise
        ).reshape(probabilities.shape)
        if self.config.balance_loss:
            tokens = probabilities[..., 0].size * self.tp.size
            dprobabilities += self.frequencies.pop(microbatch) * (
                self.config.balance_loss * self.context.loss_scale / tokens
            )
        return self.linear_backward(
            "router", functional.softmax_backward(dprobabilities, probabilities), saved
        )

    def note(self, counted: Handle | None, microbatch: int, saved: Saved) -> None:
        """Say what became of the microbatch: who worked how much, what was dropped, the balance loss."""
        balance_loss = 0.0
        if counted:
            loss, self.frequencies[microbatch] = routing.balance(
                counted.wait(), self.config.sequence, self.config.top_k
            )
            balance_loss = self.config.balance_loss * loss
        went = self.dispatchers[microbatch]
        dropped = saved["chosen"].size - saved["order"].size
        self.context.routed[self.block.name, microbatch] = Routed(
            tuple(went.by_expert), tuple(went.sent), dropped, balance_loss
        )

    # ---- from tokens to rows and back, each forward above its backward

    def permute(self, routed: np.ndarray, saved: Saved) -> tuple[TokenDispatcher, Handle]:
        """Send the routed tokens (s, b, h) to their experts."""
        order, counts = self.assign(saved["chosen"])
        saved.keep(order=order)
        dispatcher = self.ep.dispatcher(counts)
        permuted = routing.permute(rows(routed), order, self.config.top_k)
        self.block.elementwise("permute", permuted.size, 2)
        return dispatcher, dispatcher.to_experts(permuted)

    def assign(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the choices (t, k) that experts take, in order, and how many each expert takes (E)."""
        config = self.config
        limit = routing.capacity(config.capacity_factor, len(chosen), config.top_k, config.experts)
        return routing.assign(chosen, config.experts, limit)

    def permute_backward(self, returning: Handle, saved: Saved, shape: tuple[int, ...]) -> np.ndarray:
        drows, order, (s, b, h) = returning.wait(), saved.take("order"), shape
        self.block.elementwise("permute", s * b * h + drows.size, 1)
        return routing.permute_backward(drows, order, s * b, self.config.top_k).reshape(shape)

    def combine(self, returning: Handle, saved: Saved) -> np.ndarray:
        """Return the weighted sum of the experts' outputs for every routed token, (s, b, h)."""
        returned, routed, order = returning.wait(), saved["routed"], saved["order"]
        saved.keep(returned=returned)
        self.block.elementwise("combine", routed.size + returned.size, 1)
        return routing.combine(returned, self.gates(saved), order).reshape(routed.shape)

    def combine_backward(
        self, dmixed: np.ndarray, dispatcher: TokenDispatcher, saved: Saved
    ) -> tuple[Handle, np.ndarray]:
        """Send the experts their outputs' gradients; return the gates'."""
        order = saved["order"]
        self.block.elementwise("combine", dmixed.size + 2 * saved["returned"].size, 1)
        dreturned, dgates = routing.combine_backward(
            rows(dmixed), saved.take("returned"), self.gates(saved), order
        )
        return dispatcher.to_experts(dreturned), dgates

    def gates(self, saved: Saved) -> np.ndarray:
        return routing.gates(rows(saved["probabilities"]), saved["chosen"], self.config.renormalise)

    # ---- the shared experts: one gated MLP, as wide as all of them

    def shared_experts(self, normed: np.ndarray, saved: Saved) -> np.ndarray | float:
        if not self.config.shared_experts:
            return 0.0
        gathered = self.tp.column_input(normed)
        if self.tp.size == 1:
            saved.keep_as("normed", "routed")
        else:
            saved.keep(normed=normed if self.tp.regathers else gathered)
        return self.linear_over_tp(
            "down", self.activate(gathered, saved), self.block.w["down"], self.tp.row_output
        )

    def shared_experts_backward(self, dy: np.ndarray, saved: Saved) -> np.ndarray | float:
        if not self.config.shared_experts:
            return 0.0
        dgate_up = self.activate_backward(dy, saved)
        return self.linear_backward("gate_up", dgate_up, saved, self.tp.column_input_backward)


class LocalExperts(Unit):
    """The experts of this rank, or its slices of them: all gates and ups in one array, all downs in another.

    Their weights' gradients sum up the tokens of all ep ranks, each rank's weighed as a mean over its own.
    They are divided by `ExpertParallel.weight`, and averaged over the replicas like any other.
    """

    is_experts = True

    def __init__(self, name: str, context: Context) -> None:
        config, ep = context.config, context.ep
        h, ffn = config.hidden, config.expert_ffn
        mine = part(config.experts, ep.size, ep.index)
        ffn_part = part(ffn, ep.etp.size, ep.etp.index)
        everything = slice(0, h)
        gate_up = Parameter(
            f"{name}.gate_up", (config.experts, 2, ffn, h), (mine, slice(0, 2), ffn_part, everything), h**-0.5
        )
        down = Parameter(
            f"{name}.down", (config.experts, h, ffn), (mine, everything, ffn_part), small_deviation(context)
        )
        super().__init__(name, context, [gate_up, down])

    def fused(self, flat: np.ndarray, named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """An expert's gate and up are one matmul."""
        gate_up = named["gate_up"]
        return {"gate_up": gate_up.reshape(len(gate_up), -1, gate_up.shape[-1])}

    def forward_rows(self, rows: np.ndarray, dispatcher: TokenDispatcher, saved: Saved) -> np.ndarray:
        """Run every expert on its rows (r, h)."""
        self.sort(rows, dispatcher)
        gate_up = self.multiply("gate_up", rows, self.w["gate_up"].swapaxes(1, 2), dispatcher)
        activated = functional.swiglu(gate_up)
        self.charge_swiglu(activated, 3, dispatcher)
        out = self.multiply("down", activated, self.w["down"].swapaxes(1, 2), dispatcher)
        saved.keep(rows=rows, **{"expert gate_up": gate_up, "expert activated": activated})
        self.sort(rows, dispatcher)
        return out

    def backward_rows(self, dout: np.ndarray, dispatcher: TokenDispatcher, saved: Saved) -> np.ndarray:
        """Return the gradient of the rows; keep the inputs of the weights' gradients."""
        self.sort(dout, dispatcher)
        dactivated = self.multiply("down", dout, self.w["down"], dispatcher)
        dgate_up = functional.swiglu_backward(dactivated, saved.take("expert gate_up"))
        self.charge_swiglu(dactivated, 5, dispatcher)
        drows = self.multiply("gate_up", dgate_up, self.w["gate_up"], dispatcher)
        saved.keep(**{"d expert down": dout, "d expert gate_up": dgate_up})
        self.sort(dout, dispatcher)
        return drows

    def multiply(
        self, name: str, rows: np.ndarray, weights: np.ndarray, dispatcher: TokenDispatcher
    ) -> np.ndarray:
        """Multiply every expert's rows, of all (r, k), by its own of the weights (experts, k, n): (r, n)."""
        products = np.empty_like(rows, shape=(rows.shape[0], weights.shape[-1]))
        for expert, its in dispatcher.busy_experts():
            products[its] = self.matmul(name, rows[its], weights[expert])
        return products

    def charge_swiglu(self, activated: np.ndarray, passes: int, dispatcher: TokenDispatcher) -> None:
        """Charge for the activation of all rows (r, ffn), a kernel for every expert's."""
        for _, its in dispatcher.busy_experts():
            self.elementwise("swiglu", activated[its].size, passes)

    def rows_weight(self, dispatcher: TokenDispatcher, saved: Saved) -> None:
        """Add up the weights' gradients; those of an expert without rows stay as they are."""
        for name, inputs in {"down": saved.take("expert activated"), "gate_up": saved.take("rows")}.items():
            dy = saved.take(f"d expert {name}")
            for expert, its in dispatcher.busy_experts():
                gradient = self.matmul(f"{name} weight", dy[its].T, inputs[its])
                gradient /= self.context.ep.weight
                self.g[name][expert] += gradient

    def sort(self, rows: np.ndarray, dispatcher: TokenDispatcher) -> None:
        """Charge for bringing together what several ranks sent for one expert, or for parting it again."""
        if dispatcher.needs_sorting:
            self.elementwise("sort", rows.size, 2)
