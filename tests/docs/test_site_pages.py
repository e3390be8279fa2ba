"""Pages of the site that docs/site_pages.py makes."""

import importlib.util

from support import pages

from bert_jax import cli


def site_pages():
    spec = importlib.util.spec_from_file_location("site_pages", pages.REPOSITORY / "docs" / "site_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_commands_has_what_help_prints(capsys):
    page = site_pages().commands_page()
    for command in ("vocab", "pretrain"):
        assert cli.main([command, "--help"]) == 0
        assert f"## {command}\n\n```text\n{capsys.readouterr().out}```\n" in page
    assert page.count("\n## ") == len(cli.COMMANDS)


def test_links_lead_to_pages_of_the_site():
    text = "[a](../README.md#x) [b](cloud.md) [c](../setup.py) [d](https://example.org)"
    found = site_pages().relink(text, "docs/hosts.md", {"README.md", "docs/cloud.md"})
    assert found == "[a](index.md#x) [b](cloud.md) c [d](https://example.org)"
