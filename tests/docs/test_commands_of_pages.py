"""Every `bert-jax` command in the documentation uses existing flags and config fields."""

import pytest
from support import pages

from bert_jax import cli

DOCS = pages.REPOSITORY / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *pages.REPOSITORY.glob("*.md")])
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))


def name_of(path):
    return str(path.relative_to(pages.REPOSITORY))


def check(script):
    """Parses the commands of a script as `bert-jax` does; commands shortened with `...` are skipped."""
    for command, *arguments in pages.commands(script):
        if "..." not in arguments and "--help" not in arguments:
            assert command in cli.COMMANDS
            cli.parse_flags(command, arguments)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_a_page(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.csv").write_text("review,stars,sentence,package\na,1,b,email\nc,2,d,xml\n")
    (tmp_path / "train.conll").write_text("a\tO\n")
    text = page.read_text(encoding="utf-8")
    for language in ("", "bash"):
        check("\n".join(pages.blocks(text, language)))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_commands_of_a_notebook(notebook, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    lines = "\n".join(source for _, source in pages.cells(notebook))
    check(lines.replace("!bert-jax", "bert-jax").replace("{STEPS}", "1500").replace("{EPOCHS}", "5"))


def test_commands_are_found():
    script = "$ bert-jax one --a='x y' \\\n    --b\nbert-jax: error: it's no command\n"
    script += "printf 'a|b' |\n  cat | bert-jax two --c='d\ne' > file && bert-jax three\n"
    script += "run.sh -- bert-jax four  # more\n"
    assert pages.commands(script) == [
        ["one", "--a=x y", "--b"], ["two", "--c=d\ne"], ["three"], ["four"]
    ]  # fmt: skip


def test_an_unknown_flag_is_found():
    with pytest.raises(Exception, match="size_"):
        check("bert-jax vocab --input=text --output=vocab.txt --size_=100")
    with pytest.raises(Exception, match="stepz"):
        check("bert-jax pretrain --config=pretrain/tiny --workdir=run --config.stepz=3")
