"""docs/config.md has the tables that the declarations of the fields give."""

from pathlib import Path

from bert_jax.runs import config_reference
from bert_jax.settings import config_fields
from bert_jax.settings.pretrain_config import PretrainConfig
from bert_jax.tasks import fields as task_fields

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"


def test_the_tables_are_those_of_the_declarations():
    page = PAGE.read_text(encoding="utf-8")
    assert config_reference.render(page) == page, "run `make config-reference`"


def test_every_field_has_a_row_with_its_meaning():
    page = PAGE.read_text(encoding="utf-8")
    declared = dict(config_fields.fields(PretrainConfig())) | task_fields.declared()
    for name, field in declared.items():
        assert f"| `{name}` |" in page and field.meaning.replace("|", "\\|") in page, name
        assert field.meaning, name


def test_the_command_writes_the_tables(tmp_path):
    page = tmp_path / "config.md"
    page.write_text("before\n<!-- fields: tasks -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    config_reference.main(str(page))
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "\nold\n" not in text
    assert "| `pack` | true | no |" in text and "; only classification" in text
