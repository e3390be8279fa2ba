"""Makes tests/testdata/albert: small random ALBERTs of transformers, and what they compute.

    python tests/testdata/make_albert.py

Needs PyTorch and transformers (5.23 was used). One folder per class, as `save_pretrained` writes it, with a
SentencePiece model beside it, and outputs.npz with the inputs and every class's outputs. The folders differ
in how layers share their parameters: one group, several of unequal numbers of layers, groups of two layers,
and embeddings as wide as the layers.
"""

import io
import pathlib

import numpy as np
import sentencepiece
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "albert"
ROWS = 34
TEXT = ["the capital of france is paris", "a small cat sat on a mat", "un affable cat, in paris."] * 20
CLASSES = {
    "none": (transformers.AlbertModel, {"hidden": "last_hidden_state", "pooled": "pooler_output"}),
    "pretraining": (transformers.AlbertForPreTraining, {"mlm": "prediction_logits", "nsp": "sop_logits"}),
    "masked_lm": (transformers.AlbertForMaskedLM, {"mlm": "logits"}),
    "sequence_classification": (transformers.AlbertForSequenceClassification, {"classifier": "logits"}),
    "token_classification": (transformers.AlbertForTokenClassification, {"classifier": "logits"}),
    "question_answering": (
        transformers.AlbertForQuestionAnswering,
        {"start": "start_logits", "end": "end_logits"},
    ),
    "multiple_choice": (transformers.AlbertForMultipleChoice, {"classifier": "logits"}),
}
FIELDS = {
    "none": {"num_hidden_layers": 7, "num_hidden_groups": 3},
    "masked_lm": {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    "token_classification": {"embedding_size": 12, "hidden_act": "gelu"},
}


def vocabulary():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        vocab_size=ROWS,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        normalization_rule_name="identity",  # the others add 240 kB of tables
        minloglevel=2,
    )
    return model.getvalue()


def main():
    FOLDER.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    length, words = 14, vocabulary()
    mask = np.ones((3, length), np.int64)
    mask[1, 9:] = mask[2, 4:] = 0
    ids = rng.integers(2, ROWS, (3, length)) * mask
    types = np.int64(np.arange(length) >= np.array([[6], [4], [3]])) * mask
    arrays = {"input_ids": np.int32(ids), "mask": np.int32(mask), "token_type_ids": np.int32(types)}
    for number, (head, (make, outputs)) in enumerate(CLASSES.items()):
        torch.manual_seed(number)
        fields = {
            "vocab_size": ROWS,
            "embedding_size": 8,
            "hidden_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 20,
            "max_position_embeddings": 16,
            "num_labels": 3 if head.endswith("_classification") else 2,
            "attn_implementation": "eager",
        }
        model = make(transformers.AlbertConfig(**fields | FIELDS.get(head, {}))).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(float("norm" in name.lower() and name.endswith("weight")), 0.3)
            inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
            inputs["token_type_ids"] = torch.tensor(types)
            if head == "multiple_choice":
                inputs = {name: x[None] for name, x in inputs.items()}
            found = model(**inputs, output_hidden_states=True)
        folder = FOLDER / head
        model.save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)
        (folder / "spiece.model").write_bytes(words)
        for ours, theirs in outputs.items():
            arrays[f"{head}/{ours}"] = found[theirs].numpy()
        arrays[f"{head}/states"] = np.stack([x.numpy().reshape(3, length, -1) for x in found.hidden_states])
    np.savez_compressed(FOLDER / "outputs.npz", **arrays)


if __name__ == "__main__":
    main()
