"""The fields of a run's configuration that define the model, taken from `EncoderConfig` and `Execution`."""

from __future__ import annotations

import dataclasses
from typing import Any

from bert_jax.models.config import EncoderConfig, from_dict
from bert_jax.models.execution import Execution
from bert_jax.settings.config_fields import Field, Part


def _model_fields() -> list[tuple[str, type, Any]]:
    """Returns the fields of an encoder and of its execution as fields of one configuration class."""
    found = []
    for declared in (*dataclasses.fields(EncoderConfig), *dataclasses.fields(Execution)):
        if declared.name == "execution":
            continue
        metadata, default = declared.metadata, declared.default
        kind = metadata.get("optional") or type(default)
        limits = {
            name: metadata[name] for name in ("minimum", "maximum", "above", "below") if name in metadata
        }
        if declared.name == "vocab_size":
            default, limits["minimum"] = 0, 0  # that of the vocabulary
        field = Field(
            default,
            metadata["meaning"],
            kind.__name__,
            **limits,
            resume=metadata["resume"],
            optional="optional" in metadata,
        )
        found.append((declared.name, kind, dataclasses.field(default=default, metadata={"field": field})))
    return found


_ModelFields: Any = dataclasses.make_dataclass("_ModelFields", _model_fields(), frozen=True)


@dataclasses.dataclass(frozen=True)
class ModelConfig(_ModelFields, Part):
    """The fields of `EncoderConfig` and of its `Execution`; a `vocab_size` of 0 is that of the vocabulary."""

    def replace(self, **changes: Any) -> ModelConfig:
        """Returns the configuration with some fields replaced."""
        return ModelConfig(**self.to_dict() | changes)

    def encoder(self) -> EncoderConfig:
        """Returns the configuration of the encoder."""
        return from_dict(self.to_dict())
