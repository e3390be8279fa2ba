"""Runs of two processes, one of which sees the work directory late, as on a network file system."""

import shutil

import numpy as np
import pytest
from support import processes

from bert_jax.checkpoint import list_steps

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

LATE = 7.0  # seconds; below the patience of `run_directory._check_shared`
SENTENCES = ["word1 word2", "word3 word4 word5", "word6", "word7 word8"]


def pretraining(folder):
    records = processes.write_records(folder / "records")
    fields = {"steps": 8, "checkpoint.every": 2, "eval.every": 4, "accumulate_steps": 0}
    return lambda workdir: processes.command(workdir, records, **fields)


def fine_tuning(folder):
    vocabulary = processes.write_vocabulary(folder / "vocab.txt")
    rows = [f"{text},{'ab'[number % 2]}" for number, text in enumerate(SENTENCES * 4)]
    (folder / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    fields = [f"{name}={value}" for name, value in processes.TINY.items() if name.startswith("model.")]
    fields += f"vocab={vocabulary} data.train={folder}/rows.csv data.eval={folder}/rows.csv".split()
    fields += "data.text_a=text data.label=label max_seq_length=16 batch_size=8 epochs=4".split()
    fields += "checkpoint.every=2 checkpoint.keep=4 eval.every=4 log_every=1 accumulate_steps=0".split()
    flags = [f"--config.{field}" for field in fields]
    return lambda workdir: ["finetune", "--config=finetune/classification", f"--workdir={workdir}", *flags]


@pytest.mark.parametrize("make", [pretraining, fine_tuning])
def test_a_process_may_see_the_work_directory_late(tmp_path, make):
    command = make(tmp_path)
    alone, together = tmp_path / "alone", tmp_path / "together"
    code, output = processes.run(command(alone), devices=4)
    assert code == 0, output

    def assert_same():
        for kind in ("train", "eval"):
            one, two = (
                [(x["step"], *(x[name] for name in sorted(x) if "loss" in name)) for x in lines]
                for lines in (processes.metrics(workdir, kind) for workdir in (alone, together))
            )
            np.testing.assert_allclose(one, two, rtol=1e-5, err_msg=kind)

    with processes.Processes(command(together), 2, late={1: (together, LATE)}) as started:
        assert started.wait() == [0, 0], started.transcript()
    assert_same()
    for step in (6, 8):
        shutil.rmtree(together / "checkpoints" / str(step))
    with processes.Processes(command(together), 2, late={1: (together, LATE)}) as started:
        assert started.wait() == [0, 0], started.transcript()
        assert any("resumed from step 4" in line for line in started.output[0])
    assert list_steps(together / "checkpoints")[-1] == 8
    assert_same()
    assert not list((together / "checkpoints").glob("bad-*"))
