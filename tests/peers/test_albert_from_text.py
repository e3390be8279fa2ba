"""An ALBERT from raw text to a fine-tuned model in transformers; it is killed on the way and goes on."""

import random
import re
import signal

import numpy as np
import pytest
from support import processes

from bert_jax import cli, convert
from bert_jax.checkpoint.leaves import nest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

LENGTH = 64
FIELDS = {
    "model.hidden_size": 64,
    "model.embedding_size": 32,
    "model.intermediate_size": 128,
    "model.hidden_dropout_prob": 0.1,
    "model.max_position_embeddings": LENGTH,
    "batch_size": 16,
    "steps": 60,
    "optimizer.warmup_steps": 10,
    "optimizer.learning_rate": 1e-2,
    "checkpoint.every": 10,
    "log_every": 10,
    "eval.every": 30,
}
NAMES = "ann bob cleo dan eve finn gus hope".split()
VERBS = "sees finds paints sells buys likes".split()
THINGS = "apples boats cars drums eggs flags games hats".split()


def make(*arguments):
    assert cli.main([*map(str, arguments)]) == 0


def flags(fields):
    return [f"--config.{name}={value}" for name, value in fields.items()]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(0)
    sentence = [
        lambda name: f"{name} {draw.choice(VERBS)} {draw.choice(THINGS)} in the old town.",
        lambda name: f"then {name} {draw.choice(VERBS)} some {draw.choice(THINGS)}, and goes home.",
    ]
    documents = []
    for _ in range(300):
        name = draw.choice(NAMES)
        documents.append("\n".join(sentence[i % 2](name) for i in range(6)))
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    text, vocabulary = f"--input={folder / 'text.txt'}", folder / "vocab.model"
    make("vocab", text, f"--output={vocabulary}", "--kind=sentencepiece", "--size=120")
    make(
        "data", text, f"--vocab={vocabulary}", f"--output={folder / 'records'}", "--nsp=sop",
        f"--max_seq_length={LENGTH}", "--workers=1",
    )  # fmt: skip
    return folder / "records"


def command(workdir, records):
    fields = flags(FIELDS | {"data.dir": records})
    return ["pretrain", "--config=pretrain/albert:tiny", f"--workdir={workdir}", *fields]


def losses(workdir):
    lines = processes.metrics(workdir, "train")
    return [(x["step"], x["loss"], x["grad_norm"]) for x in lines]


@pytest.fixture(scope="module")
def pretrained(records, tmp_path_factory):
    """A run that was killed and went on, which is bit for bit that of a run left alone."""
    folder = tmp_path_factory.mktemp("runs")
    code, output = processes.run(command(folder / "whole", records))
    assert code == 0, output
    killed = processes.start(command(folder / "killed", records))
    for line in killed.stdout:
        if re.match(r"step +20 ", line):  # on a busy machine, it takes more steps before it is killed
            break
    killed.send_signal(signal.SIGKILL)
    assert killed.wait(60) == -signal.SIGKILL
    code, output = processes.run(command(folder / "killed", records))
    assert code == 0 and re.search(r"resumed from step [1-5]0 ", output), output
    one, other = (convert.load(folder / name).params for name in ("whole", "killed"))
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    assert losses(folder / "whole") == losses(folder / "killed")
    return folder / "killed"


def test_it_learns_the_words_and_has_the_heads_of_pre_training(pretrained):
    model = convert.load(pretrained)
    assert (model.family.name, model.head) == ("ALBERT", "pretraining")
    assert model.params["encoder/layers/shared/layer/query/kernel"].shape == (64, 4, 16)
    found = losses(pretrained)
    assert found[-1][1] < found[0][1] - 0.4


def test_a_fine_tuned_one_predicts_the_same_in_transformers(pretrained, tmp_path):
    draw = random.Random(1)
    rows = [
        (
            f"{draw.choice(NAMES)} {verb} {draw.choice(THINGS)}",
            "trade" if verb in ("sells", "buys") else "else",
        )
        for verb in draw.choices(VERBS, k=200)
    ]
    for name, part in (("train", rows[:160]), ("dev", rows[160:])):
        lines = ["text\tlabel", *("\t".join(row) for row in part)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    run, out = tmp_path / "run", tmp_path / "out"
    fields = {
        "init_from": pretrained,
        "data.train": tmp_path / "train.tsv",
        "data.eval": tmp_path / "dev.tsv",
        "data.text_a": "text",
        "data.label": "label",
        "epochs": 3,
        "batch_size": 16,
        "max_seq_length": 32,
        "optimizer.learning_rate": 2e-3,
    }
    make("finetune", "--config=finetune/classification", f"--workdir={run}", *flags(fields))
    make("convert", f"--input={run}", f"--output={out}", "--to=huggingface")
    model, info = transformers.AlbertForSequenceClassification.from_pretrained(out, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    given = tokenizer([text for text, _ in rows[160:]], padding=True, return_tensors="pt")
    given["token_type_ids"] = torch.zeros_like(given["input_ids"])
    with torch.no_grad():
        logits = model.eval()(**given).logits.numpy()

    ours = convert.load(run)
    encoded = ours.tokenizer.encode_batch([text for text, _ in rows[160:]])
    mask = given["attention_mask"].numpy()
    for ids, row, real in zip(encoded, given["input_ids"].numpy(), mask, strict=True):
        assert [ours.tokenizer.cls_id, *ids, ours.tokenizer.sep_id] == row[real > 0].tolist()
    arrays = [given[name].numpy().astype(np.int32) for name in ("input_ids", "token_type_ids")]
    positions = np.broadcast_to(np.arange(mask.shape[1], dtype=np.int32), mask.shape)
    module = ours.module.clone(config=ours.config.replace(dtype="float32"))
    mine = np.asarray(module.apply({"params": nest(ours.params)}, *arrays, positions, mask)["classifier"])
    assert np.std(mine) > 0.01
    assert np.max(np.abs(mine - logits)) < 1e-5 and np.array_equal(mine.argmax(-1), logits.argmax(-1))
    assert tuple(model.config.id2label.values()) == ours.labels
