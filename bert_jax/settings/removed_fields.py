"""Fields that earlier versions had, with their defaults, so that their work directories resume.

A recorded run with another value in such a field cannot resume with this version.
"""


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True


ANYTHING = _Anything()  # for fields that had no effect on training
REMOVED: dict[str, object] = {
    "adapter.dropout": 0.0,
    "adapter.init": "kaiming",
    "adapter.rslora": False,
    "budget.hours": 0.0,
    "budget.tokens": 0,
    "constant_tokens": False,
    "data.answer_start": "",
    "data.eval_split": "eval",
    "data.max_corrupt_rows": 100,
    "data.train_split": "train",
    "distillation.logits_at": "tokens",
    "distillation.relation_heads": 0,
    "distillation.relation_layer": -1,
    "eval.sentences": ANYTHING,
    "eval_masking.count": "",
    "eval_masking.max_predictions": 0,
    "eval_masking.smoothing": None,
    "eval_masking.strategy": "",
    "init_keep": "",
    "languages": "",
    "length_ramp": "",
    "masking.final_prob": 0.0,
    "masking.schedule": "constant",
    "masking.token_counts": "",
    "model.attention_pattern": "",
    "model.embedding_projection": False,
    "model.layers_per_group": 1,
    "model.qa_dropout": None,
    "model.residual": "auto",
    "model.sinusoidal_start": False,
    "optimizer.cooldown_fraction": 0.0,
    "replaced_tokens.disallow_correct": False,
    "replaced_tokens.temperature": 1.0,
    "replaced_tokens.variant": "electra",
    "spikes.factor": 0.0,
    "spikes.metric": "loss",
    "spikes.window": 128,
    "transfer": "zero_shot",
}
