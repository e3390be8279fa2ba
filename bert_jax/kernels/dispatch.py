"""The table of which implementation computes an operation.

The choice depends on platform, dtype, shape, dropout, window and bias, and no other code decides by platform.
Every choice comes with its reason, for the run's log and for `bert-jax doctor`. The module does not import
jax, so that a configuration can be checked before jax starts.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.kernels import segments

# Number of lanes of a TPU's vector registers, which determines the layout of the Pallas kernels.
LANES = 128
# Longest row that the Pallas attention kernel computes as one block of queries and keys: float32 logits of
# the heads in 128 lanes have to fit into vector memory several times.
LONGEST_WHOLE_ROW = 512
# Longest row of its kernel without a window: the gradients of the queries, float32 [L, 128], have to fit.
LONGEST_ROW = 8192
# Tokens of the smallest block of the Triton kernels.
SHORTEST_BLOCK = 16
# The Pallas residual kernel holds a few float32 blocks of [128, 1024] in vector memory at a time, and the
# Triton kernel a few float32 lines of 1,024 in the registers of a warp.
RESIDUAL_TOKENS = 128
MAX_RESIDUAL_FEATURES = 1024

DTYPES = ("auto", "float32", "bfloat16")
HALF_PRECISION = ("bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Target:
    """The device that a program is traced for.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        capability: for a GPU, NVIDIA's compute capability such as "9.0", or another vendor's architecture
            name such as "gfx942"; for a CPU, "bfloat16" if it has units for such products; "" if it is not
            known.
    """

    platform: str
    capability: str = ""

    @property
    def is_before_ampere(self) -> bool:
        """Returns whether this is known to be an NVIDIA GPU without bfloat16 products (capability < 8.0)."""
        found = re.fullmatch(r"(\d+)\.\d+", self.capability)
        return found is not None and int(found[1]) < 8


@dataclasses.dataclass(frozen=True)
class AttentionCase:
    """What the choice of an attention implementation depends on; None for what is not known yet.

    Attributes:
        dtype: dtype of query, key and value.
        length: number of tokens of a row.
        heads: number of heads on one device, if heads are split over devices.
        head_size: features of a head.
        dropout_rate: dropout rate of the attention probabilities.
        window: number of tokens to each side that a token attends to; 0 for all.
        bias: whether a bias by distance is added to the logits.
    """

    dtype: str | None = None
    length: int | None = None
    heads: int | None = None
    head_size: int | None = None
    dropout_rate: float | None = None
    window: int = 0
    bias: bool = False


@dataclasses.dataclass(frozen=True)
class ResidualCase:
    """What the implementation of the norm of half a layer, and of what it is computed with, depends on.

    Attributes:
        length: number of tokens of a row.
        features: features of a token.
        placement: "post", dropout, sum and norm at the end of the half; or "pre", the norm at its start.
        norm: "layernorm" or "rmsnorm".
    """

    length: int | None = None
    features: int | None = None
    placement: str = "post"
    norm: str = "layernorm"


@dataclasses.dataclass(frozen=True)
class Choice:
    """An implementation, and the reason for choosing it."""

    operation: str
    implementation: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.implementation} ({self.reason})"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A fused kernel.

    Attributes:
        operation: "attention" or "residual", which is also the name of the configuration field.
        implementation: the value of that field.
        platform: the platform that the kernel is made for.
        why_not: function (case, target) that returns why the kernel cannot compute this case, as the end of
            a sentence that begins with the kernel's name; None if it can.
        is_pallas: whether it is written in Pallas, which also runs on a CPU, by interpretation.
    """

    operation: str
    implementation: str
    platform: str
    why_not: Callable[[Any, Target], str | None]
    is_pallas: bool = True

    @property
    def name(self) -> str:
        """Returns the kernel as it is requested in a configuration, such as `attention=pallas`."""
        return f"{self.operation}={self.implementation}"


_SMALLEST_HEAD = 16  # of the Pallas kernel: eight of them fill a block of lanes
_WINDOW_OF_SMALLEST = 256  # keys and masks of larger ones do not fit into the vector memory of TPU v4
_NO_WINDOW = "has no local attention (local_window)"
_NO_BIAS = "adds no bias to the logits (position=alibi)"
_ONLY_LAYER_NORM = "needs LayerNorm where norms follow the sums (norm_placement=post, norm=layernorm)"
_NO_DROPOUT = "has no dropout on the attention probabilities (set attention_probs_dropout_prob=0)"


def _pallas_attention(case: AttentionCase, target: Target) -> str | None:
    length, heads, size = case.length, case.heads, case.head_size
    if length is not None and (length % LANES or (length > LONGEST_ROW and not case.window)):
        return f"needs rows of a multiple of {LANES} tokens up to {LONGEST_ROW}, not {length}"
    longest = None if length is None else segments.longest_window(length)
    if longest is not None and case.window > longest:
        return f"needs a local_window of at most {longest} in rows of {length} tokens, not {case.window}"
    if size == _SMALLEST_HEAD and case.window > _WINDOW_OF_SMALLEST and (length or 0) > LONGEST_WHOLE_ROW:
        return (
            f"needs a local_window of at most {_WINDOW_OF_SMALLEST} for heads of {size} features in rows of "
            f"more than {LONGEST_WHOLE_ROW} tokens, not {case.window}"
        )
    if size is not None and (LANES % size or size < _SMALLEST_HEAD):
        return f"needs heads of {_SMALLEST_HEAD}, 32, 64 or {LANES} features, not {size}"
    if size is not None and heads is not None and heads * size % LANES:
        return f"needs heads that fill {LANES} lanes on each device, and {heads} of {size} do not"
    return None


def _splash(case: AttentionCase, target: Target) -> str | None:
    if case.bias:
        return _NO_BIAS
    if case.dropout_rate:
        return _NO_DROPOUT
    if case.length is not None and case.length % LANES:
        return f"needs rows of a multiple of {LANES} tokens, not {case.length}"
    return None


def _no_nvidia_ampere(target: Target) -> str | None:
    if target.platform == "cpu":  # its interpreter computes any kernel
        return None
    if target.is_before_ampere:
        return f"needs compute capability 8.0 or newer, and this GPU has {target.capability}"
    if target.capability and not re.fullmatch(r"\d+\.\d+", target.capability):
        return f"needs an NVIDIA GPU, and this one is {target.capability}"
    return None


def _cudnn(case: AttentionCase, target: Target) -> str | None:
    # The limits of jax.nn.dot_product_attention(implementation="cudnn") with a mask, in a program that may
    # be differentiated. Hopper supports larger heads, but using them would need a check of the actual device.
    if problem := _no_nvidia_ampere(target):
        return problem
    if case.window:
        return _NO_WINDOW
    if case.bias:
        return _NO_BIAS
    if case.dropout_rate:
        return _NO_DROPOUT
    if case.dtype not in (None, *HALF_PRECISION):
        return f"needs bfloat16 or float16, not {case.dtype}"
    if case.head_size is not None and (case.head_size % 8 or case.head_size > 128):
        return f"needs heads of a multiple of 8 up to 128, not {case.head_size}"
    if case.length is not None and case.length % 2:
        return f"needs rows of an even number of tokens, not {case.length}"
    return None


def _triton(case: AttentionCase, target: Target) -> str | None:
    if problem := _no_nvidia_ampere(target):
        return problem
    # Triton's arrays have powers of 2 as sizes, and the sides of its products are at least 16.
    if case.head_size is not None and case.head_size not in (16, 32, 64, 128):
        return f"needs heads of 16, 32, 64 or 128, not {case.head_size}"
    if case.length is not None and case.length % SHORTEST_BLOCK:
        return f"needs rows of a multiple of {SHORTEST_BLOCK} tokens, not {case.length}"
    return None


def _pallas_residual(case: ResidualCase, target: Target) -> str | None:
    length, features = case.length, case.features
    if case.placement == "post" and case.norm != "layernorm":
        return _ONLY_LAYER_NORM
    if length is not None and length % RESIDUAL_TOKENS:
        return f"needs rows of a multiple of {RESIDUAL_TOKENS} tokens, not {length}"
    return _features_of_residual(features)


def _triton_residual(case: ResidualCase, target: Target) -> str | None:
    length, features = case.length, case.features
    if problem := _no_nvidia_ampere(target):
        return problem
    if case.placement == "post" and case.norm != "layernorm":
        return _ONLY_LAYER_NORM
    if length is not None and length % SHORTEST_BLOCK:
        return f"needs rows of a multiple of {SHORTEST_BLOCK} tokens, not {length}"
    return _features_of_residual(features)


def _features_of_residual(features: int | None) -> str | None:
    if features is not None and (features % LANES or features > MAX_RESIDUAL_FEATURES):
        return f"needs a multiple of {LANES} features up to {MAX_RESIDUAL_FEATURES}, not {features}"
    return None


# In the order of preference for "auto".
KERNELS = (
    Kernel("attention", "pallas", "tpu", _pallas_attention),
    Kernel("attention", "splash", "tpu", _splash),
    Kernel("attention", "cudnn", "gpu", _cudnn, is_pallas=False),
    Kernel("attention", "triton", "gpu", _triton),
    Kernel("residual", "pallas", "tpu", _pallas_residual),
    Kernel("residual", "triton", "gpu", _triton_residual),
)


def choices(operation: str) -> tuple[str, ...]:
    """Returns the values of the configuration field of an operation: "auto", "xla", and its kernels."""
    return ("auto", "xla", *(kernel.implementation for kernel in KERNELS if kernel.operation == operation))


_PLATFORM_NAMES = {"cpu": "a CPU", "gpu": "a GPU", "tpu": "a TPU"}


def kernels_of(platform: str) -> tuple[Kernel, ...]:
    """Returns the fused kernels that are made for a platform."""
    return tuple(kernel for kernel in KERNELS if kernel.platform == platform)


def choose(operation: str, requested: str, case: AttentionCase | ResidualCase, target: Target) -> Choice:
    """Returns the implementation of an operation, and the reason for choosing it.

    Args:
        operation: "attention" or "residual".
        requested: "auto", "xla", or the name of a kernel, which is then chosen or refused.
        case: what is computed.
        target: the device that it is computed on.

    Raises:
        UserError: a kernel is requested by name that cannot compute this, or failed its check.
    """
    if requested == "auto":
        choice = _choose_automatically(operation, case, target)
    elif requested == "xla":
        choice = Choice(operation, "xla", "as configured")
    else:
        kernel = find(operation, requested)
        if problem := _why_not_requested(kernel, case, target):
            raise UserError(f"{kernel.name} {problem}; use {operation}=auto, or xla")
        choice = Choice(operation, requested, "as configured")
    if (choices := _recording.get()) is not None and choice not in choices:
        choices.append(choice)
    return choice


def _choose_automatically(operation, case, target):
    reasons = []
    for kernel in kernels_of(target.platform):
        if kernel.operation != operation:
            continue
        problem = kernel.why_not(case, target)
        if problem is None and kernel.name in _distrusted:
            problem = "failed its check on this device"
        if problem is None:
            return Choice(operation, kernel.implementation, f"the fused kernel of {target.platform}")
        reasons.append(f"{kernel.implementation} {problem}")
    return Choice(operation, "xla", "; ".join(reasons) or f"{target.platform} has no fused kernel")


def _why_not_requested(kernel, case, target):
    # Pallas kernels are interpreted on a CPU, which is how they are tested without a TPU or GPU.
    interpreted = target.platform == "cpu" and kernel.is_pallas
    if kernel.platform != target.platform and not interpreted:
        return f"is made for {_PLATFORM_NAMES[kernel.platform]}, and this program is for " + (
            _PLATFORM_NAMES.get(target.platform, target.platform)
        )
    if kernel.name in _distrusted:
        return f"failed its check on this device ({_distrusted[kernel.name]})"
    return kernel.why_not(case, target)


def find(operation: str, implementation: str) -> Kernel:
    """Returns the kernel of an operation with this implementation name."""
    return next(k for k in KERNELS if (k.operation, k.implementation) == (operation, implementation))


def check_case(operation: str, requested: str, case: AttentionCase | ResidualCase) -> None:
    """Raises UserError if a kernel is requested by name that cannot compute the case on any device.

    Args:
        operation: as in `choose`.
        requested: as in `choose`.
        case: as much of the case as is known; what is None is not checked.
    """
    if requested not in ("auto", "xla"):
        kernel = find(operation, requested)
        if problem := kernel.why_not(case, Target("")):
            raise UserError(f"{kernel.name} {problem}; use {operation}=auto, or xla")


def resolve_dtype(dtype: str, target: Target) -> str:
    """Returns the dtype of matrix products, with "auto" resolved; any other name is returned unchanged.

    "auto" is bfloat16 where the device has units for such products: on TPUs, on GPUs but NVIDIA's before
    Ampere, and on CPUs with AMX_BF16 or AVX512_BF16.
    """
    if dtype != "auto":
        return dtype
    is_slow = target.platform == "cpu" and target.capability != "bfloat16"
    return "float32" if is_slow or target.is_before_ampere else "bfloat16"


# Kernels that failed their check in this process, with the problem; see `bert_jax.kernels.check`.
_distrusted: dict[str, str] = {}


def distrust(name: str, problem: str) -> None:
    """Disables a kernel: "auto" no longer chooses it, and requesting it by name is an error."""
    _distrusted[name] = problem


_recording: contextvars.ContextVar[list[Choice] | None] = contextvars.ContextVar("choices", default=None)


@contextlib.contextmanager
def record() -> Iterator[list[Choice]]:
    """Collects the choices that are made while a program is traced inside the block."""
    choices: list[Choice] = []
    token = _recording.set(choices)
    try:
        yield choices
    finally:
        _recording.reset(token)
