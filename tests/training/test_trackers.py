"""Weights & Biases gets every line of metrics, resumes the same run, and never ends a training."""

from support.tensorboard import PNG
from support.trackers import service  # noqa: F401

from bert_jax.training.metrics import MetricsWriter, read_metrics


def test_lines_of_a_run_and_of_the_one_that_resumes_it(service, tmp_path):  # noqa: F811
    config = {"steps": 4, "model": {"hidden_size": 32, "dtype": "auto"}}
    for begin in (0, 2):
        writer = MetricsWriter(tmp_path, trackers="wandb", config=config, terminal=False)
        writer.rewind(begin)
        for step in (begin + 1, begin + 2):
            writer.write(step, {"loss": 1 / step, "mfu": float("nan")})
        writer.write(begin + 2, {"loss": 0.5}, "eval")
        writer.close()
    steps = [(step, values) for step, values in service.logged if "train/loss" in values]
    assert steps == [(step, {"train/loss": 1 / step}) for step in (1, 2, 3, 4)]
    assert (2, {"eval/loss": 0.5}) in service.logged and service.ended == 2
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
    shown = capsys.readouterr().out
    assert shown.count("warning: wandb fails and is left out: ConnectionError: no network\n") == 1


def test_images(service, tmp_path):  # noqa: F811
    for begin in (0, 2):
        writer = MetricsWriter(tmp_path, trackers="wandb", terminal=False)
        writer.rewind(begin)
        for step in (begin + 1, begin + 2):
            writer.write_image(step, "eval/picture", PNG)
        writer.close()
    steps = (1, 2, 3, 4)
    assert service.images == [(step, "eval/picture", (1, 1)) for step in steps]
