"""docs/config.md has the tables that the declarations of the fields give."""

import re
from pathlib import Path

from support import config_reference

from bert_jax.settings import config_fields
from bert_jax.settings.pretrain_config import PretrainConfig
from bert_jax.tasks import fields

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"
FIELDS = dict(config_fields.fields(PretrainConfig())) | fields.declared()


def test_the_tables_are_those_of_the_declarations():
    page = PAGE.read_text(encoding="utf-8")
    assert config_reference.render(page) == page, "run `make config-reference`"


def test_each_field_has_one_row():
    rows = re.findall(
        r"^\| `([\w.]+)` \|.*\| (?:yes|no|never) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(rows) == sorted(FIELDS)


def test_each_description_is_a_short_sentence_without_links():
    sentence = re.compile(r"(?!.*\]\()[A-Z`].{5,159}\.")
    assert not {
        name: field.meaning for name, field in FIELDS.items() if not sentence.fullmatch(field.meaning)
    }
