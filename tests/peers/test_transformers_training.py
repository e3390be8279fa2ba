"""Gradients and training of a BERT here and in transformers: PyTorch on the CPU, float32, no dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.transformers_models import here, random_batch, random_bert, task, torch, torch_inputs

from bert_jax import cli
from bert_jax.checkpoint.leaves import flatten
from bert_jax.convert.families import bert
from bert_jax.convert.param_mapping import HUGGINGFACE
from bert_jax.data import records
from bert_jax.settings.optimizer_config import OptimizerConfig
from bert_jax.training.optimization.optimizers import make_optimizer
from bert_jax.training.state import TrainState
from bert_jax.training.step import make_train_step

pytestmark = pytest.mark.peer

STEPS, WARMUP, ROWS = 50, 10, 4
RATE, DECAY, EPS, CLIP = 1e-4, 0.01, 1e-6, 1.0


def gradient_there(model, batch):
    model.zero_grad()
    model(**torch_inputs(batch, labels=True)).loss.backward()
    return {name: p.grad.numpy().copy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("size", ["tiny", "mini", "base"])
def test_gradients(size, tmp_path):
    theirs = random_bert(size)
    batch = random_batch(rows=4, length=64, predictions=12)
    expected = gradient_there(theirs, batch)
    config, params = here(theirs, tmp_path)
    pretraining = task(config)

    @jax.jit
    def gradient(params):
        prepared = pretraining.prepare(batch, None, True)
        weights = pretraining.weights(prepared)

        def objective(params):
            pairs, _ = pretraining.loss(params, prepared, None)
            return sum(total / weights[name] for name, (total, _) in pairs.items())

        return jax.grad(objective)(params)

    ours = bert.FAMILY.to_files(flatten(gradient(params)), config, HUGGINGFACE)
    assert ours.keys() == expected.keys()
    exact = gradient_there(theirs.double(), batch)
    differences, roundings, keys = {}, {}, {}
    for name, grad in expected.items():
        # Attention does not change with the bias of the keys: its gradient is 0, and what either library
        # finds is rounding. It is held against that of the queries.
        if name.endswith("key.bias"):
            scale = np.linalg.norm(expected[name.replace("key", "query")])
            keys[name] = max(np.linalg.norm(grad), np.linalg.norm(ours[name])) / scale
        else:
            differences[name] = np.linalg.norm(ours[name] - grad) / np.linalg.norm(grad)
            roundings[name] = np.linalg.norm(grad - exact[name]) / np.linalg.norm(exact[name])
    worst = max(differences, key=differences.get)
    print(
        f"| {size} | {differences[worst]:.1e} ({worst}) | {roundings[worst]:.1e} | "
        f"{np.median(list(differences.values())):.1e} | {len(differences)} | {max(keys.values()):.1e} |"
    )
    # Where the tokens of a deep random model have become alike, what moves its queries and keys cancels out:
    # there PyTorch's own float32 is no nearer than 1e-4 to its float64, and the bound is twice that distance.
    beyond = {n: d for n, d in differences.items() if d > max(1e-4, 2 * roundings[n])}
    assert not beyond
    assert len(keys) == config.num_hidden_layers and max(keys.values()) <= 1e-3


@pytest.fixture(scope="module")
def batches(shared_data, tmp_path_factory):
    """Real text with the masks of google-research/bert's records, a row once."""
    directory = tmp_path_factory.mktemp("records")
    flags = [
        f"--input={shared_data / 'sample_text.txt'}",
        f"--vocab={shared_data / 'vocab' / 'bert-base-uncased-vocab.txt'}",
        f"--output_dir={directory}",
    ]
    assert cli.main(["data", "--schema=google", "--dupe_factor=20", "--workers=1", *flags]) == 0
    dataset = records.open_dataset(str(directory), "train")
    assert len(dataset) >= STEPS * ROWS
    return [dataset.batch(np.arange(ROWS) + step * ROWS) for step in range(STEPS)]


def train_there(model, batches):
    """Losses of BertForPreTraining with torch.optim.AdamW and LambdaLR, and the norms of the gradients."""
    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    chosen = {id(p) for p in plain}
    decayed = [p for p in model.parameters() if id(p) not in chosen]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=EPS)

    def factor(step):
        return step / WARMUP if step < WARMUP else (STEPS - step) / (STEPS - WARMUP)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    losses, norms = [], []
    for batch in batches:
        loss = model(**torch_inputs(batch, labels=True)).loss
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return np.array(losses), np.array(norms)


@pytest.mark.parametrize("size", ["tiny", "mini"])
def test_50_steps(size, batches, tmp_path):
    model = random_bert(size, spread=False)
    config, params = here(model, tmp_path)
    settings = OptimizerConfig(
        name="adamw_bias_corrected",
        schedule="warmup_then_decay",
        learning_rate=RATE,
        warmup_steps=WARMUP,
        weight_decay=DECAY,
        eps=EPS,
        clip_norm=CLIP,
    )
    optimizer, schedule = make_optimizer(settings, STEPS, task(config))
    step = jax.jit(make_train_step(task(config), optimizer, schedule))
    params = jax.tree.map(jnp.asarray, params)
    state = TrainState(jnp.int32(0), params, optimizer.init(params))
    losses, norms = [], []
    for batch in batches:
        state, metrics = step(state, batch, np.uint32(0))
        losses.append(float(metrics["loss"]))
        norms.append(float(metrics["grad_norm"]))

    expected, expected_norms = train_there(model, batches)
    differences = np.abs(np.array(losses) - expected)
    ours = bert.FAMILY.to_files(flatten(state.params), config, HUGGINGFACE)
    after = max(
        np.linalg.norm(ours[name] - p.detach().numpy()) / np.linalg.norm(p.detach().numpy())
        for name, p in model.named_parameters()
        if not name.endswith("key.bias")
    )
    print(
        f"| {size} | {expected[0]:.4f} to {expected[-1]:.4f} | {differences.max():.1e} at step "
        f"{differences.argmax()} | {np.max(np.abs(norms / expected_norms - 1)):.1e} | {after:.1e} |"
    )
    assert expected_norms.max() > CLIP  # it is clipped
    assert expected[-5:].mean() < expected[:5].mean() - 0.2  # and learns
    assert differences.max() <= 1e-4
