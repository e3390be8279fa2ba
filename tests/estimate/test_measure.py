"""Complete estimates of a small model on eight CPU devices, and of models that do not fit."""

import dataclasses

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import programs

from bert_jax.estimate import costs, hlo, measure, program
from bert_jax.estimate.hardware import CHIPS, Hosts, Slices, parse_topology
from bert_jax.parallel import device_memory
from bert_jax.runs import benchmark
from bert_jax.settings import defaults, pretrain_config
from bert_jax.training import flops

EIGHT = Slices(CHIPS["v5e"], (2, 4))


def small_config(**mesh):
    config = defaults.pretrain(
        "tiny", hidden_size=16, num_attention_heads=2, intermediate_size=32, vocab_size=120
    )
    config.model.max_position_embeddings = 32
    config.batch_size, config.steps = 16, 3600
    config.optimizer.warmup_steps = 10
    config.mesh.update(mesh)
    return config


@pytest.fixture(autouse=True, scope="module")
def versions():
    """Replaces the version lookup, because the tests run without TPU and GPU compilers."""
    with pytest.MonkeyPatch.context() as patch:
        for hardware in (Slices, Hosts):
            patch.setattr(hardware, "versions", staticmethod(lambda: {"jax": "1", "compiler": "2"}))
        yield


@pytest.fixture(scope="module")
def step():
    config = small_config(data=2, fsdp=2, tensor=2)
    config = pretrain_config.pretraining(config)
    return program.TrainStep(config, program.synthetic_rows(config, None), jax.devices())


@pytest.fixture(scope="module")
def result(step):
    return measure.estimate(step, EIGHT, price=2.0)


@pytest.mark.long
def test_memory_is_that_of_the_shardings(step, result):
    memory = result["memory_bytes"]
    count = sum(leaf.size for leaf in jax.tree.leaves(step.state.params))
    # Most parameters are split into four; biases, norms and small tables are replicated.
    assert count * 4 / 4 < memory["parameters"] < count * 4 / 2
    assert memory["optimizer"] == 2 * memory["parameters"]
    # input_ids, lengths, three arrays of 8 sequences, row_ids: int32, four rows per chip.
    assert memory["batch"] == 4 * 4 * (32 + 1 + 3 * 8 + 1)
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")
    assert result["fits"] and memory["temporary"] > 0


@pytest.mark.long
@pytest.mark.parametrize("objective", ["masked_lm", "replaced_tokens"])
def test_steps_with_masks_that_are_used_again_have_keys_of_their_rows(objective):
    config = small_config()
    config.masking.copies, config.objective = 3, objective
    if objective == "replaced_tokens":
        config.model.model_type = "electra"
    config = pretrain_config.pretraining(config)
    rows = program.synthetic_rows(config, None)
    assert rows.arrays["mask_keys"].shape == (1, 2)
    assert isinstance(program.TrainStep(config, rows, jax.devices()[:1]).compile(2), program.Compiled)


def test_the_step_of_one_of_two_phases(step):
    """A run that starts causal is estimated with masked LM; a causal LM predicts all tokens."""
    steps = []
    for fields in ({"causal_steps": 10}, {"objective": "causal_lm", "model.causal": True}):
        config = small_config(data=2, fsdp=2, tensor=2)
        config.update_from_flattened_dict(fields)
        config = pretrain_config.pretraining(config)
        steps.append(program.TrainStep(config, program.synthetic_rows(config, None), jax.devices()))
    assert steps[0].row_flops == step.row_flops < steps[1].row_flops
    assert [each.model.causal for each in steps] == [False, True]
    assert [each.predictions for each in steps] == [step.predictions, 32]


def test_traffic_is_along_the_axes(result):
    kinds = {(entry["kind"], tuple(entry["axes"])) for entry in result["collectives"]}
    assert ("all-reduce", ("tensor",)) in kinds
    assert any("fsdp" in axes for _, axes in kinds)
    assert all(entry["group"] in (2, 4, 8) and entry["count"] >= 1 for entry in result["collectives"])


def test_rates_follow_from_the_step(step, result):
    seconds = result["seconds"]["step"]
    assert seconds == pytest.approx(
        sum(
            result["seconds"][name]
            for name in ("compute", "kernels", "without_estimate", "collectives_waited_for")
        )
    )
    assert result["hours"] == pytest.approx(seconds) and result["chip_hours"] == pytest.approx(8 * seconds)
    assert result["cost"] == pytest.approx(16 * seconds)
    assert result["tokens_per_second"] == pytest.approx(32 * result["sequences_per_second"])
    model = 16 * flops.RowFlops.of(benchmark.make_masked_lm(step.model, 32))(32, step.predictions)
    assert result["flops"]["model"] == model
    # The executed FLOPs: the model's, the matmuls with one-hot rows, and work that several chips repeat.
    assert 1 < costs.matrix_flops(hlo.parse(step.compile(16).text)) * 8 / model < 3
    assert result["mfu"] == pytest.approx(result["flops"]["model"] / (seconds * 8 * 197e12))


def test_chips_with_two_devices(step, result):
    """Rates and memory are per device, hours and price per chip."""
    found = measure.estimate(step, Slices(CHIPS["tpu7x"], (2, 2, 1)), price=2.0)
    seconds = found["seconds"]["step"]
    assert found["topology"] == {"name": "tpu7x:2x2x1", "slices": 1, "chips": 4, "devices": 8}
    assert found["mfu"] == pytest.approx(found["flops"]["model"] / (seconds * 4 * 2307e12))
    assert found["chip_hours"] == pytest.approx(4 * seconds) and found["cost"] == pytest.approx(8 * seconds)
    assert found["memory_bytes"] == result["memory_bytes"] and found["hbm_bytes"] == 96 * 2**30
    text = "\n".join(measure.lines(found))
    assert "4 per device" in text and "of 96.00 GiB per device" in text and "2.2 GHz" in text
    assert "per chip" not in text and "assumed" not in "\n".join(measure.lines(result))


@pytest.mark.long
def test_the_fewest_parts_that_fit():
    """accumulate_steps=0 on a chip that has 400 bytes left after the state and the batch."""
    config = small_config()
    config.accumulate_steps = 0
    config = pretrain_config.pretraining(config)
    compiled = []

    class Step(program.TrainStep):
        def _compile(self, batch_size):
            parts = self.config.accumulate_steps
            compiled.append((batch_size, parts))
            return program.Compiled("", {"total": self.argument_bytes(batch_size) + 3200 / parts})

    def make(config):
        return Step(config, program.synthetic_rows(config, None), jax.devices()[:1], memory_limit=limit)

    limit = None
    limit = make(dataclasses.replace(config, accumulate_steps=1)).argument_bytes(16) + 400
    step = program.with_auto_accumulation(config, make, limit)
    assert step.config.accumulate_steps == 8 and step.unit == 8
    assert isinstance(step.compile(16), program.Compiled)
    assert compiled == [(16, 1), (16, 8)]  # 2 and 4 cannot fit, and compiled programs are reused
    limit -= 400
    assert program.with_auto_accumulation(config, make, limit).config.accumulate_steps == 16
    ramp = dataclasses.replace(config, batch_ramp="0=4,2=16")  # the first batches allow only 4 microbatches
    assert program.with_auto_accumulation(ramp, make, limit).config.accumulate_steps == 4


def test_the_text_of_an_estimate(result):
    text = "\n".join(measure.lines(result))
    assert "v5e:2x4, 1 slice, 8 chips; mesh data=2 fsdp=2 tensor=2" in text and "(jax 1, compiler 2)" in text
    assert "16 rows of 32, 4 per chip" in text and "fits: 0.00 of 16.00 GiB" in text and "MFU" in text


def test_gpus_have_bounds_and_no_step_time(step, monkeypatch):
    hosts, gib = parse_topology("h100:8"), 2.0**30
    parts = ("parameters", "optimizer", "batch", "temporary", "program", "padding", "total")
    compiled = program.Compiled(programs.GPU, dict.fromkeys(parts, gib))
    monkeypatch.setattr(program.TrainStep, "compile", lambda self, rows: compiled)
    monkeypatch.setattr(step, "memory_limit", 0.75 * hosts.chip.hbm_bytes)
    result = measure.estimate(step, hosts)
    assert not {"seconds", "mfu", "hours", "cost", "tokens_per_second"} & set(result)
    bounds = result["roofline_seconds"]
    # The step is in float32, and its matmuls use TF32.
    assert bounds["products"] == pytest.approx(result["flops"]["matrix_per_chip"] / 494.5e12)
    assert bounds["memory"] == pytest.approx(result["hbm_traffic_bytes"] / 3.352e12)
    text = "\n".join(measure.lines(result))
    assert "fits: 1.00 of 59.33 GiB per chip, 75% of 79.11" in text and "the step time is unknown" in text


@pytest.mark.parametrize("capacity, largest", [(0, 0), (8, 8)])
def test_a_batch_that_does_not_fit(step, monkeypatch, capacity, largest):
    def compile_(self, rows):
        if rows > capacity:
            return device_memory.DoesNotFit(20 * 2**30, 15.75 * 2**30)
        return program.Compiled("", {"total": 1.0})

    monkeypatch.setattr(program.TrainStep, "compile", compile_)
    result = measure.estimate(step, EIGHT)
    assert not result["fits"]
    assert result["largest_batch"] == {"batch_size": largest, "rows_per_chip": largest // 4}
    assert "DOES NOT FIT: needs 20.00 GiB per chip; available: 15.75" in "\n".join(measure.lines(result))


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_the_largest_batch_is_found_to_an_eighth_in_few_compilations(capacity, more):
    asked = []
    found = measure.largest_fitting(lambda n: asked.append(n) or n <= capacity, capacity + more)
    assert found <= capacity < found + 2 + found / 8
    assert len(asked) == len(set(asked)) <= 18
