"""A ModernBERT from raw text to a fine-tuned model in transformers."""

import shutil

import numpy as np
import pytest

from bert_jax import cli, convert
from bert_jax.checkpoint.leaves import nest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer


def test_from_raw_text_to_a_fine_tuned_model_of_transformers(tmp_path, capsys):
    """Vocabulary, records, pre-training that resumes, fine-tuning, and the outputs of the folder."""
    rng, words = np.random.default_rng(0), "red green blue one two three cat dog bird the a is".split()
    text = "\n".join(" ".join(rng.choice(words, 8)) + "." + "\n" * (i % 5 == 4) for i in range(600))
    (tmp_path / "text.txt").write_text(text)
    table = "".join(f"{' '.join(rng.choice(words, 6))}\t{i % 2}\n" for i in range(32))
    (tmp_path / "table.tsv").write_text("text\tlabel\n" + table)
    bpe, records = tmp_path / "bpe.json", tmp_path / "records"
    vocab = ["vocab", "--kind=bpe", "--special_tokens=bert", "--size=300", f"--output={bpe}"]
    assert cli.main([*vocab, f"--input={tmp_path / 'text.txt'}"]) == 0
    data = ["data", f"--vocab={bpe}", "--nsp=none", "--full_sentences", "--max_seq_length=128"]
    assert cli.main([*data, f"--input={tmp_path / 'text.txt'}", f"--output={records}"]) == 0
    fields = {
        "data.dir": records, "steps": 8, "batch_size": 8, "checkpoint.every": 4, "eval.every": 0,
        "optimizer.warmup_steps": 2, "model.hidden_size": 32, "model.num_attention_heads": 2,
        "model.intermediate_size": 48, "model.num_hidden_layers": 4, "model.local_window": 8,
    }  # fmt: skip

    def pretrain(run, **changes):
        flags = [f"--config.{name}={value}" for name, value in (fields | changes).items()]
        assert cli.main(["pretrain", "--config=pretrain/ettin_tiny", f"--workdir={run}", *flags]) == 0
        return convert.load(run).params

    whole = pretrain(tmp_path / "whole")
    pretrain(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "8")  # as if it had been killed after step 4
    capsys.readouterr()
    resumed = pretrain(tmp_path / "run")
    assert "resumed from step 4" in capsys.readouterr().out
    assert all(whole[name].tobytes() == resumed[name].tobytes() for name in whole)
    tuned, folder = tmp_path / "tuned", tmp_path / "out"
    flags = [
        f"--config.{name}={value}"
        for name, value in {
            "init_from": tmp_path / "run", "data.train": tmp_path / "table.tsv", "data.text_a": "text",
            "data.label": "label", "epochs": 1, "batch_size": 8, "max_seq_length": 32,
        }.items()
    ]  # fmt: skip
    assert cli.main(["finetune", "--config=finetune/classification", f"--workdir={tuned}", *flags]) == 0
    assert cli.main(["convert", f"--input={tuned}", f"--output={folder}", "--to=huggingface"]) == 0
    there, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert type(there).__name__ == "ModernBertForSequenceClassification"
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    here = convert.load(tuned)
    line = "the cat is one bird."
    given = tokenizer(line, return_tensors="pt")
    assert set(given) == {"input_ids", "attention_mask"}
    row = here.tokenizer.layout.row(here.tokenizer.encode_batch([line])[0])
    assert given["input_ids"][0].tolist() == row.tolist()
    with torch.no_grad():
        theirs = there.eval()(**given).logits.numpy()
    ids = row[None]
    arrays = (ids, ids * 0, np.arange(len(row), dtype=np.int32)[None], np.ones_like(ids))
    module = here.module.clone(config=here.config.replace(dtype="float32"))
    mine = module.apply({"params": nest(here.params)}, *arrays)["classifier"]
    np.testing.assert_allclose(mine, theirs, atol=2e-5)
