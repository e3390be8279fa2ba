"""Makes tests/testdata/FAMILY: small random transformers models and their outputs.

    python tests/testdata/make_families.py [albert deberta-v2 distilbert electra modernbert roberta]

Needs PyTorch and transformers (5.23 was used), and for RoBERTa the vocabulary of make_bpe.py. It writes one
folder per class with `save_pretrained`, adds a vocabulary, and writes outputs.npz with the inputs and outputs
of every class.
"""

import io
import json
import pathlib
import shutil
import sys

import numpy as np
import sentencepiece
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent
WORDS = "the capital of france is paris and a small cat sat on un ##aff ##able ##s , .".split()
SPECIAL = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDPIECE = {"vocab.txt": "\n".join([*SPECIAL, *WORDS]).encode() + b"\n"}
BPE = {name: (FOLDER / "bpe" / name).read_bytes() for name in ("vocab.json", "merges.txt")}
TEXT = ["the capital of france is paris", "a small cat sat on a mat", "un affable cat, in paris."] * 20
LOCAL, GLOBAL = "sliding_attention", "full_attention"

# {head: (end of the class's name, {our output: attribute of transformers' result})}
HEADS = {
    "none": ("Model", {"hidden": "last_hidden_state", "pooled": "pooler_output"}),
    "pretraining": ("ForPreTraining", {"mlm": "prediction_logits", "nsp": "sop_logits"}),
    "replaced_tokens": ("ForPreTraining", {"discriminator": "logits"}),
    "masked_lm": ("ForMaskedLM", {"mlm": "logits"}),
    "sequence_classification": ("ForSequenceClassification", {"classifier": "logits"}),
    "token_classification": ("ForTokenClassification", {"classifier": "logits"}),
    "question_answering": ("ForQuestionAnswering", {"start": "start_logits", "end": "end_logits"}),
    "multiple_choice": ("ForMultipleChoice", {"classifier": "logits"}),
}
USUAL = tuple(head for head in HEADS if head not in ("pretraining", "replaced_tokens"))


def learned(name, unk, bos, eos, **options):
    """Returns a SentencePiece model in a file of this name."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=model, vocab_size=34, minloglevel=2,
        pad_id=0, unk_id=unk, bos_id=bos, eos_id=eos,
        normalization_rule_name="identity",  # other rules add 240 kB of tables
        **options,
    )  # fmt: skip
    return {name: model.getvalue()}


def sentencepiece_model():
    return learned("spiece.model", 1, -1, -1, control_symbols=["[CLS]", "[SEP]", "[MASK]"])


def deberta_model():
    """Returns a SentencePiece model like DeBERTa's, which does not contain [MASK]."""
    pieces = dict(pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]")
    return learned("spm.model", 3, 1, 2, **pieces)


def sizes(vocabulary, layers, **fields):
    return {
        "vocab_size": vocabulary,
        "hidden_size": 12,
        "num_hidden_layers": layers,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 16,
        **fields,
    }


def albert(head):
    """The models have one group of layers, or several groups of equal or unequal sizes."""
    different = {
        "none": {"num_hidden_layers": 7, "num_hidden_groups": 3},
        "masked_lm": {"num_hidden_layers": 4, "num_hidden_groups": 2},
        "token_classification": {"hidden_act": "gelu"},
    }
    return sizes(34, 2, embedding_size=8) | different.get(head, {})


def deberta(head):
    """Rows are longer than half the number of buckets, and than the maximum distance of some models."""
    usual = {
        "relative_attention": True,
        "position_biased_input": False,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 8,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    }
    different = {
        "none": {"conv_kernel_size": 3, "conv_act": "gelu", "num_hidden_layers": 3},
        "masked_lm": {"embedding_size": 8, "max_relative_positions": 6, "position_buckets": -1},
        "sequence_classification": {"share_att_key": False, "norm_rel_ebd": "none"},
        "token_classification": {"share_att_key": False, "pos_att_type": ["c2p"], "conv_kernel_size": 5},
        "question_answering": {"share_att_key": False, "pos_att_type": ["p2c"], "max_relative_positions": 10},
        "multiple_choice": {"max_relative_positions": 40, "embedding_size": 20, "hidden_act": "relu"},
    }  # fmt: skip
    # The table has more rows than the vocabulary.
    return sizes(40, 2) | usual | different[head]


def distilbert(head):
    return {
        "vocab_size": 25,
        "dim": 12,
        "n_layers": 3,
        "n_heads": 3,
        "hidden_dim": 20,
        "max_position_embeddings": 16,
        "activation": "gelu",
    }


def electra(head):
    """Two of the models have embeddings of size H and no projection."""
    act = "relu" if head in ("sequence_classification", "masked_lm") else "gelu"
    width = 12 if head in ("none", "token_classification") else 8
    return sizes(25, 2, embedding_size=width, hidden_act=act)


def modernbert(head):
    """Rows are longer than the local window, and the local layers differ in number and order."""
    different = {
        "none": {"num_hidden_layers": 7},
        "masked_lm": {"num_hidden_layers": 6},
        "sequence_classification": {
            "classifier_pooling": "mean", "attention_bias": True, "mlp_bias": True, "norm_bias": True,
        },
        "token_classification": {
            "num_hidden_layers": 5, "layer_types": [GLOBAL, LOCAL, GLOBAL, LOCAL, GLOBAL],
        },
        "question_answering": {"num_hidden_layers": 2, "layer_types": [GLOBAL, GLOBAL]},
        "multiple_choice": {"global_attn_every_n_layers": 2},
    }  # fmt: skip
    ids = dict.fromkeys((f"{name}_token_id" for name in ("pad", "cls", "sep", "bos", "eos")), 0)
    # The table has more rows than the vocabulary.
    return sizes(30, 4, max_position_embeddings=32, local_attention=8) | ids | different[head]


def roberta(head):
    """One row is as long as the number of positions after the offset."""
    act = "relu" if head == "masked_lm" else "gelu"
    return sizes(
        len(json.loads(BPE["vocab.json"])), 3, hidden_act=act, type_vocab_size=1, layer_norm_eps=1e-5
    )


def old_fields(fields):
    """Returns the fields of ModernBERT's config.json in the format of transformers before 5.0."""
    fields = {name: value for name, value in fields.items() if name not in ("layer_types", "rope_parameters")}
    return fields | {
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
    }


def rows(length, lengths, smallest, vocabulary, padding=0):
    rng = np.random.default_rng(0)
    mask = np.int64(np.arange(length) < np.array(lengths)[:, None])
    return np.where(mask, rng.integers(smallest, vocabulary, mask.shape), padding), mask, rng


def inputs(name):
    """Returns {transformers' argument: int64 [3, L]}."""
    types = {}
    if name == "deberta-v2":
        ids, mask, _ = rows(16, (16, 9, 4), 4, 40)
    elif name == "albert":
        ids, mask, _ = rows(14, (14, 9, 4), 2, 34)
        types = {"token_type_ids": np.int64(np.arange(14) >= np.array([[6], [4], [3]])) * mask}
    elif name == "modernbert":
        ids, mask, _ = rows(24, (24, 17, 5), 5, 30)
    elif name == "roberta":
        # transformers computes positions from the ids, so no token may have the padding id, 1.
        ids, mask, _ = rows(14, (14, 9, 4), 4, len(json.loads(BPE["vocab.json"])), padding=1)
        ids[:, 0] = 0
    else:
        ids, mask, rng = rows(14, (14, 9, 4), 4, 25)
        if name == "electra":
            types = {"token_type_ids": np.sort(rng.integers(0, 2, ids.shape), axis=1)}
    return {"input_ids": ids, **types, "attention_mask": mask}


# {name: (prefix of the classes, heads, function of a head that returns fields, files of the vocabulary)}
FAMILIES = {
    "albert": ("Albert", ("none", "pretraining", *USUAL[1:]), albert, sentencepiece_model),
    "deberta-v2": ("DebertaV2", USUAL, deberta, deberta_model),
    "distilbert": ("DistilBert", USUAL, distilbert, lambda: WORDPIECE),
    "electra": ("Electra", ("none", "replaced_tokens", *USUAL[1:]), electra, lambda: WORDPIECE),
    "modernbert": ("ModernBert", USUAL, modernbert, lambda: WORDPIECE),
    "roberta": ("Roberta", USUAL, roberta, lambda: BPE),
}


def write(name):
    prefix, heads, fields_of, vocabulary = FAMILIES[name]
    given, files = inputs(name), vocabulary()
    arrays = {key.replace("attention_mask", "mask"): np.int32(x) for key, x in given.items()}
    for number, head in enumerate(heads):
        torch.manual_seed(number)
        ending, outputs = HEADS[head]
        labels = 3 if head.endswith("_classification") else 2
        make, config = getattr(transformers, prefix + ending), getattr(transformers, f"{prefix}Config")
        model = make(config(**fields_of(head), num_labels=labels, attn_implementation="eager")).eval()
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.normal_(float("norm" in key.lower() and key.endswith("weight")), 0.3)
            tensors = {key: torch.tensor(x) for key, x in given.items()}
            if head == "multiple_choice":
                tensors = {key: x[None] for key, x in tensors.items()}
            found = model(**tensors, output_hidden_states=True)
        folder = FOLDER / name / head
        model.save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        if (name, head) == ("modernbert", "masked_lm"):
            path = folder / "config.json"
            path.write_text(json.dumps(old_fields(json.loads(path.read_text())), indent=2) + "\n")
        arrays |= {f"{head}/{ours}": found[x].numpy() for ours, x in outputs.items() if x in found}
        arrays[f"{head}/states"] = np.stack(
            [x.numpy().reshape(*given["input_ids"].shape, -1) for x in found.hidden_states]
        )
    np.savez_compressed(FOLDER / name / "outputs.npz", **arrays)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or FAMILIES:
        shutil.rmtree(FOLDER / chosen, ignore_errors=True)
        write(chosen)
