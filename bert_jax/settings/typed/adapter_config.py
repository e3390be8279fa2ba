"""The configuration of adapters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from bert_jax.settings.config_fields import Part, fixed

BOTTLENECKS = ("houlsby", "pfeiffer")  # the values of `adapter.kind` with modules of their own


@dataclasses.dataclass(frozen=True)
class AdapterConfig(Part):
    """Which few parameters are trained in place of all of them."""

    kind: str = fixed(
        "",
        "`lora`: low-rank updates of some kernels; `bitfit`: the biases of the encoder; `houlsby`: new "
        "bottleneck modules after both halves of each layer, and the norms; `pfeiffer`: such modules after "
        "the feed-forward block; `head`: the head alone; empty: every parameter. The new head of a "
        "fine-tuning is trained with each of them, and everything else is frozen; see [LoRA and other "
        "adapters](lora.md)",
    )
    size: int = fixed(
        0,
        "width of the bottleneck of `houlsby` and `pfeiffer`; 0: 64, and `model.hidden_size` / 16",
        maximum=2**20,
    )
    rank: int = fixed(8, "the rank of LoRA's updates", minimum=1, maximum=2**16)
    alpha: float = fixed(16.0, "LoRA's updates are multiplied by alpha / rank", above=0, maximum=10**6)
    targets: str = fixed(
        "",
        "dense layers with an update, with commas between: `query`, `key`, `value`, `attention_output`, "
        "`intermediate` and `output`; empty for the family's, in general `query,value`",
    )
    train: str = fixed(
        "",
        "regular expression: further parameters to train, such as `pooler/.*`, which is frozen as in PEFT",
        type="regex",
    )

    def model_fields(self, hidden_size: int) -> dict[str, int]:
        """Returns the fields of `EncoderConfig` that the adapter sets, for a model of this width."""
        if self.kind == "houlsby":
            return dict.fromkeys(("attention_adapter", "output_adapter"), self.size or 64)
        if self.kind == "pfeiffer":
            return {"output_adapter": self.size or max(1, hidden_size // 16)}
        return {}


def unused(config: Any) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) for each field of adapters that has no effect in the configured run."""
    kind = config.adapter.kind
    if kind:
        yield "optimizer.freeze", f"adapter.kind={kind} freezes all that it does not train"
        weights = config.init_from and not getattr(config, "from_scratch", False)
        if not (weights or getattr(config, "resume_from", "")):
            yield "adapter.kind", "there are no trained weights to adapt, give init_from"
    else:
        yield "adapter.train", "adapter.kind is empty, and every parameter is trained"
    if kind != "lora":
        for name in ("rank", "alpha", "targets"):
            yield f"adapter.{name}", "adapter.kind is not lora"
    if kind not in BOTTLENECKS:
        yield "adapter.size", "adapter.kind is neither houlsby nor pfeiffer"
