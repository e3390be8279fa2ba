"""Makes tests/testdata/distilbert: small random DistilBERTs of transformers, and what they compute.

    python tests/testdata/make_distilbert.py

Needs PyTorch and transformers (5.23 was used). One folder per class, as `save_pretrained` writes it, with
a vocabulary beside it, and outputs.npz with the inputs and every class's outputs.
"""

import pathlib

import numpy as np
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "distilbert"
WORDS = "the capital of france is paris and a small cat sat on un ##aff ##able ##s , .".split()
SPECIAL = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLASSES = {
    "none": (transformers.DistilBertModel, {"hidden": "last_hidden_state"}),
    "masked_lm": (transformers.DistilBertForMaskedLM, {"mlm": "logits"}),
    "sequence_classification": (transformers.DistilBertForSequenceClassification, {"classifier": "logits"}),
    "token_classification": (transformers.DistilBertForTokenClassification, {"classifier": "logits"}),
    "question_answering": (
        transformers.DistilBertForQuestionAnswering,
        {"start": "start_logits", "end": "end_logits"},
    ),
    "multiple_choice": (transformers.DistilBertForMultipleChoice, {"classifier": "logits"}),
}


def main():
    FOLDER.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    length, vocabulary = 14, [*SPECIAL, *WORDS]
    mask = np.ones((3, length), np.int64)
    mask[1, 9:] = mask[2, 4:] = 0
    ids = rng.integers(4, len(vocabulary), (3, length)) * mask
    arrays = {"input_ids": np.int32(ids), "mask": np.int32(mask)}
    for number, (head, (make, outputs)) in enumerate(CLASSES.items()):
        torch.manual_seed(number)
        config = transformers.DistilBertConfig(
            vocab_size=len(vocabulary),
            dim=12,
            n_layers=3,
            n_heads=3,
            hidden_dim=20,
            max_position_embeddings=16,
            activation="gelu",
            sinusoidal_pos_embds=head == "masked_lm",
            num_labels=3 if head.endswith("_classification") else 2,
            attn_implementation="eager",
        )
        model = make(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "position_embeddings" in name and config.sinusoidal_pos_embds:
                    continue  # the table that transformers fills in
                parameter.normal_(float("norm" in name.lower() and name.endswith("weight")), 0.3)
            inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
            if head == "multiple_choice":
                inputs = {name: x[None] for name, x in inputs.items()}
            found = model(**inputs, output_hidden_states=True)
        folder = FOLDER / head
        model.save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)
        (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
        for ours, theirs in outputs.items():
            arrays[f"{head}/{ours}"] = found[theirs].numpy()
        arrays[f"{head}/states"] = np.stack([x.numpy().reshape(3, length, -1) for x in found.hidden_states])
    np.savez_compressed(FOLDER / "outputs.npz", **arrays)


if __name__ == "__main__":
    main()
