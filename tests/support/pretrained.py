"""A tiny pre-trained checkpoint and a task that its vocabulary can express."""

import pytest
from support.tiny_model import draw_parameters, tiny_config

from bert_jax import checkpoint, tokenization
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import MaskingOptions, Vocabulary
from bert_jax.workdir import run_directory

WORDS = "red green blue one two three cat dog bird the a is big small".split()


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s"]) + "\n")
    return path


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory, vocabulary):
    return write(tmp_path_factory.mktemp("pretrained"), vocabulary)


def write(directory, vocabulary, next_sentence=True, **fields):
    """Writes a work directory as pre-training leaves it, with drawn weights, and returns it."""
    tokenizer = tokenization.load(vocabulary)
    config = tiny_config(tokenizer.vocab_size).replace(**fields)
    special = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id)
    known = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id, special, tokenizer.is_continuation)
    task = MaskedLM(config, known, MaskingOptions(), next_sentence_head=next_sentence)
    with run_directory.WorkDir(directory) as held:
        run = {"command": "pretrain", "config": {"model": config.to_dict()}}
        held.open_run(run | {"vocabulary": tokenizer.settings()}, {})
        held.copy_vocabulary(tokenizer.path)
        keeper = checkpoint.Checkpointer(held.checkpoints)
        keeper.save(7, {"params": draw_parameters(task)})
        keeper.close()
    return directory
