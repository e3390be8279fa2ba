"""A build that finds something in its directory: records, unfinished work, or another build."""

import dataclasses
import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest
from support.builds import contents, interrupted

from bert_jax.errors import UserError
from bert_jax.tokenization import byte_bpe, templates
from data_pipelines import build

ROOT = Path(__file__).resolve().parents[2]


def test_finished_records_are_left_and_others_refused(options):
    assert not build.build(options).already_done
    before = contents(options.output)
    assert build.build(dataclasses.replace(options, input_format="text"), workers=2).already_done
    with pytest.raises(UserError, match=r"holds other records .seed 7, not 8.; --overwrite replaces them"):
        build.build(dataclasses.replace(options, seed=8))
    assert contents(options.output) == before
    others = dataclasses.replace(options, seed=8)
    assert not build.build(others, overwrite=True).already_done
    replaced = contents(options.output)
    assert replaced.keys() == before.keys() and replaced != before
    assert build.build(others, overwrite=True).already_done  # the same settings are not made again


def test_unfinished_records_of_other_settings_are_dropped_only_when_asked(options, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build._Build, "_make", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build.build(options)
    others = dataclasses.replace(options, seed=8)
    left = Path(options.output) / build.UNFINISHED / "left"
    left.write_text("of seed 7")
    with pytest.raises(UserError, match=r"unfinished run .*seed 7, not 8.*--overwrite"):
        build.build(others)
    assert left.exists()
    assert not build.build(others, overwrite=True).already_done
    assert not left.parent.exists() and build.build(others).already_done


@pytest.fixture
def about_to_replace(options, tmp_path):
    """Returns (options, a function that restores a build that is about to replace records, the old files)."""
    ids = {token: i for i, token in enumerate(byte_bpe.ROBERTA_TOKENS.values())}
    ids |= {token: len(ids) + i for i, token in enumerate(byte_bpe.ALPHABET)}
    content = byte_bpe.tokenizer_json(ids, [], byte_bpe.ROBERTA_TOKENS, templates.ROBERTA)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    old = {"vocab": str(tmp_path / "tokenizer.json"), "clean": "unicode", "num_shards": 3}
    build.build(dataclasses.replace(options, **old))
    before = contents(options.output)
    options = dataclasses.replace(options, num_shards=2)

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build, "move_records", stop)
        build.build(options, overwrite=True)
    assert before.items() <= contents(options.output).items()
    os.rename(options.output, tmp_path / "saved")

    def restore():
        shutil.rmtree(options.output, ignore_errors=True)
        shutil.copytree(tmp_path / "saved", options.output)

    return options, restore, before


def stopped(moment, function):
    """Whether a call of `function` was stopped at its n-th file that was about to be renamed or removed."""
    count = iter(range(10**6))

    def stopping(change):
        def changed(*args, **kwargs):
            if next(count) == moment:
                raise KeyboardInterrupt
            change(*args, **kwargs)

        return changed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", stopping(os.replace))
        patch.setattr(os, "unlink", stopping(os.unlink))
        try:
            function()
        except KeyboardInterrupt:
            return True
    return False


@pytest.mark.long
def test_killed_while_it_replaces_records_it_goes_on(about_to_replace, tmp_path):
    options, restore, before = about_to_replace
    expected = dataclasses.replace(options, output=str(tmp_path / "expected"))
    build.build(expected)
    moment, removing = 0, 0
    while restore() or stopped(moment, lambda: build.build(options, overwrite=True)):
        left = contents(options.output)
        if left.get("manifest.json") == before["manifest.json"]:
            assert before.items() <= left.items()
            with pytest.raises(UserError, match="holds other records"):
                build.build(options)
            build.build(options, overwrite=True)
        else:
            removing += 1
            build.build(options)  # no --overwrite: nothing is left to keep
        assert contents(options.output) == contents(expected.output)
        moment += 1
    assert removing > 12  # eight old files and seven new ones
    assert contents(options.output) == contents(expected.output)


def test_records_that_are_not_whole_are_made_again(options):
    build.build(options)
    expected = contents(options.output)
    path = Path(options.output) / "train-00000-of-00001.tfrecord"
    vocabulary = path.with_name("vocab.txt")
    spoiled = (path.unlink, lambda: os.truncate(path, 100), vocabulary.unlink)
    for spoil in (*spoiled, lambda: vocabulary.write_text("another")):
        spoil()
        assert not build.build(options).already_done
        assert contents(options.output) == expected


def damage(options):
    """Changes a byte of a record file of finished records."""
    path = Path(options.output) / "train-00000-of-00001.tfrecord"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def test_damaged_records_are_made_again_with_overwrite(options):
    build.build(options)
    expected = contents(options.output)
    damage(options)
    assert build.build(options).already_done  # without --overwrite, the files are not read
    assert not build.build(options, overwrite=True).already_done
    assert contents(options.output) == expected
    assert build.build(options, overwrite=True).already_done


@pytest.mark.parametrize("moment", [2, 5, 9, 14, 18])
def test_interrupted_it_goes_on_and_the_bytes_are_the_same(options, small_steps, tmp_path, moment):
    """Stops at the n-th file that is about to appear, as a kill there would."""
    expected = dataclasses.replace(options, output=str(tmp_path / "expected"))
    build.build(expected)
    with interrupted(moment, match=r"run the same command again to resume from .*unfinished"):
        build.build(options)
    assert not os.path.exists(os.path.join(options.output, "manifest.json"))
    with pytest.raises(UserError, match=r"unfinished run with other flags .dupe_factor 1, not 2."):
        build.build(dataclasses.replace(options, dupe_factor=2))
    build.build(options)
    assert contents(options.output) == contents(expected.output)


def test_two_builds_of_one_directory(options):
    unfinished = Path(options.output) / build.UNFINISHED
    unfinished.mkdir(parents=True)
    with open(unfinished / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another `bert-jax data` is writing"):
            build.build(options)
    build.build(options)
