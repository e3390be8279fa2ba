"""Every family compared with transformers: states, gradients, 50 training steps, and exported folders.

PyTorch on the CPU, float32, no dropout.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.transformers_models import (
    VOCAB,
    here,
    hidden_states,
    objective,
    random_batch,
    random_model,
    torch,
    torch_inputs,
    transformers,
)

from bert_jax.checkpoint.leaves import flatten
from bert_jax.convert import HEADS, conversion, families
from bert_jax.convert.param_mapping import HUGGINGFACE
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives import replaced_tokens
from bert_jax.objectives.replaced_tokens import PROJECTION, ReplacedTokens, generator_params
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.state import TrainState
from bert_jax.training.step import make_train_step

pytestmark = pytest.mark.peer

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"
STEPS, WARMUP, BATCHES = 50, 10, 5
RATE, DECAY, EPS, CLIP = 3e-4, 0.01, 1e-6, 1.0
DECAYS_ALL = ("roberta",)  # as fairseq trains it

SMALL = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 256}
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
ROBERTA = {"max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
DISTILBERT = {"dim": 128, "n_layers": 3, "n_heads": 2, "hidden_dim": 256}
MODERNBERT = SMALL | {
    "local_attention": 16,
    **dict.fromkeys((f"{name}_token_id" for name in ("pad", "cls", "sep", "bos", "eos")), 0),
}
DEBERTA = SMALL | {
    "relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p",
    "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm",
}  # fmt: skip
APART = {"share_att_key": False, "norm_rel_ebd": "none"}
# {case: (class, fields)}; for ELECTRA also the fields of the generator.
CASES = {
    "bert": ("BertForPreTraining", SMALL),
    "bert, untied": ("BertForPreTraining", SMALL | {"tie_word_embeddings": False}),
    "bert base": ("BertForPreTraining", BASE),
    "roberta": ("RobertaForMaskedLM", SMALL | ROBERTA),
    "roberta, every position": ("RobertaForMaskedLM", SMALL | ROBERTA | {"max_position_embeddings": 514}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", SMALL | ROBERTA),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT),
    "distilbert, sinusoids": ("DistilBertForMaskedLM", DISTILBERT | {"sinusoidal_pos_embds": True}),
    "albert": ("AlbertForPreTraining", SMALL | {"embedding_size": 48}),
    "albert, E = H": ("AlbertForPreTraining", SMALL | {"embedding_size": 128}),
    "albert base": ("AlbertForPreTraining", BASE),
    "albert, uneven groups": (
        "AlbertForPreTraining",
        SMALL | {"embedding_size": 48, "num_hidden_layers": 7, "num_hidden_groups": 3},
    ),
    "electra": ("ElectraForPreTraining", SMALL | {"embedding_size": 48}, {"hidden_size": 64}),
    "electra, E = H": ("ElectraForPreTraining", SMALL | {"embedding_size": 128}, {"hidden_size": 64}),
    "modernbert": ("ModernBertForMaskedLM", MODERNBERT | {"num_hidden_layers": 7}),
    "modernbert, a rest": ("ModernBertForMaskedLM", MODERNBERT | {"num_hidden_layers": 6}),
    "modernbert, long rows": (
        "ModernBertForMaskedLM",
        MODERNBERT | {"num_hidden_layers": 4, "local_attention": 128},
    ),
    "deberta": ("DebertaV2ForMaskedLM", DEBERTA | {"embedding_size": 48}),
    "deberta, convolution": ("DebertaV2ForMaskedLM", DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu"}),
    "deberta, no buckets": (
        "DebertaV2ForMaskedLM",
        DEBERTA | APART | {"position_buckets": -1, "max_relative_positions": 24, "embedding_size": 160},
    ),
    "deberta, c2p": (
        "DebertaV2ForMaskedLM",
        DEBERTA | APART | {"pos_att_type": ["c2p"], "max_relative_positions": 300, "type_vocab_size": 2},
    ),
    "deberta, p2c": (
        "DebertaV2ForMaskedLM",
        DEBERTA | {"pos_att_type": ["p2c"], "max_relative_positions": 20, "conv_kernel_size": 5},
    ),
    "deberta base": ("DebertaV2ForMaskedLM", DEBERTA | BASE | {"position_buckets": 256}),
}
LENGTHS = {"roberta, every position": 512, "modernbert, long rows": 300}  # of rows; otherwise 64
TRAINED = [name for name in CASES if not name.endswith("base") and name not in LENGTHS]


class Peer:
    """A transformers model, with the objective and the parameters of the same model in bert_jax."""

    def __init__(self, folder, cls, fields, spread):
        self.model = random_model(cls, spread, **fields)
        self.config, self.params = here(self.model, folder)
        self.family = families.of(self.config)
        self.head = self.family.head_of_class(cls)
        self.objective = objective(self.config)

    @property
    def models(self):
        return {"": self.model}

    def named(self):
        """Returns {name: PyTorch parameter}, named as in `to_files`, with the first name of tied tensors."""
        second = {name for name, _ in self.family.tied}
        return {
            key + name: p
            for key, one in self.models.items()
            for name, p in one.named_parameters(remove_duplicate=False)
            if name not in second
        }

    def to_files(self, params):
        return self.family.to_files(flatten(params), self.config, HUGGINGFACE, self.head)

    def loss(self, batch, noise):
        return self.model(**torch_inputs(self.model, batch, labels=True)).loss


class ElectraPeer(Peer):
    """A generator and a discriminator that share the embedding tables and their norm."""

    def __init__(self, folder, cls, fields, generator, spread):
        super().__init__(folder / "discriminator", cls, fields, spread)
        self.generator = random_model("ElectraForMaskedLM", spread, 1, **fields | generator)
        self.generator.electra.embeddings = self.model.electra.embeddings
        self.generator.generator_lm_head.weight = self.model.electra.embeddings.word_embeddings.weight
        self.small, own = here(self.generator, folder / "generator")
        own["encoder"]["embeddings"] = {
            name: x for name, x in own["encoder"]["embeddings"].items() if name == PROJECTION
        }
        self.params["generator"] = own
        self.objective = ReplacedTokens(self.config, objective(self.small))

    @property
    def models(self):
        return {"": self.model, "generator/": self.generator}

    def to_files(self, params):
        own = {name: x for name, x in params.items() if name != "generator"}
        other = self.family.to_files(flatten(generator_params(params)), self.small, HUGGINGFACE, "masked_lm")
        return super().to_files(own) | {f"generator/{name}": x for name, x in other.items()}

    def loss(self, batch, noise):
        given = torch_inputs(self.generator, batch, labels=True)
        found = self.generator(**given)
        gumbel = -torch.log(-torch.log(torch.tensor(noise) + 1e-9) + 1e-9)
        rows, slots = np.nonzero(batch["masked_weights"])
        places = rows, batch["masked_positions"][rows, slots]
        samples = (found.logits.detach()[places] + gumbel[rows, slots]).argmax(-1)
        ids, original = given["input_ids"].clone(), given["input_ids"].clone()
        ids[places], original[places] = samples, given["labels"][places]
        del given["labels"]
        labels = (ids != original).long()
        return found.loss + 50 * self.model(**given | {"input_ids": ids, "labels": labels}).loss


@pytest.fixture
def noise(monkeypatch):
    """The uniform noise for ELECTRA's samples, used in both libraries."""
    array = np.random.default_rng(3).uniform(size=(4, 12, VOCAB)).astype(np.float32)
    monkeypatch.setattr(replaced_tokens, "uniform_noise", lambda *_: jnp.asarray(array))
    return array


def make(case, folder, spread=True):
    return (ElectraPeer if case.startswith("electra") else Peer)(folder, *CASES[case], spread)


def without_gradient(config):
    """Returns the name suffixes of biases that are added to all keys of a query."""
    ends = ("key.bias", "k_lin.bias", "pos_key_proj.bias")
    return (*ends, "self.key_proj.bias") if config.position_attention == "c2p" else ends


def gradient_there(peer, batch, noise):
    for one in peer.models.values():
        one.zero_grad()
    peer.loss(batch, noise).backward()
    return {name: p.grad.numpy().copy() for name, p in peer.named().items()}


@pytest.mark.parametrize("case", CASES)
def test_hidden_states_and_gradients(case, tmp_path, noise):
    """States and gradients agree; a shared tensor's gradient is the sum over its layers or networks."""
    # With twelve layers of spread weights, tokens become equal and the gradients of queries and keys cancel.
    peer = make(case, tmp_path, spread=not case.endswith("base"))
    batch = random_batch(rows=4, length=LENGTHS.get(case, 64), predictions=12)
    prepared = peer.objective.prepare(batch, jax.random.key(0), True)
    with torch.no_grad():
        given = torch_inputs(peer.model, batch)
        expected = peer.model.base_model(**given, output_hidden_states=True).hidden_states
    real = np.asarray(prepared["sequence_ids"]) > 0
    states = hidden_states(peer.config, peer.params, [prepared[name] for name in INPUTS])
    assert len(states) == len(expected)
    for ours, theirs in zip(states, expected, strict=True):
        theirs = theirs.numpy()[real]
        assert np.abs(ours[real] - theirs).max() <= 2e-5 * np.abs(theirs).max()

    @jax.jit
    def gradient(params):
        weights = peer.objective.weights(prepared)

        def loss(params):
            pairs, _ = peer.objective.loss(params, prepared, None)
            scales = peer.objective.scales
            return sum(scales.get(name, 1) * total / weights[name] for name, (total, _) in pairs.items())

        return jax.grad(loss)(params)

    expected = gradient_there(peer, batch, noise)
    ours = peer.to_files(gradient(peer.params))
    assert ours.keys() >= expected.keys()  # the generator's tables are the discriminator's
    beyond, worst = {}, 0.0
    for name, grad in expected.items():
        norm = np.linalg.norm(grad)
        # Attention does not depend on the bias of the keys: its gradient is 0 except for rounding. It is
        # compared with the gradient of the queries.
        if name.endswith(without_gradient(peer.config)):
            query = name.replace("pos_key", "query").replace("key", "query").replace("k_lin", "q_lin")
            assert max(norm, np.linalg.norm(ours[name])) <= 1e-3 * np.linalg.norm(expected[query])
            continue
        difference = np.linalg.norm(ours[name] - grad) / norm
        worst = max(worst, difference)
        if not difference <= 1e-4:
            beyond[name] = difference
    print(f"| {case} | {worst:.1e} |")
    assert not beyond


def train_there(peer, batches, noise, decays_all):
    """Returns the losses with torch.optim.AdamW and LambdaLR, and the gradient norms."""
    parameters = {id(p): (name, p) for name, p in peer.named().items()}.values()
    plain = [
        p for name, p in parameters if not decays_all and (name.endswith("bias") or "norm" in name.lower())
    ]
    chosen = {id(p) for p in plain}
    decayed = [p for _, p in parameters if id(p) not in chosen]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=EPS)

    def factor(step):
        return step / WARMUP if step < WARMUP else (STEPS - step) / (STEPS - WARMUP)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    losses, norms = [], []
    for batch in batches:
        loss = peer.loss(batch, noise)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_([p for _, p in parameters], CLIP)))
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return np.array(losses), np.array(norms)


@pytest.mark.parametrize("case", TRAINED)
def test_50_steps(case, tmp_path, noise):
    peer, decays_all = make(case, tmp_path, spread=False), case in DECAYS_ALL
    batches = [random_batch(rows=4, length=64, predictions=12, seed=i % BATCHES) for i in range(STEPS)]
    settings = OptimizerConfig(
        name="adamw_bias_corrected",
        schedule="warmup_then_decay",
        learning_rate=RATE,
        warmup_steps=WARMUP,
        weight_decay=DECAY,
        eps=EPS,
        clip_norm=CLIP,
        **({"no_decay": ""} if decays_all else {}),
    )
    optimizer, schedule = make_optimizer(settings, STEPS, peer.objective)
    step = jax.jit(make_train_step(peer.objective, optimizer, schedule))
    params = jax.tree.map(jnp.asarray, peer.params)
    state = TrainState(jnp.int32(0), params, optimizer.init(params))
    losses, norms = [], []
    for batch in batches:
        state, metrics = step(state, batch, np.uint32(0))
        losses.append(float(metrics["loss"]))
        norms.append(float(metrics["grad_norm"]))
    expected, expected_norms = train_there(peer, batches, noise, decays_all)
    differences = np.abs(np.array(losses) - expected)
    ours = peer.to_files(state.params)
    after = max(
        np.linalg.norm(ours[name] - p.detach().numpy()) / np.linalg.norm(p.detach().numpy())
        for name, p in peer.named().items()
        if not name.endswith(without_gradient(peer.config))
    )
    print(
        f"| {case} | {expected[0]:.4f} to {expected[-1]:.4f} | {differences.max():.1e} at step "
        f"{differences.argmax()} | {np.max(np.abs(norms / expected_norms - 1)):.1e} | {after:.1e} |"
    )
    assert expected_norms.max() > CLIP  # some gradients are clipped
    assert expected[-5:].mean() < expected[:5].mean() - 0.2  # and the model learns
    assert differences.max() <= 1e-4


@pytest.mark.parametrize(
    ("name", "head"),
    [
        (name, head)
        for name, one in families.FAMILIES.items()
        for head in one.heads
        if (TESTDATA / name / head).exists()  # BERT's are in tests/convert/test_transformers.py
    ],
)
def test_an_exported_folder_is_loaded_whole(name, head, tmp_path):
    folder = TESTDATA / name / head
    for source, output, to in ((folder, "run", "bert_jax"), (tmp_path / "run", "out", "huggingface")):
        conversion.convert(str(source), str(tmp_path / output), to, log=lambda line: None)
    cls = getattr(transformers, HEADS[head].auto_class)
    before = cls.from_pretrained(folder)
    after, info = cls.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(after).__name__ == families.FAMILIES[name].class_name(head) == type(before).__name__
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    one, other = (dict(model.named_parameters()) for model in (before, after))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["architectures"] == [type(after).__name__]
