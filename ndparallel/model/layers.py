"""The transformer block: attention and MLP; each forward next to its backward, priced, and parallel over tp.
vocabulary.py has the other units, embedding and head.

Idea   One implementation for every layout: the single GPU is the case where every group has one rank. Units
       chain: forward(x, microbatch) from the tokens to the loss, backward(dy, microbatch) from None to None.
       A backward pass has two halves that a pipeline may part: `backward_input` (I) hands the gradient on,
       `backward_weight` (W) adds up the weights' gradients, any time later.
Cost   Every operation says its own beside its mathematics: a matmul (m, k) x (k, n) takes 2mnk FLOPs, what
       works element by element moves so many arrays through memory.
Limit  What is transient inside a block is not counted as memory; what waits for the backward pass is, to the
       byte.

Glossary
    sublayer   attention or MLP, with its norm before it and its residual around it
    linear     a sublayer's matmul: the name of its weight (several weights side by side are one matmul) and
               of the input it saved
"""

from collections.abc import Callable
from weakref import proxy

import numpy as np

from ndparallel.model import functional
from ndparallel.model.attention import attention_core
from ndparallel.model.units import Context, Saved, Unit, rows
from ndparallel.parallel.slices import Parameter, part, whole


class SubLayer:
    """x + f(norm(x)): what attention and MLP have in common. `linears` maps each matmul to the name of its
    saved input."""

    norm: str
    add: str
    linears: dict[str, str]

    def __init__(self, block: "Block") -> None:
        # weak, so that a model is set free with its last user: no circle keeps its arrays
        self.block: Block = proxy(block)
        self.context, self.tp = block.context, block.context.tp

    @staticmethod
    def parameters(name: str, context: Context) -> list[Parameter]:
        """The sublayer's parameters in a block of this name, its norm first."""
        raise NotImplementedError

    def forward(self, x: np.ndarray, microbatch: int) -> np.ndarray:
        raise NotImplementedError

    def backward_input(self, dy: np.ndarray, microbatch: int) -> np.ndarray:
        raise NotImplementedError

    def saved(self, microbatch: int) -> Saved:
        return self.block.keep((self.norm, microbatch))

    # ---- the two ends: norm and gather, reduce and residual

    def normed_input(self, x: np.ndarray, saved: Saved) -> np.ndarray:
        """Norm and gather; keep the residual and the matmul's input."""
        normed = self.block.norm(self.norm, x)
        gathered = self.tp.column_input(normed)
        saved.keep(x=x, normed=normed if self.tp.regathers else gathered)
        return gathered

    def input_backward(self, name: str, dlinear: np.ndarray, dy: np.ndarray, saved: Saved) -> np.ndarray:
        dnormed = self.linear_backward(name, dlinear, saved, self.tp.column_input_backward)
        dx = self.block.norm_backward(self.norm, dnormed, saved)
        self.block.elementwise(self.add, dx.size, 3)
        dx += dy
        return dx

    def output(self, name: str, inner: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Multiply, sum what the ranks have and add the residual."""
        y = self.linear_over_tp(name, inner, self.block.w[name], self.tp.row_output)
        self.block.elementwise(self.add, y.size, 3)
        y += x
        return y

    # ---- a matmul and the two of its backward pass

    def linear(self, name: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """(s, b, k) by the transpose of w (n, k): (s, b, n)."""
        return self.block.matmul(name, rows(x), w.T).reshape(x.shape[0], x.shape[1], -1)

    def linear_over_tp(self, name: str, x: np.ndarray, w: np.ndarray, collective: Callable) -> np.ndarray:
        """Multiply (s, b, k) by w's transpose, then sum over the ranks; cut in parts, one is summed while
        the next is computed."""
        if self.tp.parts == 1 or self.tp.size == 1:
            return collective(self.linear(name, x, w))
        pieces = np.split(x, self.tp.parts)
        handles = [self.tp.reduce(self.linear(name, piece, w), async_op=True) for piece in pieces]
        return np.concatenate([handle.wait() for handle in handles])

    def linear_backward(
        self, name: str, dy: np.ndarray, saved: Saved, collective: Callable | None = None
    ) -> np.ndarray:
        """Return the input's gradient; add up the weight's now, or keep what that takes until somebody asks
        for it."""
        if collective and self.tp.overlaps and not self.block.defers:
            return self.overlapped_backward(name, dy, saved)
        w = self.block.w[name]
        dx = self.linear_over_tp(name, dy, w.T, collective) if collective else self.linear(name, dy, w.T)
        if self.block.defers:
            saved.keep(**{f"d {name}": dy})
        else:
            self.linear_weight(name, dy, saved)
        return dx

    def overlapped_backward(self, name: str, dy: np.ndarray, saved: Saved) -> np.ndarray:
        """Return the input's gradient of a column-parallel matmul: its sum travels beside the weight's
        gradient, and an input that is gathered again beside the input's gradient."""
        x = saved.take(self.linears[name])
        gathering = self.tp.gather(x, async_op=True) if self.keeps_shard(name) else None
        dx = self.linear(name, dy, self.block.w[name].T)
        summing = self.tp.start_column_input_backward(dx)
        self.add_weight(name, dy, gathering.wait() if gathering else x)
        return summing.wait()

    def linear_weight(self, name: str, dy: np.ndarray, saved: Saved) -> None:
        x = saved.take(self.linears[name])
        self.add_weight(name, dy, self.tp.gather(x) if self.keeps_shard(name) else x)

    def keeps_shard(self, name: str) -> bool:
        """Whether only this rank's shard of a matmul's input is saved, to be gathered again."""
        return self.tp.regathers and self.linears[name] == "normed"

    def add_weight(self, name: str, dy: np.ndarray, x: np.ndarray) -> None:
        self.block.g[name] += self.block.matmul(f"{name} weight", rows(dy).T, rows(x))

    def backward_weight(self, microbatch: int) -> None:
        saved = self.saved(microbatch)
        for name in self.linears:
            self.linear_weight(name, saved.take(f"d {name}"), saved)


class Attention(SubLayer):
    """Causal self-attention with rotary positions; tp cuts it by heads, cp by tokens."""

    norm, add = "norm1", "add1"
    linears = {"out": "mixed", "qkv": "normed"}

    def __init__(self, block: "Block") -> None:
        super().__init__(block)
        self.core = attention_core(self.block)
        self.rotations, d = self.context.rotations(), self.context.config.head_dim
        queries, keys = (parameter.shape[0] // d for parameter in block.parameters[1:3])
        # heads of q, and of q and k, which alone are turned
        self.queries, self.turned = queries, queries + keys

    @staticmethod
    def parameters(name: str, context: Context) -> list[Parameter]:
        """q is cut by rows (outputs), out by columns (inputs); k and v by heads, and where there are fewer of
        them than tp ranks, several ranks hold the same one."""
        config, tp, i = context.config, context.tp.size, context.tp.index
        h, d = config.hidden, config.head_dim
        q = part(config.heads * d, tp, i)
        kv = kv_rows(config.kv_heads, d, tp, i)
        kv_shared = max(1, tp // config.kv_heads)
        everything, deviation = slice(0, h), h**-0.5
        return [
            norm_parameter(f"{name}.norm1", context),
            Parameter(f"{name}.q", (config.heads * d, h), (q, everything), deviation),
            Parameter(f"{name}.k", (config.kv_heads * d, h), (kv, everything), deviation, kv_shared),
            Parameter(f"{name}.v", (config.kv_heads * d, h), (kv, everything), deviation, kv_shared),
            Parameter(f"{name}.out", (h, config.heads * d), (everything, q), small_deviation(context)),
        ]

    def forward(self, x: np.ndarray, microbatch: int) -> np.ndarray:
        saved = self.saved(microbatch)
        qkv = self.linear("qkv", self.normed_input(x, saved), self.block.w["qkv"])
        heads = qkv.reshape(*qkv.shape[:2], -1, self.context.config.head_dim)
        qk, v = self.rotate(heads[:, :, : self.turned]), heads[:, :, self.turned :]
        q, k = qk[:, :, : self.queries], qk[:, :, self.queries :]
        mixed = self.core.mix(q, k, v, saved)
        mixed = mixed.reshape(*mixed.shape[:2], -1)
        saved.keep(mixed=mixed)
        return self.output("out", mixed, x)

    def backward_input(self, dy: np.ndarray, microbatch: int) -> np.ndarray:
        saved = self.saved(microbatch)
        mixed = saved["mixed"]
        dmixed = self.linear_backward("out", self.tp.row_output_backward(dy), saved)
        by_head = (*mixed.shape[:2], self.queries, -1)
        dq, dk, dv = self.core.mix_backward(dmixed.reshape(by_head), mixed.reshape(by_head), saved)
        dqk = self.rotate_backward(np.concatenate([dq, dk], axis=2))
        dqkv = np.concatenate([dqk, dv], axis=2).reshape(*dqk.shape[:2], -1)
        return self.input_backward("qkv", dqkv, dy, saved)

    def rotate(self, qk: np.ndarray) -> np.ndarray:
        self.block.elementwise("rotary", qk.size, 2)
        return functional.rotary(qk, self.rotations)

    def rotate_backward(self, dqk: np.ndarray) -> np.ndarray:
        self.block.elementwise("rotary", dqk.size, 2)
        return functional.rotary_backward(dqk, self.rotations)


class Gated(SubLayer):
    """SwiGLU between two matmuls; tp cuts gate and up by columns, down by rows."""

    def activate(self, gathered: np.ndarray, saved: Saved) -> np.ndarray:
        """Return what down is multiplied with, for a gathered input."""
        gate_up = self.linear("gate_up", gathered, self.block.w["gate_up"])
        activated = functional.swiglu(gate_up)
        self.block.elementwise("swiglu", activated.size, 3)
        saved.keep(gate_up=gate_up, activated=activated)
        return activated

    def activate_backward(self, dy: np.ndarray, saved: Saved) -> np.ndarray:
        """Return the gradient of gate and up, for that of the sublayer's output."""
        dactivated = self.linear_backward("down", self.tp.row_output_backward(dy), saved)
        self.block.elementwise("swiglu", dactivated.size, 5)
        return functional.swiglu_backward(dactivated, saved.take("gate_up"))


class Mlp(Gated):
    """The dense block's second sublayer."""

    norm, add = "norm2", "add2"
    linears = {"down": "activated", "gate_up": "normed"}

    @staticmethod
    def parameters(name: str, context: Context) -> list[Parameter]:
        return [
            norm_parameter(f"{name}.norm2", context),
            *gated_parameters(name, context, context.config.ffn),
        ]

    def forward(self, x: np.ndarray, microbatch: int) -> np.ndarray:
        saved = self.saved(microbatch)
        return self.output("down", self.activate(self.normed_input(x, saved), saved), x)

    def backward_input(self, dy: np.ndarray, microbatch: int) -> np.ndarray:
        saved = self.saved(microbatch)
        return self.input_backward("gate_up", self.activate_backward(dy, saved), dy, saved)


class Block(Unit):
    """A transformer block: attention, then an MLP or experts."""

    def __init__(self, name: str, context: Context, feed_forward: type[SubLayer] = Mlp) -> None:
        super().__init__(
            name, context, [*Attention.parameters(name, context), *feed_forward.parameters(name, context)]
        )
        self.sublayers: tuple[SubLayer, SubLayer] = (Attention(self), feed_forward(self))

    def fused(self, flat: np.ndarray, named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """q, k, v lie side by side and are one matmul; so are gate and up, before down at the end."""
        start, hidden = len(named["norm1"]), self.context.config.hidden
        qkv = sum(len(named[name]) for name in "qkv")
        fused = {"qkv": flat[start : start + qkv * hidden].reshape(qkv, hidden)}
        if "down" in named:
            down = named["down"].size
            fused["gate_up"] = flat[-3 * down : -down].reshape(-1, hidden)
        return fused

    def forward(self, x: np.ndarray, microbatch: int) -> np.ndarray:
        self.context.phase = "forward"
        y = self.run(x, microbatch)
        if self.context.recompute == "full":
            for sublayer in self.sublayers:
                sublayer.saved(microbatch).drop()
            self.keep(microbatch).keep(x=x)
        return y

    def backward_input(self, dy: np.ndarray, microbatch: int) -> np.ndarray:
        self.context.phase = "backward"
        if self.context.recompute == "full":
            with self.context.within("recompute"):
                self.run(self.keep(microbatch).take("x"), microbatch)
        for sublayer in reversed(self.sublayers):
            dy = sublayer.backward_input(dy, microbatch)
        return dy

    def backward_weight(self, microbatch: int) -> None:
        self.context.phase = "weight"
        for sublayer in reversed(self.sublayers):
            sublayer.backward_weight(microbatch)

    def run(self, x: np.ndarray, microbatch: int) -> np.ndarray:
        for sublayer in self.sublayers:
            x = sublayer.forward(x, microbatch)
        return x


def gated_parameters(name: str, context: Context, ffn: int) -> list[Parameter]:
    """SwiGLU's: gate and up are cut by rows (outputs), down by columns (inputs)."""
    h, mine = context.config.hidden, part(ffn, context.tp.size, context.tp.index)
    everything = slice(0, h)
    return [
        Parameter(f"{name}.gate", (ffn, h), (mine, everything), h**-0.5),
        Parameter(f"{name}.up", (ffn, h), (mine, everything), h**-0.5),
        Parameter(f"{name}.down", (h, ffn), (everything, mine), small_deviation(context)),
    ]


def small_deviation(context: Context) -> float:
    """Deviation of weights that write to the residual: they start smaller, as in GPT-2."""
    return context.config.hidden**-0.5 / (2 * context.config.layers) ** 0.5


def norm_parameter(name: str, context: Context) -> Parameter:
    h = context.config.hidden
    return Parameter(name, (h,), whole(h), shared_by=norm_sharers(context))


def norm_sharers(context: Context) -> int:
    """Under sequence parallelism every tp rank sees its shard of the tokens only."""
    return context.tp.size if context.tp.shards else 1


def kv_rows(kv_heads: int, head_dim: int, tp: int, index: int) -> slice:
    if kv_heads >= tp:
        return part(kv_heads * head_dim, tp, index)
    head = index * kv_heads // tp
    return slice(head * head_dim, (head + 1) * head_dim)
