"""The tutorials and the README's commands run, with few steps and a small model for the released one."""

import re
import shutil

import pytest
from support import pages, processes
from support.conversions import random_model

from bert_jax import tokenization
from bert_jax.convert.formats import huggingface
from bert_jax.models.config import EncoderConfig

FOLDER = pages.REPOSITORY / "docs" / "tutorials"
README = (pages.REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = sorted(FOLDER.glob("*.md"))
MODEL = "sentence-transformers/all-MiniLM-L6-v2"  # that they start from; a folder of this name comes first
NOT_RUN = ("tpu-pod",)
SHORT = {
    "pretrain": ["--config.steps=20", "--config.checkpoint.every=20"],
    "finetune": ["--config.epochs=0.1"],
}
SHELL = ["bash", "-e", "-o", "pipefail"]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """A folder of Hugging Face with a small random BERT."""
    folder = tmp_path_factory.mktemp("model")
    vocabulary = processes.write_vocabulary(folder / "words.txt")
    letters = [f"{mark}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz" for mark in ("", "##")]
    vocabulary.write_text(vocabulary.read_text() + "\n".join(letters) + "\n")
    tokenizer = tokenization.load(vocabulary)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    (folder / "released").mkdir()
    huggingface.FORMAT.write(random_model(config, tokenizer=tokenizer), folder / "released")
    return folder / "released"


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in PAGES if path.stem not in NOT_RUN])
def test_the_commands_run(name, small_model, tmp_path):
    place = pages.Place(tmp_path / name, SHORT)
    shutil.copytree(small_model, place.path / MODEL)
    blocks = pages.blocks((FOLDER / f"{name}.md").read_text(encoding="utf-8"), "bash")
    place.run(SHELL, "\n".join(blocks))
    assert place.path.joinpath("runs").is_dir()


def test_a_command_that_fails_fails_the_run(tmp_path):
    with pytest.raises(AssertionError, match="'vocob' is not a command"):
        pages.Place(tmp_path / "place").run(SHELL, "bert-jax vocob | cat\necho done\n")


def test_the_readme_shows_what_pre_training_prints(tmp_path):
    """The commands from raw text to a checkpoint print the README's lines, up to the numbers."""
    (block,) = (text for text in pages.blocks(README, "") if text.startswith("$ bert-jax vocab"))
    steps = ["--config.steps=4", "--config.eval.batches=1"]
    short = {"vocab": ["--size=400"], "data": ["--eval_fraction=0.2"], "pretrain": steps}
    place = pages.Place(tmp_path / "readme", short)
    (place.path / "wiki").mkdir()
    text = re.sub(r"[^\w\s.,]", " ", README)
    articles = [f'<doc id="{n}" url="" title="t">\nt\n\n{n} {text}\n</doc>\n' for n in range(16)]
    (place.path / "wiki" / "wiki_00").write_text("".join(articles), encoding="utf-8")
    for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)+)", block, re.M):
        if command.split()[1] in ("vocab", "data", "pretrain", "convert"):
            printed = [_masked(line) for line in place.run(SHELL, f"{command} 2>&1").splitlines()]
            for line in shown.splitlines():
                start = _masked(line.removesuffix(" ..."))
                assert any(one.startswith(start) for one in printed), (command, line, printed)


def _masked(line):
    """A line of output with each number as 0."""
    return re.sub(r"\s*[-+]?\d[\d,.]*(e[-+]\d+)?(%| [kMG]B)?", " 0", line).strip()
