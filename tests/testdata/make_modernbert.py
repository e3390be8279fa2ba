"""Makes tests/testdata/modernbert: small random ModernBERTs of transformers, and what they compute.

    python tests/testdata/make_modernbert.py

Needs PyTorch and transformers (5.23 was used). One folder per class, as `save_pretrained` writes it, and
outputs.npz with the inputs and every class's outputs. Rows are longer than the local window, and the models
differ in the number and order of their local layers and in the field names of their config.json. Beside each
is a small WordPiece vocabulary.
"""

import json
import pathlib

import numpy as np
import torch
import transformers
from make_distilbert import SPECIAL, WORDS

FOLDER = pathlib.Path(__file__).parent / "modernbert"
VOCABULARY = 30  # rows of the table; the vocabulary is smaller
LOCAL, GLOBAL = "sliding_attention", "full_attention"
# {head: (class, {our output: attribute of transformers' result}, fields of config.json)}
CLASSES = {
    "none": (transformers.ModernBertModel, {"hidden": "last_hidden_state"}, {"num_hidden_layers": 7}),
    "masked_lm": (transformers.ModernBertForMaskedLM, {"mlm": "logits"}, {"num_hidden_layers": 6}),
    "sequence_classification": (
        transformers.ModernBertForSequenceClassification,
        {"classifier": "logits"},
        {"classifier_pooling": "mean", "attention_bias": True, "mlp_bias": True, "norm_bias": True},
    ),
    "token_classification": (
        transformers.ModernBertForTokenClassification,
        {"classifier": "logits"},
        {"num_hidden_layers": 5, "layer_types": [LOCAL, LOCAL, GLOBAL, LOCAL, GLOBAL]},
    ),
    "question_answering": (
        transformers.ModernBertForQuestionAnswering,
        {"start": "start_logits", "end": "end_logits"},
        {"num_hidden_layers": 2, "layer_types": [GLOBAL, GLOBAL]},
    ),
    "multiple_choice": (
        transformers.ModernBertForMultipleChoice,
        {"classifier": "logits"},
        {"global_attn_every_n_layers": 2},
    ),
}


def old_fields(fields):
    """The fields of config.json as transformers before 5.0 wrote them."""
    fields = {name: value for name, value in fields.items() if name not in ("layer_types", "rope_parameters")}
    return fields | {
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
    }


def main():
    FOLDER.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    length = 24
    mask = np.ones((3, length), np.int64)
    mask[1, 17:] = mask[2, 5:] = 0
    ids = rng.integers(5, VOCABULARY, (3, length)) * mask
    arrays = {"input_ids": np.int32(ids), "mask": np.int32(mask)}
    for number, (head, (make, outputs, fields)) in enumerate(CLASSES.items()):
        torch.manual_seed(number)
        config = transformers.ModernBertConfig(
            vocab_size=VOCABULARY, hidden_size=12, num_attention_heads=3, intermediate_size=20,
            local_attention=8, max_position_embeddings=32, num_labels=3 if "_class" in head else 2,
            **dict.fromkeys((f"{name}_token_id" for name in ("pad", "cls", "sep", "bos", "eos")), 0),
            **{"num_hidden_layers": 4} | fields, attn_implementation="eager",
        )  # fmt: skip
        model = make(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(float("norm" in name.lower() and name.endswith("weight")), 0.3)
            inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
            if head == "multiple_choice":
                inputs = {name: x[None] for name, x in inputs.items()}
            found = model(**inputs, output_hidden_states=True)
        folder = FOLDER / head
        model.save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)
        (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
        if head == "masked_lm":
            path = folder / "config.json"
            path.write_text(json.dumps(old_fields(json.loads(path.read_text())), indent=2) + "\n")
        for ours, theirs in outputs.items():
            arrays[f"{head}/{ours}"] = found[theirs].numpy()
        arrays[f"{head}/states"] = np.stack([x.numpy().reshape(3, length, -1) for x in found.hidden_states])
    np.savez_compressed(FOLDER / "outputs.npz", **arrays)


if __name__ == "__main__":
    main()
