"""BERT (Devlin et al. 2019), with its names in Hugging Face folders and google-research's TF1 checkpoints."""

from __future__ import annotations

from bert_jax.convert.families.base import Family, TensorFlowConfig
from bert_jax.convert.param_mapping import LAYERS, dense, head, modules, vector
from bert_jax.models.heads.structures import SEQUENCE, SPANS, TOKENS
from bert_jax.models.sizes import BERT as SIZES
from bert_jax.tokenization.families import RECORDS

# The modules inside the embeddings and inside a layer, which several families name as BERT does.
EMBEDDINGS = {
    "word_embeddings": "word_embeddings",
    "token_type_embeddings": "token_type_embeddings",
    "position_embeddings": "position_embeddings",
    "layer_norm": "LayerNorm",
}
LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
TRANSFORM = {"transform": "dense", "transform_norm": "LayerNorm"}
FIELDS = (  # in every released configuration
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
)

FAMILY = Family(
    name="BERT",
    model_type="bert",
    class_prefix="Bert",
    base="bert",
    table=(
        *modules(("encoder/embeddings", "bert.embeddings", "bert/embeddings"), EMBEDDINGS),
        *modules((LAYERS, "bert.encoder.layer.{layer}", "bert/encoder/layer_{layer}"), LAYER),
        *dense("pooler/dense", "bert.pooler.dense", "bert/pooler/dense"),
        *modules(("mlm", "cls.predictions.transform", "cls/predictions/transform"), TRANSFORM),
        *vector("mlm/bias", "cls.predictions.bias", "cls/predictions/output_bias"),
        *head("nsp", "cls.seq_relationship", "cls/seq_relationship/"),
        *head("classifier", "classifier", ""),
        *head("qa", "qa_outputs", "cls/squad/"),
    ),
    heads={
        "none": ("encoder", "(pooler)"),
        "pretraining": ("encoder", "pooler", "mlm", "nsp"),
        "masked_lm": ("encoder", "(pooler)", "mlm"),
        "sequence_classification": ("encoder", "pooler", "classifier"),
        "token_classification": ("encoder", "(pooler)", "classifier"),
        "multiple_choice": ("encoder", "pooler", "classifier"),
        "question_answering": ("encoder", "(pooler)", "qa"),
    },
    classifiers={
        "sequence_classification": SEQUENCE,
        "token_classification": TOKENS,
        "multiple_choice": SEQUENCE,
        "question_answering": SPANS,
    },
    fields={name: name for name in (*FIELDS, "layer_norm_eps", "classifier_dropout")},
    activation="hidden_act",
    constants={"position_embedding_type": "absolute"},
    checked={"is_decoder": False, "add_cross_attention": False},
    tied=(
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
    tokenizer=RECORDS["bert"],
    tensorflow=TensorFlowConfig("bert_config.json", FIELDS),
    sizes=SIZES,
)
