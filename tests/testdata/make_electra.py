"""Makes tests/testdata/electra: small random ELECTRAs of transformers, and what they compute.

    python tests/testdata/make_electra.py

Needs PyTorch and transformers (5.23 was used). One folder per class, as `save_pretrained` writes it, with
a vocabulary beside it, and outputs.npz with the inputs and every class's outputs.
"""

import pathlib

import numpy as np
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "electra"
WORDS = "the capital of france is paris and a small cat sat on un ##aff ##able ##s , .".split()
SPECIAL = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLASSES = {
    "none": (transformers.ElectraModel, {"hidden": "last_hidden_state"}),
    "replaced_tokens": (transformers.ElectraForPreTraining, {"discriminator": "logits"}),
    "masked_lm": (transformers.ElectraForMaskedLM, {"mlm": "logits"}),
    "sequence_classification": (transformers.ElectraForSequenceClassification, {"classifier": "logits"}),
    "token_classification": (transformers.ElectraForTokenClassification, {"classifier": "logits"}),
    "question_answering": (
        transformers.ElectraForQuestionAnswering,
        {"start": "start_logits", "end": "end_logits"},
    ),
    "multiple_choice": (transformers.ElectraForMultipleChoice, {"classifier": "logits"}),
}
SAME_WIDTH = ("none", "token_classification")  # embeddings as wide as the layers, and no projection


def main():
    FOLDER.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    length, vocabulary = 14, [*SPECIAL, *WORDS]
    mask = np.ones((3, length), np.int64)
    mask[1, 9:] = mask[2, 4:] = 0
    ids = rng.integers(4, len(vocabulary), (3, length)) * mask
    types = np.sort(rng.integers(0, 2, ids.shape), axis=1)
    arrays = {"input_ids": np.int32(ids), "token_type_ids": np.int32(types), "mask": np.int32(mask)}
    for number, (head, (make, outputs)) in enumerate(CLASSES.items()):
        torch.manual_seed(number)
        config = transformers.ElectraConfig(
            vocab_size=len(vocabulary),
            embedding_size=12 if head in SAME_WIDTH else 8,
            hidden_size=12,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=20,
            max_position_embeddings=16,
            hidden_act="relu" if head in ("sequence_classification", "masked_lm") else "gelu",
            num_labels=3 if head.endswith("_classification") else 2,
            attn_implementation="eager",
        )
        model = make(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(float("norm" in name.lower() and name.endswith("weight")), 0.3)
            inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
            inputs = {name: torch.tensor(x) for name, x in inputs.items()}
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
