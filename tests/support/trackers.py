"""Stands for the packages of experiment trackers."""

import sys
import types

import pytest

from bert_jax.training.metrics import trackers


class Service:
    """Stands for the packages of both trackers."""

    def __init__(self):
        self.runs, self.logged, self.params, self.ended, self.fails = [], [], {}, 0, False

    def wandb(self):
        def init(**options):
            self.runs.append(options)
            run = types.SimpleNamespace(id=options.get("id", "w1"))
            run.log, run.finish = self._log, self._end
            return run

        return types.SimpleNamespace(init=init)

    def mlflow(self):
        def start_run(run_id, run_name):
            self.runs.append({"id": run_id, "name": run_name})
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "m1"))

        return types.SimpleNamespace(
            set_experiment=lambda name: None,
            start_run=start_run,
            log_params=self.params.update,
            log_metrics=self._log,
            end_run=self._end,
        )

    def _log(self, values, step):
        if self.fails:
            raise ConnectionError("no network\nat all")
        self.logged.append((step, values))

    def _end(self):
        self.ended += 1


@pytest.fixture(params=["wandb", "mlflow"])
def service(request, monkeypatch):
    found = Service()
    monkeypatch.setitem(sys.modules, request.param, getattr(found, request.param)())
    monkeypatch.setattr(trackers, request.param, sys.modules[request.param])
    monkeypatch.setattr(trackers, "check_installed", lambda *unused: None)
    return request.param, found
