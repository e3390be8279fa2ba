"""Stands for the packages of experiment trackers."""

import sys
import types

import pytest

from bert_jax.training import metrics


class Service:
    """Stands for the packages of both trackers."""

    def __init__(self):
        self.runs, self.logged, self.params, self.ended, self.fails = [], [], {}, 0, False
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

    def mlflow(self):
        def start_run(run_id, run_name):
            self.runs.append({"id": run_id, "name": run_name})
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "m1"))

        return types.SimpleNamespace(
            set_experiment=lambda name: None,
            start_run=start_run,
            log_params=self.params.update,
            log_metrics=self._log,
            log_text=self._log_text,
            log_image=lambda image, key, step: self.images.append((step, key, image.size)),
            end_run=self._end,
        )

    def _log(self, values, step):
        if self.fails:
            raise ConnectionError("no network\nat all")
        if values:
            self.logged.append((step, values))

    def _log_text(self, text, artifact_file):
        self._log({}, 0)
        name, _, file = artifact_file.rpartition("/")
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
        self.tables.append((int(file.removesuffix(".md")), name, rows))

    def _end(self):
        self.ended += 1


@pytest.fixture(params=["wandb", "mlflow"])
def service(request, monkeypatch):
    found = Service()
    monkeypatch.setitem(sys.modules, request.param, getattr(found, request.param)())
    monkeypatch.setattr(metrics, request.param, sys.modules[request.param])
    monkeypatch.setattr(metrics, "check_installed", lambda *unused: None)
    return request.param, found
