"""The minimal pairs of bert-jax."""

from collections import Counter

from bert_jax import tokenization
from bert_jax.inference import minimal_pairs

NPI = ("npi_ever", "npi_any")


def words(sentence):
    return sentence.removesuffix(".").lower().split()


def test_each_pair_differs_in_one_word():
    pairs = minimal_pairs.generate()
    assert len(set(pairs)) == len(pairs) and minimal_pairs.generate() == pairs
    counts = Counter(pair.phenomenon for pair in pairs)
    assert len(counts) == 8 and all(50 <= count <= 100 for count in counts.values())
    for pair in pairs:
        good, bad = words(pair.good), words(pair.bad)
        assert len(good) == len(bad) and sum(a != b for a, b in zip(good, bad, strict=True)) == 1
        assert pair.good[0].isupper() and pair.good.endswith(".") and "  " not in pair.good


def test_no_word_is_right_more_often_than_the_other():
    """A model that always prefers the same word of two gets half of the pairs right."""
    directions = Counter()
    for pair in minimal_pairs.generate():
        differing = [(a, b) for a, b in zip(words(pair.good), words(pair.bad), strict=True) if a != b]
        directions[pair.phenomenon, *differing[0]] += 1
    for (phenomenon, good, bad), count in directions.items():
        if phenomenon in NPI:
            assert (good, bad) in {
                ("no", "the"), ("few", "most"), ("not", "also"), ("without", "with"),
            }  # fmt: skip
        else:
            assert directions[phenomenon, bad, good] == count, (phenomenon, good, bad)


def test_agreement_is_with_the_subject():
    singular, plural = {"is", "was", "has", "lives", "works"}, {"are", "were", "have", "live", "work"}
    seen = Counter()
    for pair in minimal_pairs.generate():
        if pair.phenomenon.startswith("agreement"):
            _, subject, *rest = words(pair.good)
            (verb,) = singular & set(rest) or plural & set(rest)
            assert (verb in plural) == subject.endswith("s"), pair
            nouns = [word for word in rest[: rest.index(verb)] if word.endswith("s")]
            if pair.phenomenon != "agreement":  # the noun between has the other number
                assert bool(nouns) == (verb in singular), pair
            seen[pair.phenomenon, verb in plural] += 1
    assert set(seen.values()) == {40}


def test_every_word_is_a_token(shared_data):
    tokenizer = tokenization.load(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    pairs = minimal_pairs.generate()
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    for sentence, ids in zip(sentences, tokenizer.encode_batch(sentences), strict=True):
        assert len(ids) == len(words(sentence)) + 1, sentence
