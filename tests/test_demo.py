import jax
import pytest

from bert_jax import cli, demo


@pytest.mark.parametrize(
    "text, words, tags",
    [
        ("Return it. (The default.)", "return it the default", "O B-PERIOD O B-PERIOD"),
        ('A "file", or None!', "a file or none", "O B-COMMA O B-PERIOD"),
        ("os.path - see it , then 3.5: now?", "os.path - see it then 3.5 now", "O O O B-COMMA O O B-PERIOD"),
        (", and", "and", "O"),
        ("", "", ""),
    ],
)
def test_marks_become_tags_of_the_words_before_them(text, words, tags):
    assert demo.punctuation(text) == list(zip(words.split(), tags.split(), strict=True))


@pytest.mark.slow
def test_the_whole_way(tmp_path, capsys):
    assert jax.device_count() == 8
    assert cli.main(["demo", "--quick", f"--workdir={tmp_path}"]) == 0
    said = capsys.readouterr().out
    for text in (
        "$ bert-jax vocab",
        "$ bert-jax data",
        "$ bert-jax pretrain",
        "$ bert-jax plot",
        "for a guess by the frequency of words",
    ):
        assert text in said
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert all((tmp_path / f"finetune-{name}" / "best.json").exists() for name in ("pretrained", "scratch"))
    assert "best F1 of the commas and periods" in said
    assert "learn nothing" in said.splitlines()[-1]
    # Again: nothing is computed that is there.
    assert cli.main(["demo", "--quick", f"--workdir={tmp_path}"]) == 0
    assert "compiled the train step" not in capsys.readouterr().out
