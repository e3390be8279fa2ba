"""docs/config.md has the tables that the declarations of the fields give."""

from pathlib import Path

from support import config_reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"


def test_the_tables_are_those_of_the_declarations():
    page = PAGE.read_text(encoding="utf-8")
    assert config_reference.render(page) == page, "run `make config-reference`"


def test_the_command_writes_the_tables(tmp_path):
    page = tmp_path / "config.md"
    page.write_text("before\n<!-- fields: tasks -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    config_reference.main(str(page))
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "\nold\n" not in text
    assert "| `pack` | true | no |" in text and "; only classification" in text
