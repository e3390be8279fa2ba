"""Makes tests/testdata/roberta: small random RoBERTas of transformers, and what they compute.

    python tests/testdata/make_roberta.py

Needs PyTorch and transformers (5.23 was used), and the vocabulary of make_bpe.py. One folder per class, as
`save_pretrained` writes it, with the vocabulary beside it, and outputs.npz with the inputs and every class's
outputs. One row has as many tokens as there are positions after the offset.
"""

import json
import pathlib
import shutil

import numpy as np
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "roberta"
VOCABULARY = pathlib.Path(__file__).parent / "bpe"
LENGTH = 14
CLASSES = {
    "none": (transformers.RobertaModel, {"hidden": "last_hidden_state", "pooled": "pooler_output"}),
    "masked_lm": (transformers.RobertaForMaskedLM, {"mlm": "logits"}),
    "sequence_classification": (transformers.RobertaForSequenceClassification, {"classifier": "logits"}),
    "token_classification": (transformers.RobertaForTokenClassification, {"classifier": "logits"}),
    "question_answering": (
        transformers.RobertaForQuestionAnswering,
        {"start": "start_logits", "end": "end_logits"},
    ),
    "multiple_choice": (transformers.RobertaForMultipleChoice, {"classifier": "logits"}),
}


def main():
    FOLDER.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    size = len(json.loads((VOCABULARY / "vocab.json").read_text("utf-8")))
    mask = np.ones((3, LENGTH), np.int64)
    mask[1, 9:] = mask[2, 4:] = 0
    # transformers computes positions from the ids, so that no token may have the id of the padding, 1.
    ids = np.where(mask, rng.integers(4, size, mask.shape), 1)
    ids[:, 0] = 0
    arrays = {"input_ids": np.int32(ids), "mask": np.int32(mask)}
    for number, (head, (make, outputs)) in enumerate(CLASSES.items()):
        torch.manual_seed(number)
        config = transformers.RobertaConfig(
            vocab_size=size, hidden_size=12, num_hidden_layers=3, num_attention_heads=3, intermediate_size=20,
            max_position_embeddings=LENGTH + 2, type_vocab_size=1, layer_norm_eps=1e-5,
            hidden_act="relu" if head == "masked_lm" else "gelu",
            num_labels=3 if head.endswith("_classification") else 2, attn_implementation="eager",
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
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(VOCABULARY / name, folder)
        for ours, theirs in outputs.items():
            arrays[f"{head}/{ours}"] = found[theirs].numpy()
        arrays[f"{head}/states"] = np.stack([x.numpy().reshape(3, LENGTH, -1) for x in found.hidden_states])
    np.savez_compressed(FOLDER / "outputs.npz", **arrays)


if __name__ == "__main__":
    main()
