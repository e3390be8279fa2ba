"""Stands for the package of Weights & Biases."""

import sys
import types

import pytest

from bert_jax.training import metrics


class Service:
    def __init__(self):
        self.runs, self.logged, self.ended, self.fails = [], [], 0, False
        self.tables, self.images = [], []  # (step, name, content)

    def wandb(self):
        def init(**options):
            self.runs.append(options)
            run = types.SimpleNamespace(id=options.get("id", "w1"))
            run.log, run.finish = log, self._end
            return run

        def log(values, step):
            for name, value in values.items():
                if isinstance(value, tuple):  # made by Table or Image
                    kind, content = value
                    kind.append((step, name, content))
                    values = {}
            self._log(values, step)

        def table(columns, data):
            assert all(len(row) == len(columns) for row in data)
            return self.tables, data

        return types.SimpleNamespace(init=init, Table=table, Image=lambda image: (self.images, image.size))

    def _log(self, values, step):
        if self.fails:
            raise ConnectionError("no network\nat all")
        if values:
            self.logged.append((step, values))

    def _end(self):
        self.ended += 1


@pytest.fixture
def service(monkeypatch):
    found = Service()
    monkeypatch.setitem(sys.modules, "wandb", found.wandb())
    monkeypatch.setattr(metrics, "wandb", sys.modules["wandb"])
    monkeypatch.setattr(metrics, "check_installed", lambda *unused: None)
    return found
