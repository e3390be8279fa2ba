import jax
import numpy as np
from models_support import packed_batch, tiny_task

from bert_jax.pretraining import unpack


def test_unpacking_a_row_by_hand():
    # [CLS] a [SEP] b b [SEP] | [CLS] c c [SEP] d [SEP], then padding
    batch = {
        "input_ids": np.zeros((1, 14), np.int32),
        "lengths": np.array([12]),
        "starts": np.array([[0, 6, 14]]),
        "first_lengths": np.array([[3, 4, 0]]),
    }
    out = jax.tree.map(lambda x: np.asarray(x)[0].tolist(), unpack(batch))
    assert out["sequence_ids"] == [1] * 6 + [2] * 6 + [0, 0]
    assert out["position_ids"] == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 0]
    assert out["token_type_ids"] == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0]
    assert out["cls_positions"] == [0, 6, 13]


def test_unpacking_against_a_loop():
    batch = packed_batch(rows=32, length=48, slots=4)
    out = jax.tree.map(np.asarray, unpack(batch))
    for row in range(32):
        count = int((batch["first_lengths"][row] > 0).sum())
        ends = [*batch["starts"][row, 1:count], batch["lengths"][row]]
        for slot, (start, end) in enumerate(zip(batch["starts"][row, :count], ends, strict=True)):
            first = batch["first_lengths"][row, slot]
            assert (out["sequence_ids"][row, start:end] == slot + 1).all()
            assert (out["position_ids"][row, start:end] == np.arange(end - start)).all()
            assert (out["token_type_ids"][row, start:end] == (np.arange(end - start) >= first)).all()
            assert batch["input_ids"][row, out["cls_positions"][row, slot]] == 2
        assert (
            not out["sequence_ids"][row, ends[-1] :].any()
            and not out["token_type_ids"][row, ends[-1] :].any()
        )


def test_absent_sequences_do_not_weigh():
    task = tiny_task()
    batch = packed_batch(rows=8)
    prepared = task.prepare(batch, jax.random.key(0), True)
    weights = task.loss_weights(prepared)
    assert weights["nsp"] == (batch["next_sentence_labels"] >= 0).sum()
    expected = sum(min(8, max(1, round(0.15 * int(n)))) for n in batch["lengths"])
    assert weights["mlm"] == expected


def test_expected_initial_loss():
    assert abs(tiny_task(vocab_size=30522).expected_initial_loss - (10.33 + 0.69)) < 0.01
