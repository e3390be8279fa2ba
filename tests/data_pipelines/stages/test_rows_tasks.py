"""What is sent to the workers that make rows."""

import dataclasses

import pytest

from bert_jax.data import manifests
from data_pipelines import build


@pytest.mark.long
@pytest.mark.parametrize("schema", ["packed", "google"])
def test_the_list_of_sources_is_not_sent_with_every_bucket(options, monkeypatch, schema):
    sent, run = [], build._Build._run

    def record(self, title, function, tasks, *args, **named):
        sent.extend(task for task in tasks if title == "making rows")
        return run(self, title, function, tasks, *args, **named)

    monkeypatch.setattr(build._Build, "_run", record)
    build.build(dataclasses.replace(options, schema=schema))
    assert sent and all("sources" not in task.settings for task in sent)
    assert len(manifests.read(options.output)["sources"]) == 3
