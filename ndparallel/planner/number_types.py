"""Types of number that the layers' matmuls take, and what making them costs.

Idea   Tensors of fewer than 16 bits are made from those of 16 before each product: cast, once as they are and
       once as their transpose has them, with the scales of tensors, rows or blocks. A type is a record: which
       rate of the hardware it has, and how many bytes and kernels a cast of one tensor takes.
Limit  The time of casting weights that software keeps cast for a whole step is not counted: once a step is
       little.

Where the numbers come from: the kernels of Transformer Engine and torchao, which read 2 bytes of a bf16
number and write each copy; a maximum that is not known before is one more read.

Glossary
    amax    the largest absolute value, of which a scale is made
    copy    the tensor in the short type: one along rows, one along columns where the product for the
            weights' gradient cannot read the first
"""

from dataclasses import dataclass

HOPPER_COPIES = (
    2  # its tensor cores take fp8 with the inner dimension contiguous alone; Blackwell's either way
)


@dataclass(frozen=True)
class NumberType:
    """One choice of --dtype: `dtype` is what the hardware prices; bytes are of one number that is cast."""

    name: str
    dtype: str
    reads: float = 0.0  # bytes
    copy: float = 0.0  # bytes of one copy, scales included
    copies: int = 0  # 0: as many as the hardware needs
    kernels: int = 0
    needs: str = ""  # the type that the hardware must multiply
    # that a matrix's sides must be. 16: of a row's numbers, which Transformer Engine's linear layers ask of
    # every recipe, fp8-block and NVFP4 too (assert_dim_for_fp8_exec in transformer_engine/pytorch/utils.py),
    # and its products ask of a transposed one's (lda in common/gemm/cublaslt_gemm.cu); NVFP4's blocks are of
    # as many. 32: of the numbers that share a scale of MXFP8 (make_empty in mxfp8_tensor.py)
    multiple: int = 16
    casts_weights: bool = False  # for every microbatch, too
    travels: bool = True  # what tp gathers is cast before (not the lessons' 16 bits, nor torchao's rows)
    # one scale serves rows and columns, so that ZeRO gathers weights cast where they are kept so alone; of
    # MXFP8's two the gather is in 16 bits (--reuse-grad-buf-for-mxfp8-param-ag)
    gathered_cast: bool = False
    # maxima of all tensors are one sum over all ranks of a stage, after each of its passes
    shares_amax: bool = False
    # bytes of a key or a value that cp ranks send where attention takes fp8, too; 0: it takes none (fp8_dpa
    # in transformer_engine/common/recipe, and its pytorch/attention/.../context_parallel.py)
    key_bytes: int = 0
    gathers_amax: bool = False  # what tp gathers has one maximum over its ranks before it is cast
    # what a norm does of the cast of its own result: all but a transpose, or the maximum alone (FULLY_FUSED
    # and FUSED_NORM_AMAX_FP8 in transformer_engine/pytorch/csrc/extensions/normalization.cpp)
    norm_casts: bool = False
    norm_finds_amax: bool = False

    def cast_bytes(self, transposes: bool) -> float:
        """Bytes read and written for one number; `transposes` where products need a transposed copy."""
        return self.reads + self.copies_bytes(transposes)

    def gathered_bytes(self, transposes: bool, ranks):
        """Bytes for one number of what is cast in shards and gathered short (grad_output_preprocess in
        transformer_engine/pytorch/module/base.py): what products need transposed is copied as a whole."""
        again = 2 * self.copy if transposes and not self.copies else 0.0
        return (self.reads + self.copies_bytes(False)) / ranks + again

    def bytes_behind_norm(self, transposes: bool, ranks, gathered: bool) -> float:
        """The same of a norm's result, which the norm may have cast, or found the maximum of."""
        if self.norm_casts:  # a transpose is read and written
            return 2 * self.copy if transposes else 0.0
        spared = 2 * self.norm_finds_amax
        if gathered:
            return self.gathered_bytes(transposes, ranks) - spared / ranks
        return self.cast_bytes(transposes) - spared

    def one_copy_bytes(self, ranks, gathered: bool) -> float:
        """Bytes for one number that is cast for one product alone."""
        return (self.reads + self.copy) / (ranks if gathered else 1)

    def again_bytes(self, transposes: bool, ranks, gathered: bool) -> float:
        """Bytes for one number of what was kept in 16 bits and is cast again for the weights' gradient: a
        tensor of one scale first as it is where a transpose is made of that (Float8CurrentScalingQuantizer
        in transformer_engine/pytorch/module/linear.py, backward)."""
        if gathered:
            again = 2 * self.copy if transposes and not self.copies else 0.0
            return self.one_copy_bytes(ranks, True) + again
        return self.reads + (self.copy if self.copies else self.copies_bytes(transposes))

    @property
    def kernels_of_one_copy(self) -> int:
        """Kernels of a cast into one copy where two are usual: one copy fewer whose scales are ordered."""
        return self.kernels - (self.copies == 2 and self.kernels > 1)

    def copies_bytes(self, transposes: bool) -> float:
        """Bytes of one number in all its copies."""
        return self.copy * (self.copies or (HOPPER_COPIES if transposes else 1))


_TYPES = (
    NumberType("bf16", "bfloat16", multiple=1, travels=False),
    # delayed scaling: the amax is a former step's (transformer_engine/common/recipe, DelayedScaling)
    NumberType(
        "fp8",
        "float8",
        reads=2,
        copy=1,
        kernels=1,
        needs="fp8",
        gathered_cast=True,
        shares_amax=True,
        key_bytes=1,
        norm_casts=True,
    ),
    # Float8CurrentScaling; torchao's tensor-wise scaling (torchao/float8/float8_linear.py)
    # with_amax_reduction in transformer_engine/pytorch/module/linear.py
    NumberType(
        "fp8-current",
        "float8",
        reads=2 + 2,
        copy=1,
        kernels=3,
        needs="fp8",
        gathered_cast=True,
        gathers_amax=True,
        key_bytes=1,
        norm_finds_amax=True,
    ),
    # torchao's row-wise scaling: an amax for each row, and again for each column
    NumberType(
        "fp8-row",
        "float8",
        reads=4 + 4,
        copy=1,
        copies=2,
        kernels=4,
        needs="fp8",
        casts_weights=True,
        travels=False,
    ),
    # Float8BlockScaling: 1 x 128, both ways in one kernel, a float32 scale for each
    NumberType(
        "fp8-block",
        "fp8-block",
        reads=2,
        copy=1 + 4 / 128,
        copies=2,
        kernels=1,
        needs="fp8-block",
        gathered_cast=True,
    ),
    # MXFP8BlockScaling: 32 numbers share a scale of one byte, both ways in one kernel; each copy's scales are
    # put in the tensor cores' order (transformer_engine/common/swizzle)
    NumberType(
        "mxfp8",
        "mxfp8",
        reads=2,
        copy=1 + 1 / 32,
        copies=2,
        kernels=3,
        needs="mxfp8",
        multiple=32,
        key_bytes=2,
    ),
    # NVFP4BlockScaling: an amax of the tensor, 16 numbers share a byte; a Hadamard transform in the cast
    NumberType(
        "nvfp4",
        "nvfp4",
        reads=2 + 2,
        copy=0.5 + 1 / 16,
        copies=2,
        kernels=4,
        needs="nvfp4",
        gathers_amax=True,
    ),
)
NUMBER_TYPES = {one.name: one for one in _TYPES}
