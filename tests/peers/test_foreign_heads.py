"""Random models of transformers with every head, of every family: predictions here, and logits there."""

import shutil

import numpy as np
import pytest
from support import small_tokenizers
from support.transformers_models import random_model, torch, transformers

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import conversion, parity
from bert_jax.inference.predictor import Predictor

pytestmark = pytest.mark.peer

QUIET = {"log": lambda line: None}
SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}
TOKENS = dict.fromkeys((f"{name}_token_id" for name in ("pad", "cls", "sep", "bos", "eos")), 0)
DEBERTA = {
    "relative_attention": True, "position_biased_input": False, "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8, "conv_kernel_size": 3, "embedding_size": 24,
}  # fmt: skip
# {prefix of the classes: (fields, kind of tokenizer, its file)}
FAMILIES = {
    "Bert": (SMALL, "wordpiece", "vocab.txt"),
    "Roberta": (SMALL | {"type_vocab_size": 1, "pad_token_id": 1}, "bpe", "tokenizer.json"),
    "XLMRoberta": (SMALL | {"type_vocab_size": 1, "pad_token_id": 1}, "xlm-r", "sentencepiece.bpe.model"),
    "DistilBert": (DISTILBERT, "wordpiece", "vocab.txt"),
    "Albert": (SMALL | {"embedding_size": 24}, "albert", "spiece.model"),
    "Electra": (SMALL | {"embedding_size": 24}, "wordpiece", "vocab.txt"),
    "DebertaV2": (SMALL | DEBERTA, "deberta", "spm.model"),
    "ModernBert": (SMALL | TOKENS | {"local_attention": 16}, "bpe", "tokenizer.json"),
}
SEQUENCE = "ForSequenceClassification"
# {case: (end of the class, fields, columns to name, what makes predictions of logits)}
HEADS = {
    "single label": (SEQUENCE, {"num_labels": 3}, {}, lambda x: torch.softmax(x, -1)),
    "several labels": (
        SEQUENCE, {"num_labels": 3, "problem_type": "multi_label_classification"}, {}, torch.sigmoid,
    ),
    "regression": (SEQUENCE, {"num_labels": 1, "problem_type": "regression"}, {}, lambda x: x),
    "cross-encoder": (SEQUENCE, {"num_labels": 1}, {}, torch.sigmoid),
    "tokens": ("ForTokenClassification", {"num_labels": 3}, {}, lambda x: torch.softmax(x, -1)),
    "questions": ("ForQuestionAnswering", {}, {}, lambda x: x),
    "choices": ("ForMultipleChoice", {}, {"choices": "x,y,z"}, lambda x: torch.softmax(x, -1)),
}  # fmt: skip
ROWS = {
    "tokens": ["the red cat", "a blue dog is big"],
    "questions": [{"question": "is", "context": "the cat is a big dog"}, {"question": "a", "context": "red"}],
    "choices": [{"text": "the cat", "x": "is", "y": "is a dog", "z": "red"}],
}
TEXTS = ["the red cat", "a blue dog\tthe bird is small and green"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    return small_tokenizers.write(tmp_path_factory.mktemp("tokenizers"))


def save(model, folder, tokenizers, family):
    _, kind, name = FAMILIES[family]
    model.save_pretrained(folder)
    shutil.copyfile(tokenizers[kind][0], folder / name)


def logits_there(model, rows, count):
    """Those of each group of `count` rows, whose tokens are `rows`, one at a time, without padding."""
    found = []
    for i in range(0, len(rows), count):
        outputs = []
        for row in range(i, i + count):
            ids = torch.tensor(rows.tokens[rows.offsets[row] : rows.offsets[row + 1]].astype(np.int64))[None]
            given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            if getattr(model.config, "type_vocab_size", 0) > 1:
                is_second = torch.arange(ids.shape[1]) >= int(rows.first_lengths[row])
                given["token_type_ids"] = is_second.long()[None]
            if count > 1:
                given = {name: x[None] for name, x in given.items()}
            with torch.no_grad():
                output = model(**given)
            if "start_logits" in output:
                outputs.append(torch.stack([output.start_logits[0], output.end_logits[0]], -1))
            else:
                outputs.append(output.logits[0])
        found.append(torch.cat(outputs)[None] if count > 1 else outputs[0])
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", HEADS)
def test_predictions_are_those_of_transformers(tokenizers, tmp_path, head, family):
    end, fields, columns, activation = HEADS[head]
    model = random_model(family + end, **FAMILIES[family][0] | fields)
    save(model, tmp_path, tokenizers, family)
    here = Predictor(tmp_path, columns=columns, dtype="float32", **QUIET)
    rows = [here.row_of(item) for item in ROWS.get(head, TEXTS)]
    encoded = here.task.encode(here.reader.examples(list(enumerate(rows, 1))))
    found = here(encoded)
    theirs = [activation(x).numpy() for x in logits_there(model, encoded, encoded.rows_per_example)]
    theirs = np.concatenate(theirs) if theirs[0].ndim > 1 else np.stack(theirs)
    assert theirs.shape == found.shape and (head == "choices" or np.std(theirs) > 1e-3)
    np.testing.assert_allclose(found, theirs, atol=1e-5)


def test_texts_to_predictions_as_pipelines_and_cross_encoders_give_them(tokenizers, tmp_path):
    names = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
    classes, scores = tmp_path / "classes", tmp_path / "scores"
    save(random_model("Bert" + SEQUENCE, **SMALL | names), classes, tokenizers, "Bert")
    pipeline = transformers.pipeline("text-classification", str(classes), top_k=None)
    found = Predictor(classes, **QUIET).predict_rows(ROWS["tokens"])
    for one, theirs in zip(found, pipeline(ROWS["tokens"]), strict=True):
        assert one["prediction"] == theirs[0]["label"]
        expected = {each["label"]: each["score"] for each in theirs}
        assert one["probabilities"] == pytest.approx(expected, abs=2e-6)
    sentence_transformers = pytest.importorskip("sentence_transformers")
    save(random_model("Bert" + SEQUENCE, **SMALL | {"num_labels": 1}), scores, tokenizers, "Bert")
    pairs = [("the red cat", "a blue dog"), ("the bird", "is small and green")]
    for activation in (torch.nn.Sigmoid(), torch.nn.Identity()):
        encoder = sentence_transformers.CrossEncoder(str(scores), activation_fn=activation, device="cpu")
        encoder.save_pretrained(str(tmp_path / "saved"))
        found = Predictor(tmp_path / "saved", **QUIET).predict_rows("\t".join(pair) for pair in pairs)
        expected = encoder.predict(pairs)
        np.testing.assert_allclose([one["prediction"] for one in found], expected, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_untied_decoder_and_its_export(tokenizers, tmp_path, family):
    model = random_model(f"{family}ForMaskedLM", **FAMILIES[family][0], tie_word_embeddings=False)
    save(model, tmp_path / "theirs", tokenizers, family)
    conversion.convert(tmp_path / "theirs", tmp_path / "run", to="bert_jax", **QUIET)
    conversion.convert(tmp_path / "run", tmp_path / "ours", to="huggingface", **QUIET)
    loaded, again = convert.load(tmp_path / "run", **QUIET), type(model).from_pretrained(tmp_path / "ours")
    inputs = parity.random_inputs(loaded.config)
    given = {"input_ids": inputs["input_ids"], "attention_mask": inputs["mask"]}
    if loaded.config.type_vocab_size > 1:
        given["token_type_ids"] = inputs["token_type_ids"]
    given = {name: torch.tensor(x.astype(np.int64)) for name, x in given.items()}
    ours = parity.flax_outputs(loaded)["mlm"]
    for theirs in (model, again.eval()):
        with torch.no_grad():
            logits = theirs(**given).logits.numpy()
        expected = parity.without_padding({"mlm": logits}, inputs["mask"])["mlm"]
        np.testing.assert_allclose(ours, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("legacy", [True, False])
def test_both_forms_of_a_debertas_masked_lm(tmp_path, legacy):
    """Microsoft's form multiplies states of the width of the word embeddings."""
    fields = SMALL | DEBERTA | ({} if legacy else {"embedding_size": 32, "legacy": False})
    model = random_model("DebertaV2ForMaskedLM", **fields)
    model.save_pretrained(tmp_path)
    loaded, ids = convert.load(tmp_path, **QUIET), np.arange(5, 25).reshape(2, 10)
    with torch.no_grad():
        theirs = model(torch.tensor(ids)).logits.numpy()
    module = loaded.module.clone(config=loaded.config.replace(dtype="float32"))
    inputs = (np.int32(x) for x in (ids, 0 * ids, np.arange(10) + 0 * ids, 1 + 0 * ids))
    ours = module.apply({"params": nest(loaded.params)}, *inputs)["mlm"]
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())
