"""The tutorials run, and pages show what commands print, with few steps and a small random model."""

import re
import shutil

import pytest
from support import pages, processes
from support.conversions import random_model

from bert_jax import tokenization
from bert_jax.convert.formats import huggingface
from bert_jax.models.config import EncoderConfig

DOCS = pages.REPOSITORY / "docs"
FOLDER = DOCS / "tutorials"
PAGES = sorted(FOLDER.glob("*.md"))
MODEL = "sentence-transformers/all-MiniLM-L6-v2"  # that they start from; a folder of this name comes first
NOT_RUN = ("tpu-pod",)
SHOWN = ("corpora", "pretraining", "conversion", "embeddings", "serving")
SHORT = {
    "pretrain": ["--config.steps=20", "--config.checkpoint.every=20"],
    "finetune": ["--config.epochs=0.1"],
}
SHELL = ["bash", "-e", "-o", "pipefail"]


def small(layers, tokenizer=None):
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size if tokenizer else 64,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    return random_model(config, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """A folder of Hugging Face with a small random BERT."""
    folder = tmp_path_factory.mktemp("model")
    vocabulary = processes.write_vocabulary(folder / "words.txt")
    letters = [f"{mark}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz." for mark in ("", "##")]
    vocabulary.write_text(vocabulary.read_text() + "\n".join(letters) + "\n")
    (folder / "released").mkdir()
    huggingface.FORMAT.write(small(2, tokenization.load(vocabulary)), folder / "released")
    return folder / "released"


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in PAGES if path.stem not in NOT_RUN])
def test_the_commands_run_and_print_what_the_page_shows(name, small_model, tmp_path):
    place = pages.Place(tmp_path / name, SHORT)
    shutil.copytree(small_model, place.path / MODEL)
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    output = place.run(SHELL, "\n".join(pages.blocks(text, "bash")))
    missing = _missing("".join(pages.blocks(text, "text")), output)
    # Answers of a model begin with a number or a bracket, and the released one is not read from the hub.
    assert not [line for line in missing if not re.match(r"0|\[|\{|loaded", line)]


@pytest.fixture(scope="module")
def place(small_model, tmp_path_factory):
    """A directory with the files that the commands of the pages read."""
    steps = ["--config.steps=4", "--config.eval.batches=1"]
    short = {"vocab": ["--size=400"], "data": ["--eval_fraction=0.2"], "pretrain": steps}
    place = pages.Place(tmp_path_factory.mktemp("pages") / "place", short)
    shutil.copytree(small_model, place.path / MODEL)
    (place.path / "bert-base-uncased").mkdir()
    huggingface.FORMAT.write(small(12), place.path / "bert-base-uncased")
    (place.path / "wiki").mkdir()
    text = re.sub(r"[^\w\s.,]", " ", (pages.REPOSITORY / "README.md").read_text(encoding="utf-8"))
    articles = [f'<doc id="{n}" url="" title="t">\nt\n\n{n} {text}\n</doc>\n' for n in range(16)]
    (place.path / "wiki" / "wiki_00").write_text("".join(articles), encoding="utf-8")
    hits = re.findall(r"^ +\d+ +\S+ +\d+  (.*)", (DOCS / "embeddings.md").read_text(encoding="utf-8"), re.M)
    (place.path / "mrpc.txt").write_text("".join(hit.replace("…", 80 * "x") + "\n" for hit in hits))
    rows = [("sentence1", "sentence2", "score"), *((f"{n} a", "a b", n) for n in range(5))]
    (place.path / "glue" / "STS-B").mkdir(parents=True)
    table = "".join("\t".join(map(str, row)) + "\n" for row in rows)
    (place.path / "glue" / "STS-B" / "dev.tsv").write_text(table)
    (place.path / "train.csv").write_text("review,verdict\na moving film,good\ndull,bad\n")
    flags = "--train=train.csv --eval=train.csv --text=review --label=verdict --workdir=runs/reviews"
    place.run(SHELL, f"bert-jax finetune --model={MODEL} {flags} --config.epochs=1")
    return place


@pytest.mark.long
def test_pages_show_what_their_commands_print(place):
    """Every shown line is the beginning of a printed one, with numbers, labels and paths masked."""
    outputs, missing = {}, []
    for path in (pages.REPOSITORY / "README.md", *(DOCS / f"{name}.md" for name in SHOWN)):
        text = "\n".join(pages.blocks(path.read_text(encoding="utf-8"), ""))
        for command, shown in re.findall(r"^\$ (.*bert-jax (?!fill-mask).*)\n((?:[^$\n].*\n)+)", text, re.M):
            if command not in outputs:
                outputs[command] = place.run(SHELL, f"{command} 2>&1")
            missing += [(path.name, command, line) for line in _missing(shown, outputs[command])]
    assert not missing and len(outputs) == 10


def _missing(shown, output):
    """Returns the masked lines of `shown` that are not the beginning of a line of `output`."""
    printed = [_masked(line) for line in output.splitlines()]
    # Lines may end with "...", or with a list of reasons that another text does not have.
    starts = [_masked(re.sub(r"(^| )(\.\.\.|\([a-z ]+\d.*\))$", "", line)) for line in shown.splitlines()]
    return [start for start in starts if not any(line.startswith(start) for line in printed)]


def _masked(line):
    """A line of output with each number as 0, without paths before `runs` and labels."""
    line = re.sub(r"\S*/runs/", "/runs/", line).replace('"bad"', '"good"')
    return re.sub(r"\s*[-+]?\d[\d,.]*(e[-+]\d+)?(%| [kMG]B)?", " 0", line).strip()
