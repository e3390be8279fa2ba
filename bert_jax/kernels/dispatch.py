"""Chooses the implementation of attention, and whether a kernel computes norms.

The choice depends on platform, dtype, shape, dropout, window and bias, and no other code decides by platform.
Every choice comes with its reason, for the run's log. The module does not import jax, so that a configuration
can be checked before jax starts.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import re
from collections.abc import Callable, Iterator

from bert_jax.errors import UserError

# Number of lanes of a TPU's vector registers, which determines the layout of the Pallas kernels.
LANES = 128
# Longest row that the Pallas attention kernel computes as one block of queries and keys. The float32 logits
# of the heads in 128 lanes have to fit into vector memory several times.
LONGEST_WHOLE_ROW = 512
# Longest row of its kernel without a window. The gradients of the queries, float32 [L, 128], have to fit.
LONGEST_ROW = 8192
# Longest row that local layers compute as one segment.
LONGEST_SEGMENT = 1024
# Longest window in rows of several segments. Longer ones do not fit into the vector memory of TPU v4.
_LONGEST_WINDOW = 128
_WINDOW_OF_SMALLEST_HEAD = 256  # likewise
_SMALLEST_HEAD = 16  # eight of them fill a block of lanes

NORM_KERNEL = "norm=pallas"  # in messages
_MOST_FEATURES = 1024  # of the norm kernel, whose float32 blocks of 128 tokens have to fit into vector memory

DTYPES = ("auto", "float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Target:
    """The device that a program is traced for.

    For a GPU, `capability` is NVIDIA's compute capability such as "9.0", or another vendor's architecture
    name such as "gfx942"; for a CPU, "bfloat16" if it has units for bfloat16 matmuls; "" if unknown.
    """

    platform: str  # "cpu", "gpu" or "tpu"
    capability: str = ""

    @property
    def is_before_ampere(self) -> bool:
        """Returns whether this is known to be an NVIDIA GPU without bfloat16 matmuls (capability < 8.0)."""
        version = re.fullmatch(r"(\d+)\.\d+", self.capability)
        return version is not None and int(version[1]) < 8


@dataclasses.dataclass(frozen=True)
class AttentionCase:
    """The inputs to the choice of an attention implementation; None means unknown."""

    dtype: str | None = None
    length: int | None = None  # tokens of a row
    heads: int | None = None  # on one device
    head_size: int | None = None
    dropout_rate: float | None = None  # of the attention probabilities
    window: int = 0  # tokens to each side that a token attends to; 0 for all
    position: str = ""


@dataclasses.dataclass(frozen=True)
class Choice:
    """An implementation of attention, and the reason for choosing it."""

    implementation: str
    reason: str

    def __str__(self) -> str:
        return f"attention: {self.implementation} ({self.reason})"


@dataclasses.dataclass(frozen=True)
class KernelSpec:
    """A fused kernel, which the value `implementation` of `model.attention` requests.

    `why_not(case, target)` returns why the kernel cannot compute this case, as the end of a sentence that
    begins with the kernel's name, or None if it can. `is_pallas` tells whether it is written in Pallas, which
    a CPU can interpret.
    """

    implementation: str
    platform: str
    why_not: Callable[[AttentionCase, Target], str | None]
    is_pallas: bool = True

    @property
    def name(self) -> str:
        """Returns the name of the kernel in messages, such as `attention=pallas`."""
        return f"attention={self.implementation}"


_NO_POSITION = {
    "alibi": "adds no bias to the logits (position=alibi)",
    "disentangled": "has no products with a table of distances (position=disentangled)",
}
_NO_DROPOUT = "has no dropout on the attention probabilities (set attention_probs_dropout_prob=0)"


def _pallas(case: AttentionCase, target: Target) -> str | None:
    length, heads, size = case.length, case.heads, case.head_size
    if length is not None:
        limit = LONGEST_WHOLE_ROW if case.position == "disentangled" else LONGEST_ROW
        if length % LANES or (length > limit and not case.window):
            return f"needs rows of a multiple of {LANES} tokens up to {limit}, not {length}"
        longest: float = case.window
        if length > LONGEST_SEGMENT:
            longest = _LONGEST_WINDOW if not (length % 256 and length % 384) else _LONGEST_WINDOW // 2
        elif length > LONGEST_WHOLE_ROW and size == _SMALLEST_HEAD:
            longest = _WINDOW_OF_SMALLEST_HEAD
        if case.window > longest:
            return f"needs a local_window of at most {longest} in rows of {length} tokens, not {case.window}"
    if size is not None and (LANES % size or size < _SMALLEST_HEAD):
        return f"needs heads of {_SMALLEST_HEAD}, 32, 64 or {LANES} features, not {size}"
    if size is not None and heads is not None and heads * size % LANES:
        return f"needs heads that fill {LANES} lanes on each device, and {heads} of {size} do not"
    return None


def _splash(case: AttentionCase, target: Target) -> str | None:
    if case.position in _NO_POSITION:
        return _NO_POSITION[case.position]
    if case.dropout_rate:
        return _NO_DROPOUT
    if case.length is not None and case.length % LANES:
        return f"needs rows of a multiple of {LANES} tokens, not {case.length}"
    return None


def _cudnn(case: AttentionCase, target: Target) -> str | None:
    # The limits of jax.nn.dot_product_attention(implementation="cudnn") with a mask, in a program that may
    # be differentiated. Hopper supports larger heads, but using them would need a check of the actual device.
    if target.is_before_ampere or not re.fullmatch(r"(\d+\.\d+)?", target.capability):
        return f"needs an NVIDIA GPU of compute capability 8.0 or newer, not {target.capability}"
    if case.window:
        return "has no local attention (local_window)"
    if case.position in _NO_POSITION:
        return _NO_POSITION[case.position]
    if case.dropout_rate:
        return _NO_DROPOUT
    if case.dtype not in (None, "bfloat16", "float16"):
        return f"needs bfloat16 or float16, not {case.dtype}"
    if case.head_size is not None and (case.head_size % 8 or case.head_size > 128):
        return f"needs heads of a multiple of 8 up to 128, not {case.head_size}"
    if case.length is not None and case.length % 2:
        return f"needs rows of an even number of tokens, not {case.length}"
    return None


# In the order of preference for "auto".
KERNELS = (
    KernelSpec("pallas", "tpu", _pallas),
    KernelSpec("splash", "tpu", _splash),
    KernelSpec("cudnn", "gpu", _cudnn, is_pallas=False),
)
ATTENTIONS = ("auto", "xla", *(kernel.implementation for kernel in KERNELS))  # values of `model.attention`

# Kernels that failed their check in this process, with the problem; see `bert_jax.kernels.check`.
_disabled: dict[str, str] = {}


def disable_kernel(name: str, problem: str) -> None:
    """Disables a kernel: "auto" no longer chooses it, and requesting it by name is an error."""
    _disabled[name] = problem


def kernels(requested: str, platform: str) -> list[KernelSpec]:
    """Returns the kernels that a value of `model.attention` allows on a platform.

    "xla" allows none. On a CPU, "pallas" and "splash" are interpreted, which is slow.
    """
    is_interpreted = platform == "cpu" and requested != "auto"
    return [
        kernel
        for kernel in KERNELS
        if requested in ("auto", kernel.implementation)
        and (kernel.platform == platform or (is_interpreted and kernel.is_pallas))
    ]


def choose_attention(requested: str, case: AttentionCase, target: Target) -> Choice:
    """Returns the implementation of attention for a case on a device, and the reason for choosing it.

    `requested` is "auto", "xla", or the name of a kernel. It raises UserError if a kernel that is requested
    by name cannot compute this case, or failed its check.
    """
    reasons, choice = [], None
    for kernel in kernels(requested, target.platform):
        problem = kernel.why_not(case, target)
        if problem is None and kernel.name in _disabled:
            problem = f"failed its check on this device ({_disabled[kernel.name]})"
        if problem is None:
            reason = f"the fused kernel of {kernel.platform}" if requested == "auto" else "as configured"
            choice = Choice(kernel.implementation, reason)
            break
        reasons.append(f"{kernel.implementation} {problem}")
    if choice is None:
        missing = f"{target.platform} has no fused kernel" + (" of this name" if requested != "auto" else "")
        reason = "as configured" if requested == "xla" else "; ".join(reasons) or missing
        choice = Choice("xla", reason)
        if requested not in ("auto", "xla"):
            raise UserError(f"model.attention={requested} cannot be used: {reason}")
    if (choices := _recording.get()) is not None and choice not in choices:
        choices.append(choice)
    return choice


def fuses_norm(requested: str, norm: str, length: int | None, features: int, target: Target) -> bool:
    """Returns whether a Pallas kernel computes norm(x + dropout(h + bias)), the end of a post-norm sublayer.

    `requested` is `model.attention`, as for `kernels`, and `norm` "layernorm" or "rmsnorm". A row has
    `length` tokens, None if unknown, and a token has `features` numbers.
    """
    if not any(kernel.is_pallas for kernel in kernels(requested, target.platform)):
        return False
    fits = not (length or 0) % LANES and not features % LANES and features <= _MOST_FEATURES
    return fits and norm == "layernorm" and NORM_KERNEL not in _disabled


def resolve_dtype(dtype: str, target: Target) -> str:
    """Returns the dtype of matmuls, with "auto" resolved; any other name is returned unchanged.

    "auto" is bfloat16 if the device has units for bfloat16 matmuls: on TPUs, on GPUs except NVIDIA's before
    Ampere, and on CPUs with AMX_BF16 or AVX512_BF16.
    """
    if dtype != "auto":
        return dtype
    is_slow = target.platform == "cpu" and target.capability != "bfloat16"
    return "float32" if is_slow or target.is_before_ampere else "bfloat16"


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
