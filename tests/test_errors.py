"""Secrets in what is shown or published: logs, reports, model cards, trackers."""

import json
import sys

import pytest
from support.trackers import service  # noqa: F401

from bert_jax import cli, signals
from bert_jax.convert import model_card
from bert_jax.errors import hide_secrets
from bert_jax.io import progress
from bert_jax.training.metrics import MetricsWriter

SECRET = "s3cr3t"
URLS = (
    f"https://ada:{SECRET}@host/data.tsv",
    f"https://{SECRET}@host/data.tsv",
    f"https://host/data.tsv?X-Goog-Algorithm=x&X-Goog-Signature={SECRET}",
    f"https://host/data.tsv?token={SECRET}",
    f"https://account.blob.core.windows.net/c/data.tsv?sv=2024&sig={SECRET}",
    f"gs://a/b,https://ada:p@{SECRET}@host/data.tsv",
)


@pytest.mark.parametrize("url", URLS)
def test_no_secret_of_a_url_is_shown(url, capfd):
    for text in (url, f"{url}: cannot be read", f'["{url}"]', f"--config.data.train={url} --workdir=run"):
        hidden = hide_secrets(text)
        assert SECRET not in hidden and "host" in hidden.replace("account", "host")
        assert hide_secrets(hidden) == hidden
    assert SECRET not in model_card.public_command(f"bert-jax finetune --config.data.train='{url}'")
    progress.log(url)
    signals.print_line(url)
    cli._fail(f"{url}: cannot be read", 2)
    MetricsWriter("", terminal=True).message(url)
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err and (shown.out + shown.err).count("data.tsv") == 4


@pytest.mark.parametrize(
    "text",
    [
        "gs://bucket/run",
        "abfs://container@account.dfs.core.windows.net/run",
        "gs://bucket/part-0000?.txt",
        "https://host/data.tsv",
        "mail ada@host, 5 tokens=3, pad_token is [PAD]",
        "--config.init_ignore='encoder/(layers|x).*'",
    ],
)
def test_other_texts_stay_as_they_are(text):
    assert hide_secrets(text) == text


def test_trackers_and_their_command_line_have_no_secrets(service, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(sys, "argv", ["bert-jax", "finetune", f"--config.data.train={URLS[2]}"])
    config = {"data": {"train": URLS[0]}, "init_from": URLS[3], "steps": 4}
    writer = MetricsWriter(tmp_path, trackers="wandb", config=config, terminal=False)
    writer.rewind(0)
    writer.close()
    sent = json.dumps([service.runs, sys.argv])
    assert SECRET not in sent and "data.tsv" in sent and config["init_from"] == URLS[3]
