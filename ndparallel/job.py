"""The job: everything that a rank program is told, in one frozen value that travels to its process."""

from dataclasses import dataclass, field, replace

from ndparallel.errors import UserError, unknown
from ndparallel.mesh import Mesh
from ndparallel.units import RECOMPUTE, ModelConfig

MODEL_SIZES = {
    "default": ModelConfig(),
    "large": ModelConfig(layers=16, hidden=128, heads=8, kv_heads=2, ffn=352),
}
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Job:
    """Train this model on this text. `batch` is the global one, in sequences; a step takes it in `microbatches` parts."""

    model: ModelConfig = field(default_factory=ModelConfig)
    mesh: Mesh = field(default_factory=Mesh)
    batch: int = 8
    microbatches: int = 1
    steps: int = 1
    seed: int = 0
    dtype: str = "float32"
    text: str | None = None
    optimizer: str = "adamw"
    learning_rate: float = 3e-3
    bucket_mb: float = 0.1
    unit_mb: float = 0.0
    reshard_after_forward: bool = True
    recompute: str = "none"
    sequence_parallel: str = "none"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, DTYPES)
        if self.recompute not in RECOMPUTE:
            raise unknown("recompute", self.recompute, RECOMPUTE)
        for name in ("batch", "microbatches", "steps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        parts = self.mesh.dp * self.microbatches
        if self.batch % parts:
            near = [size for size in range(1, self.batch + parts) if size % parts == 0]
            raise UserError(
                f"a batch of {self.batch} sequences cannot be cut into {self.mesh.dp} data-parallel parts of {self.microbatches} "
                f"microbatches; the nearest batch that can is {min(near, key=lambda size: abs(size - self.batch))}."
            )

    @property
    def microbatch(self) -> int:
        """Sequences in a microbatch of one data-parallel rank."""
        return self.batch // (self.mesh.dp * self.microbatches)

    def on(self, **changes) -> "Job":
        return replace(self, **changes)
