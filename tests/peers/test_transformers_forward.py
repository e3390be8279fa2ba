"""What a BERT computes here and in transformers: PyTorch on the CPU, float32, eager attention."""

import numpy as np
import pytest
from support import minilm
from support.transformers_models import (
    apply,
    here,
    hidden_states,
    random_batch,
    random_bert,
    torch,
    torch_inputs,
    transformers,
)

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.models import Pooler, PretrainingModel
from bert_jax.models.row_inputs import packed_inputs

pytestmark = pytest.mark.peer

BOUND = 2e-5


class Differences:
    """The largest absolute difference of each output, where there are tokens."""

    def __init__(self, title):
        self.title, self.worst, self.largest = title, {}, {}

    def add(self, name, ours, theirs, real=None):
        theirs = theirs.numpy()
        assert ours.shape == theirs.shape
        if real is not None:
            ours, theirs = ours[real], theirs[real]
        self.worst[name] = max(self.worst.get(name, 0), float(np.abs(ours - theirs).max()))
        self.largest[name] = max(self.largest.get(name, 0), float(np.abs(theirs).max()))
        assert theirs.std() > 0.05  # else there is nothing to compare

    def check(self):
        for name, worst in self.worst.items():
            print(f"| {self.title} | {name} | {worst:.1e} | {self.largest[name]:.1f} |")
        assert max(self.worst.values()) <= BOUND, self.worst


def model_inputs(batch):
    """`input_ids`, `token_type_ids`, `position_ids`, `sequence_ids` [B, L] and where the tokens are."""
    rows = {name: np.asarray(value) for name, value in packed_inputs(batch).items()}
    inputs = [batch["input_ids"], rows["token_type_ids"], rows["position_ids"], rows["sequence_ids"]]
    return inputs, rows["sequence_ids"] > 0


@pytest.mark.parametrize("size", ["tiny", "mini", "base"])
def test_random_weights(size, tmp_path):
    theirs = random_bert(size)
    batch = random_batch(rows=4, length=64 if size == "base" else 128, predictions=12)
    inputs, real = model_inputs(batch)
    with torch.no_grad():
        expected = theirs(**torch_inputs(theirs, batch), output_hidden_states=True)
        pooled = theirs.bert.pooler(expected.hidden_states[-1])
    config, params = here(theirs, tmp_path)

    found = Differences(f"{size}, random weights")
    states = hidden_states(config, params, inputs)
    assert len(states) == len(expected.hidden_states) == config.num_hidden_layers + 1
    for ours, other in zip(states, expected.hidden_states, strict=True):
        found.add("hidden states", ours, other, real)
    found.add("last hidden state", states[-1], expected.hidden_states[-1], real)
    found.add("pooled", apply(Pooler(config), params["pooler"], states[-1][:, 0]), pooled)
    positions = np.broadcast_to(np.arange(real.shape[1], dtype=np.int32), real.shape)
    mlm, nsp = apply(PretrainingModel(config), params, *inputs, positions, positions[:, :1])
    found.add("masked LM logits", mlm, expected.prediction_logits, real)
    found.add("next-sentence logits", nsp[:, 0], expected.seq_relationship_logits)
    found.check()


def test_real_weights_on_real_sentences(shared_data):
    folder = minilm.folder()
    theirs = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    model = convert.load(folder)
    lines = [line for line in (shared_data / "sample_text.txt").read_text("utf-8").split("\n") if line]
    pairs = model.tokenizer.encode_batch(lines)
    pairs = [(a[:60], b[:60]) for a, b in zip(pairs[::2], pairs[1::2], strict=False)]
    cls, sep = model.tokenizer.cls_id, model.tokenizer.sep_id
    rows = [[cls, *a, sep, *b, sep] for a, b in pairs]
    length = max(map(len, rows))
    batch = {
        "input_ids": np.array([row + [0] * (length - len(row)) for row in rows], np.int32),
        "lengths": np.array([len(row) for row in rows], np.int32),
        "starts": np.zeros((len(rows), 1), np.int32),
        "first_lengths": np.array([[len(a) + 2] for a, _ in pairs], np.int32),
    }
    inputs, real = model_inputs(batch)
    with torch.no_grad():
        expected = theirs(**torch_inputs(theirs, batch), output_hidden_states=True)
    params = nest(model.params)

    found = Differences(f"MiniLM, {len(rows)} pairs of real sentences")
    states = hidden_states(model.config, params, inputs)
    for ours, other in zip(states, expected.hidden_states, strict=True):
        found.add("hidden states", ours, other, real)
    found.add("last hidden state", states[-1], expected.last_hidden_state, real)
    pooled = apply(Pooler(model.config), params["pooler"], states[-1][:, 0])
    found.add("pooled", pooled, expected.pooler_output)
    found.check()
