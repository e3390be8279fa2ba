"""Makes tests/testdata/peft: small random models of transformers with PEFT's adapters, and their logits.

    python tests/testdata/make_peft.py [CASE ...]

Needs PyTorch, transformers (5.23 was used) and peft (0.21.2). Each folder has the base model, the adapter
as `save_pretrained` of PEFT writes it, and outputs.npz with inputs and the logits of the two together.
"""

import json
import pathlib
import re
import sys

import numpy as np
import peft
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "peft"
SIZE = dict(vocab_size=30, num_labels=3, max_position_embeddings=16)
BERT = transformers.BertConfig(
    hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, **SIZE
)
DISTILBERT = transformers.DistilBertConfig(dim=8, n_layers=2, n_heads=2, hidden_dim=12, **SIZE)
MODERNBERT = transformers.ModernBertConfig(
    hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=12, local_attention=6,
    pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3, **SIZE
)  # fmt: skip
CASES = {
    "bert": (BERT, "SequenceClassification", dict(task_type="SEQ_CLS", r=3, lora_alpha=6)),
    "distilbert": (
        DISTILBERT,
        "SequenceClassification",
        dict(task_type="SEQ_CLS", r=2, lora_alpha=5, target_modules=["q_lin", "out_lin", "lin1", "lin2"]),
    ),
    "tags": (
        BERT,
        "TokenClassification",
        dict(task_type="TOKEN_CLS", r=4, lora_alpha=8, use_rslora=True, layers_to_transform=[1]),
    ),
    "modernbert": (
        MODERNBERT,
        "SequenceClassification",
        dict(task_type="SEQ_CLS", r=3, lora_alpha=6, target_modules=["Wqkv", "Wi"]),
    ),
}


def main():
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(4, 30, (3, 10)), np.ones((3, 10), np.int64)
    mask[1, 6:] = 0
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(25))]
    for number, (name, (config, head, fields)) in enumerate(CASES.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        torch.manual_seed(number)
        folder = FOLDER / name
        make = getattr(transformers, f"AutoModelFor{head}")
        model = make.from_config(config).eval()
        model.save_pretrained(folder / "base")
        (folder / "base" / "vocab.txt").write_text("\n".join(words) + "\n")
        adapted = peft.get_peft_model(model, peft.LoraConfig(**fields)).eval()
        with torch.no_grad():
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0, 0.5)
            logits = adapted(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).logits
        adapted.save_pretrained(folder / "adapter")
        (folder / "adapter" / "README.md").unlink(missing_ok=True)
        path = folder / "adapter" / "adapter_config.json"
        content = json.loads(path.read_text()) | {"base_model_name_or_path": "../base"}
        path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        for file in folder.rglob("*.safetensors"):
            file.chmod(0o644)
        merged = adapted.merge_and_unload().state_dict()
        kept = {
            key: x.numpy() for key, x in merged.items() if re.search(r"layers?\.1\.", key) and "weight" in key
        }
        arrays = {"input_ids": np.int32(ids), "mask": np.int32(mask), "logits": logits.numpy()}
        np.savez_compressed(folder / "outputs.npz", **arrays, **kept)


if __name__ == "__main__":
    main()
