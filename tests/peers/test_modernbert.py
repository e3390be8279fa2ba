"""ModernBERT beside transformers: long rows, gradients, and a model from raw text to a fine-tuned task."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import cli, convert
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.convert.families import modernbert
from bert_jax.models import Encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

VOCABULARY, LENGTH = 100, 300
LOCAL, GLOBAL = "sliding_attention", "full_attention"
MODELS = {
    "whole periods": {"num_hidden_layers": 7},
    "a rest": {"num_hidden_layers": 6},
    "any order": {"num_hidden_layers": 6, "layer_types": [LOCAL, GLOBAL, GLOBAL, LOCAL, LOCAL, GLOBAL]},
}


@pytest.fixture(params=MODELS, scope="module")
def models(request, tmp_path_factory):
    """transformers' model, and the same one here, by way of its files."""
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY, hidden_size=48, num_attention_heads=3, intermediate_size=64,
        **dict.fromkeys((f"{name}_token_id" for name in ("pad", "cls", "sep", "bos", "eos")), 0),
        **MODELS[request.param], attn_implementation="eager",
    )  # fmt: skip
    model = transformers.ModernBertForMaskedLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(1, 0.1)
            else:
                parameter.normal_(0, 0.3 if parameter.ndim == 1 else 2 * parameter.shape[1] ** -0.5)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return model, convert.load(folder)


def inputs():
    rng = np.random.default_rng(0)
    mask = np.int32(np.arange(LENGTH) < np.array([[LENGTH], [190]]))
    return np.int32(rng.integers(1, VOCABULARY, (2, LENGTH))) * mask, mask


def test_every_hidden_state(models):
    there, here = models
    ids, mask = inputs()
    with torch.no_grad():
        found = there.model(torch.tensor(ids), torch.tensor(mask), output_hidden_states=True)
    theirs = np.stack([x.numpy() for x in found.hidden_states])
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), ids.shape)
    config = here.config.replace(dtype="float32")
    states = Encoder(config).apply(
        {"params": nest(here.params)["encoder"]}, ids, ids * 0, positions, mask, lambda x: x,
        method="every_layer",
    )  # fmt: skip
    for mine, other in zip(np.asarray(states), theirs, strict=True):
        difference = np.abs(mine - other)[mask > 0].max()
        assert difference <= 2e-5 * np.abs(other[mask > 0]).max()


def test_gradients(models):
    there, here = models
    ids, mask = inputs()
    rng = np.random.default_rng(1)
    predicted = (rng.random(ids.shape) < 0.3) & (mask > 0)
    labels = rng.integers(1, VOCABULARY, ids.shape)
    there.zero_grad()
    given = torch.tensor(np.where(predicted, labels, -100))
    there(torch.tensor(ids), torch.tensor(mask), labels=given).loss.backward()
    theirs = {name: parameter.grad.numpy() for name, parameter in there.named_parameters()}
    module = here.module.clone(config=here.config.replace(dtype="float32"))
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), ids.shape)

    def loss(params):
        logits = module.apply({"params": params}, ids, ids * 0, positions, mask)["mlm"]
        each = -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(labels)[..., None], -1)[..., 0]
        return jnp.sum(jnp.where(predicted, each, 0)) / predicted.sum()

    gradients = flatten(jax.jit(jax.grad(loss))(nest(here.params)))
    # Gradients have the layouts of their parameters, so the names of files are theirs too.
    mine = modernbert.FAMILY.to_files(gradients, here.config, "huggingface", "masked_lm")
    assert mine.keys() == theirs.keys() - {"decoder.weight"}
    for name, array in mine.items():
        norm = np.linalg.norm(theirs[name])
        assert norm > 0 and np.linalg.norm(array - theirs[name]) <= 1e-4 * norm, name


def test_from_raw_text_to_a_fine_tuned_model_of_transformers(tmp_path):
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
    assert cli.main([*data, f"--input={tmp_path / 'text.txt'}", f"--output_dir={records}"]) == 0
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
    resumed = pretrain(tmp_path / "run")
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
