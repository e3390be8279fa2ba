"""After each of fifty kills of all writing commands, no output is partial and a second call succeeds."""

import collections
import csv
import hashlib
import os
import random
import re
import shutil
import signal
import time

import pytest
from support import fine_tuned, processes

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("BERT_JAX_KILLS", "50"))
# Files that differ between two equal runs: times, and a lock file, which a kill leaves non-empty.
UNLIKE = ("metrics.jsonl", ".lock", "tensorboard")


@pytest.fixture(scope="module")
def given(tmp_path_factory, server):
    """The inputs of all commands: text, records, a table, a pre-trained and a fine-tuned run."""
    folder = tmp_path_factory.mktemp("given")
    records = processes.write_records(folder / "records")
    vocabulary = folder / "vocab.txt"
    shutil.copy(records / "vocab.txt", vocabulary)
    rng = random.Random(0)
    sentences = [" ".join(f"word{rng.randrange(95)}" for _ in range(rng.randint(4, 20))) for _ in range(6000)]
    documents = ["\n".join(sentences[n : n + 8]) for n in range(0, len(sentences), 8)]
    (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    (folder / "texts.txt").write_text("\n".join(sentences[:800]) + "\n")
    for name, rows in (("train.csv", sentences[:64]), ("dev.csv", sentences[64:128]), ("new.csv", sentences)):
        with open(folder / name, "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["text", "label"])
            table.writerows([text, "ab"[len(text) % 2]] for text in rows)
    output = folder / "output"
    for command in (
        processes.command(folder / "pretrained", records, **{"eval.every": 0, "steps": 6}),
        finetune(folder, folder / "finetuned"),
    ):
        assert server.run(command, output) == 0, output.read_text()
    return folder


def finetune(given, workdir):
    flags = ("--config.max_seq_length=32", "--config.batch_size=16", "--config.epochs=4")
    flags += ("--config.eval.every=2", "--config.checkpoint.every=2")
    return fine_tuned.command(given, workdir, given / "pretrained", *flags)


# The arguments of commands that read files in GIVEN and write to OUT; `arguments` has the other two.
COMMANDS = {
    "vocab": "vocab --input=GIVEN/corpus.txt --output=OUT/v.txt --size=300",
    "data": (
        "data --input=GIVEN/corpus.txt --vocab=GIVEN/vocab.txt --output=OUT/records --max_seq_length=32 "
        "--workers=2 --eval_fraction=0.1 --dupe_factor=3 --clean=exact"
    ),
    "pretrain": "",
    "finetune": "",
    "evaluate": "evaluate --workdir=GIVEN/finetuned --input=GIVEN/new.csv --output=OUT/scored.tsv",
    "predict": "predict --workdir=GIVEN/finetuned --input=GIVEN/new.csv --output=OUT/predicted.jsonl",
    "embed": "embed --model=GIVEN/pretrained --input=GIVEN/texts.txt --output=OUT/vectors.npy",
    "convert-huggingface": "convert --input=GIVEN/pretrained --output=OUT/exported --to=huggingface",
    "convert-native": "convert --input=GIVEN/pretrained --output=OUT/exported --to=bert_jax",
    "plot": "plot --workdir=GIVEN/pretrained --output=OUT/curves.png",
}


def arguments(name, given, out):
    if name == "pretrain":
        fields = {"checkpoint.every": 2, "eval.every": 4}
        return processes.command(out / "run", given / "records", **fields)
    if name == "finetune":
        return finetune(given, out / "run")
    words = COMMANDS[name].split()
    return [word.replace("GIVEN", str(given)).replace("OUT", str(out)) for word in words]


RESUMABLE = ("data", "pretrain", "finetune")


def contents(folder):
    """Returns {path: digest} of the files, except those that differ between two equal runs."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not any(part in UNLIKE for part in path.parts):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


# Files whose bytes depend on the time or the path of writing: checkpoints, which are compared by content,
# configurations and model cards, which contain the command line, and a picture.
APART = ("checkpoints/", "best/", "exported/", "run/config.json", "README.md", "curves.png")


def comparable(found):
    return {name: digest for name, digest in found.items() if not any(part in name for part in APART)}


def assert_right(name, out, expected):
    """Asserts that the output equals the output of an undisturbed command."""
    found = contents(out)
    one, two = comparable(found), comparable(contents(expected))
    assert one == two, {
        n: (one.get(n), two.get(n)) for n in one.keys() | two.keys() if one.get(n) != two.get(n)
    }
    assert {path.name for path in out.iterdir()} == {path.name for path in expected.iterdir()}, "left behind"
    from bert_jax import checkpoint

    for path in sorted(expected.glob("*/checkpoints/*")) + sorted(expected.glob("*/best/*")):
        if path.name.isdigit():
            assert checkpoint.verify(out / path.relative_to(expected)) == checkpoint.verify(path), path
    if name.startswith("convert"):
        from bert_jax import convert

        ours, theirs = (convert.load(str(folder / "exported")) for folder in (out, expected))
        assert {n: x.tobytes() for n, x in ours.params.items()} == {
            n: x.tobytes() for n, x in theirs.params.items()
        }


def assert_nothing_half(name, out, expected):
    """Asserts that the output of a killed command is either absent or complete."""
    if name in ("pretrain", "finetune", "data"):
        manifest = out / "records" / "manifest.json"
        if manifest.exists():  # it is written last
            missing = comparable(contents(expected)).keys() - contents(out).keys()
            assert not missing, missing
        return
    for path in expected.iterdir():
        made = out / path.name
        if made.is_file() and name != "plot":
            assert made.read_bytes() == path.read_bytes(), f"{path.name} is half"
        elif made.is_dir():
            assert_right(name, out, expected)


def test_killed_at_any_moment_the_same_command_then_succeeds(server, given, tmp_path):
    rng, tally, output = random.Random(50), collections.Counter(), tmp_path / "output"
    expected, seconds = {}, {}
    for name in COMMANDS:
        expected[name] = tmp_path / "expected" / name
        expected[name].mkdir(parents=True)
        assert server.run(arguments(name, given, expected[name]), output) == 0, output.read_text()
        shutil.rmtree(expected[name])  # compiled programs are kept: this run was slower than the next ones
        expected[name].mkdir()
        began = time.monotonic()
        assert server.run(arguments(name, given, expected[name]), output) == 0, output.read_text()
        seconds[name] = time.monotonic() - began
    began, number = time.monotonic(), 0
    while sum(tally.values()) < KILLS:
        name = list(COMMANDS)[number % len(COMMANDS)]
        sent = (signal.SIGKILL, signal.SIGTERM)[number // len(COMMANDS) % 2]
        out = tmp_path / str(number) / name
        out.mkdir(parents=True)
        number += 1
        command = arguments(name, given, out)
        server.start(command, output)
        time.sleep(rng.uniform(0.02, seconds[name]))
        server.kill(sent)
        code, text = server.wait(), output.read_text()
        if code != 0:  # it was not finished yet
            tally[sent.name] += 1
            if sent == signal.SIGTERM:
                # At the start, before a handler is set, the system's default applies.
                assert code in ((3 if name in RESUMABLE else 143), -signal.SIGTERM), (name, code, text)
                assert "Traceback" not in text and "Exception ignored" not in text, (name, text)
                assert not [path.name for path in out.iterdir() if path.name.startswith(".")], name
            assert_nothing_half(name, out, expected[name])
            again = server.run(command, output)
            if again == 2 and re.search("is there already|exists already", output.read_text()):
                again = 0  # it was killed after its output was complete, which was checked above
            assert again == 0, (name, output.read_text())
        assert_right(name, out, expected[name])
    print(f"\n{dict(tally)} over {len(COMMANDS)} commands; {time.monotonic() - began:.0f} s")
