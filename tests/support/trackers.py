"""Stands for the package of Weights & Biases."""

import sys
import types

import pytest

from bert_jax.training import metrics


class Service:
    def __init__(self):
        self.runs, self.logged, self.ended, self.fails = [], [], 0, False

    def wandb(self):
        def init(**options):
            self.runs.append(options)
            run = types.SimpleNamespace(id=options.get("id", "w1"))
            run.log, run.finish = self._log, self._end
            return run

        return types.SimpleNamespace(init=init)

    def _log(self, values, step):
        if self.fails:
            raise ConnectionError("no network\nat all")
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
