from bert_jax.data.best_fit import best_fit


def test_the_tightest_row_takes_the_longest_first():
    assert best_fit([50, 60, 40, 30, 10, 14], 64, 8) == [[1], [0, 5], [2, 4], [3]]


def test_a_row_is_left_when_it_holds_enough_sequences():
    assert best_fit([3, 3, 3], 64, 2) == [[0, 1], [2]]
    assert best_fit([], 64, 2) == []
