"""From raw text to a fine-tuned model in transformers: an ALBERT on SentencePiece and a ModernBERT on BPE."""

import shutil

import numpy as np
import pytest

from bert_jax import cli, convert
from bert_jax.checkpoint.leaves import nest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

WORDS = "red green blue one two three cat dog bird the a is".split()
# {config: (flags of vocab, flags of data, other fields, the class of transformers)}
FAMILIES = {
    "pretrain/ettin_tiny": (
        ["--kind=bpe", "--special_tokens=bert", "--size=300"],
        ["--nsp=none", "--full_sentences"],
        {"model.num_hidden_layers": 4, "model.local_window": 8, "optimizer.cooldown_steps": 2},
        "ModernBertForSequenceClassification",
    ),
    "pretrain/albert:tiny": (
        ["--kind=sentencepiece", "--size=100"],
        ["--nsp=sop"],
        {"model.embedding_size": 16, "model.max_position_embeddings": 128},
        "AlbertForSequenceClassification",
    ),
}


def flags(fields):
    return [f"--config.{name}={value}" for name, value in fields.items()]


@pytest.mark.parametrize("config", FAMILIES)
def test_from_raw_text_to_a_fine_tuned_model_of_transformers(config, tmp_path, capsys):
    """Vocabulary, records, pre-training that resumes, fine-tuning, and the outputs of the folder."""
    of_vocab, of_data, more, cls = FAMILIES[config]
    rng = np.random.default_rng(0)
    text = "\n".join(" ".join(rng.choice(WORDS, 8)) + "." + "\n" * (i % 5 == 4) for i in range(600))
    (tmp_path / "text.txt").write_text(text)
    table = "".join(f"{' '.join(rng.choice(WORDS, 6))}\t{i % 2}\n" for i in range(32))
    (tmp_path / "table.tsv").write_text("text\tlabel\n" + table)
    given, records = f"--input={tmp_path / 'text.txt'}", tmp_path / "records"
    vocabulary = tmp_path / ("bpe.json" if "--kind=bpe" in of_vocab else "vocab.model")
    assert cli.main(["vocab", given, f"--output={vocabulary}", *of_vocab]) == 0
    data = ["data", given, f"--vocab={vocabulary}", f"--output={records}", "--max_seq_length=128"]
    assert cli.main([*data, *of_data]) == 0
    fields = {
        "data.dir": records, "steps": 8, "batch_size": 8, "checkpoint.every": 4, "eval.every": 0,
        "optimizer.warmup_steps": 2, "model.hidden_size": 32, "model.num_attention_heads": 2,
        "model.intermediate_size": 48,
    } | more  # fmt: skip

    def pretrain(run):
        assert cli.main(["pretrain", f"--config={config}", f"--workdir={run}", *flags(fields)]) == 0
        return convert.load(run).params

    whole = pretrain(tmp_path / "whole")
    pretrain(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "8")  # as if it had been killed after step 4
    capsys.readouterr()
    resumed = pretrain(tmp_path / "run")
    assert "resumed from step 4" in capsys.readouterr().out
    assert all(whole[name].tobytes() == resumed[name].tobytes() for name in whole)
    tuned, folder = tmp_path / "tuned", tmp_path / "out"
    fields = {
        "init_from": tmp_path / "run", "data.train": tmp_path / "table.tsv", "data.text_a": "text",
        "data.label": "label", "epochs": 1, "batch_size": 8, "max_seq_length": 32,
    }  # fmt: skip
    command = ["finetune", "--config=finetune/classification", f"--workdir={tuned}", *flags(fields)]
    assert cli.main(command) == 0
    assert cli.main(["convert", f"--input={tuned}", f"--output={folder}", "--to=huggingface"]) == 0
    there, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert type(there).__name__ == cls
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    line = "the cat is one bird."
    given = transformers.AutoTokenizer.from_pretrained(folder)(line, return_tensors="pt")
    here = convert.load(tuned)
    row = here.tokenizer.layout.row(here.tokenizer.encode_batch([line])[0])
    assert given["input_ids"][0].tolist() == row.tolist()
    with torch.no_grad():
        theirs = there.eval()(**given).logits.numpy()
    ids = row[None]
    arrays = (ids, ids * 0, np.arange(len(row), dtype=np.int32)[None], np.ones_like(ids))
    module = here.module.clone(config=here.config.replace(dtype="float32"))
    mine = module.apply({"params": nest(here.params)}, *arrays)["classifier"]
    np.testing.assert_allclose(mine, theirs, atol=2e-5)
