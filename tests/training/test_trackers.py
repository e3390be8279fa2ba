"""Weights & Biases receives every line, resumes the same run, and never stops training."""

from support.trackers import service  # noqa: F401

from bert_jax.training.metrics import MetricsWriter, read_metrics


def test_a_run_and_the_one_that_resumes_it(service, tmp_path):  # noqa: F811
    config = {"steps": 4, "model": {"hidden_size": 32, "dtype": "auto"}}
    for begin in (0, 2):
        writer = MetricsWriter(tmp_path, trackers="wandb", config=config, terminal=False)
        writer.rewind(begin)
        for step in (begin + 1, begin + 2):
            writer.write(step, {"loss": 1 / step, "mfu": float("nan")})
        writer.close()
    steps = (1, 2, 3, 4)
    assert service.logged == [(step, {"train/loss": 1 / step}) for step in steps] and service.ended == 2
    first, second = service.runs
    assert first["config"] == config and first["project"] == "bert_jax" and "id" not in first
    assert second["id"] == "w1" and second["resume"] == "allow" and first["name"] == tmp_path.name


def test_a_tracker_that_fails_is_left_out(service, tmp_path, capsys):  # noqa: F811
    writer = MetricsWriter(tmp_path, trackers="wandb", terminal=False)
    writer.rewind(0)
    service.fails = True
    writer.write(1, {"loss": 1.0})
    service.fails = False
    writer.write(2, {"loss": 2.0})
    writer.close()
    assert not service.logged and len(read_metrics(tmp_path)) == 2
    warning = "warning: wandb fails and is no longer used: ConnectionError: no network\n"
    assert capsys.readouterr().out.count(warning) == 1
