"""The script that measures continued pre-training, as far as it goes without training."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def module():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        spec = importlib.util.spec_from_file_location("continued", FOLDER / "continued.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
        for name in ("family", "glue"):
            sys.modules.pop(name, None)


@pytest.fixture
def continued(module, tmp_path):
    found = module.Continued(
        argparse.Namespace(output=tmp_path / "out", arms="domain,replay-30,words", steps=4, rate=5e-5)
    )
    found.before = "before"  # the model is not read
    return found


def test_the_arms_differ_in_what_they_are_about(continued):
    domain, replay, words = (continued.fields(arm) for arm in ("domain", "replay-30", "words"))
    replayed = {"data.replay": continued.records("general"), "data.replay_share": 0.3}
    assert replay == domain | replayed
    assert {name for name in words if words[name] != domain[name]} == {"data.dir", "init_from"}
    with pytest.raises(SystemExit, match="--arms: replay is none of domain, replay-PERCENT and words"):
        continued.fields("replay")


def test_the_table(continued, capsys):
    def held_out(loss):
        return {f"held out, {name}": {"mlm_loss": loss + x} for name, x in (("domain", 0), ("general", 1))}

    scores = {f"task-{seed}": {"accuracy": 0.5 + seed / 10} for seed in range(3)}
    before = {f"before, {name}": of for name, of in held_out(5.0).items()}
    for name, of in {
        "checkpoint": scores,
        "before": held_out(3.0) | scores,
        "domain": held_out(2.5),
        "words": before | held_out(4.0),
    }.items():
        (continued.output / name).mkdir()
        (continued.output / name / "figures.json").write_text(json.dumps(of))
    continued.table()
    said = capsys.readouterr().out
    assert "| checkpoint |  |  | 0.5000, 0.6000, 0.7000 | 0.6000 ± 0.1000 |" in said
    assert "| domain | 2.500 | 3.500 |  |  |" in said
    assert "| words | 5.000 to 4.000 | 6.000 to 5.000 |  |  |" in said
