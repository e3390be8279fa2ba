"""How an encoder is computed: the dtype of products, kernels, rematerialization and loops."""

from __future__ import annotations

import dataclasses

from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import Target
from bert_jax.models.config_checks import option


@dataclasses.dataclass(frozen=True)
class Execution:
    """Settings for how a model is computed; none of them changes the parameters or the function."""

    dtype: str = option(
        "auto",
        "of activations and matrix products: `bfloat16` on TPUs, on GPUs but NVIDIA's before Ampere, and on "
        "CPUs with AMX_BF16 or AVX512_BF16, else `float32`; `config.json` records what it became, and a run "
        "that resumes on another platform keeps it. "
        "Parameters are float32. On NVIDIA GPUs XLA computes float32 products in TF32, on TPUs in one "
        "bfloat16 pass",
        choices=dispatch.DTYPES,
    )
    attention: str = option(
        "auto",
        "`xla`; `cudnn` (NVIDIA from Ampere on; bfloat16, rows of an even length, heads of a multiple of 8 "
        "up to 128); `pallas` (TPU, rows of a multiple of 128 up to 8,192 tokens, of any length in local "
        "layers, heads of 16, 32, 64 or 128); `splash` (TPU, rows of a multiple of 128 tokens). cuDNN and "
        "splash have "
        "no attention dropout, cuDNN has no `local_window`, and neither has `alibi`. `auto` takes the first "
        "that can compute the case, else `xla`; an implementation that is named and cannot is an error. On a "
        "TPU, all values but `xla` also compute dropout, sum and norm of a sublayer as one kernel",
        choices=dispatch.ATTENTIONS,
        resume="free",
    )
    remat: str = option(
        "none",
        "rematerialization, which trades time for memory: `full` keeps only the input of each layer for the "
        "backward pass, `dots` also the results of matrix products",
        choices=("none", "full", "dots"),
        resume="free",
    )
    scan_unroll: int = option(
        1,
        "layers that are compiled as one block; 0 is all: faster steps, longer compilation. On CPUs, 0 is 1 "
        "in training more than 4 layers in float32, where larger blocks are slower; and with `remat` it is "
        "1, because only a loop frees memory",
        maximum=10_000,
        resume="free",
    )

    def for_inference(self, target: Target, dtype: str = "auto") -> Execution:
        """Returns the settings for computing a checkpoint on a device, wherever it was trained.

        Kernels are chosen again for the device, unless the checkpoint was trained without kernels, and there
        is no rematerialization. By default the dtype is the one used in training, or the device's default if
        that was "auto"; CPUs and GPUs without bfloat16 products always compute in float32.

        Args:
            target: the device.
            dtype: "auto", "float32" or "bfloat16".
        """
        if dtype == "auto":
            dtype = "float32" if target.platform == "cpu" else dispatch.resolve_dtype("auto", target)
            if dtype != "float32" and self.dtype != "auto":
                dtype = self.dtype
        attention = "xla" if self.attention == "xla" else "auto"
        return dataclasses.replace(self, dtype=dtype, remat="none", attention=attention)
