"""An encoder in NumPy and float64, written from the papers: what `bert_jax.models` is compared with.

One layer after the other, one token and one head after the other where that is clearest; it shares no code
with the models.
"""

import cmath
import math

import numpy as np


def _gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


_ACTIVATIONS = {
    "gelu": _gelu,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def rotate(vector, position, theta):
    """One head's vector [D]: coordinates (i, i + D/2) as a complex number, times e^(i angle)."""
    half = len(vector) // 2
    out = np.empty(len(vector))
    for i in range(half):
        angle = position * theta ** (-2 * i / len(vector))
        turned = complex(vector[i], vector[i + half]) * cmath.exp(1j * angle)
        out[i], out[i + half] = turned.real, turned.imag
    return out


def slopes(heads):
    """ALiBi's, as its authors' code has them."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    below = 2 ** math.floor(math.log2(heads))
    return slopes(below) + slopes(2 * below)[0::2][: heads - below]


def sinusoid(position, width):
    """[width]: sines at even, cosines at odd columns."""
    angles = [position / 10_000 ** (2 * (column // 2) / width) for column in range(width)]
    return np.array([math.cos(a) if column % 2 else math.sin(a) for column, a in enumerate(angles)])


def norm(config, x, parameters):
    if config.norm == "layernorm":
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.layer_norm_eps) * parameters["scale"]
    return x + parameters.get("bias", 0)


def dense(x, parameters, inputs=1):
    return np.tensordot(x, parameters["kernel"], inputs) + parameters.get("bias", 0)


def attention(config, x, layer, positions, sequences, window, theta):
    """[L, H] of one row -> [L, H]."""
    query, key, value = (dense(x, layer[name]) for name in ("query", "key", "value"))
    length, heads, size = query.shape
    context = np.zeros((length, heads, size))
    for head in range(heads):
        for i in range(length):
            seen = [
                j
                for j in range(length)
                if sequences[i] == sequences[j]
                and (not config.causal or j <= i)
                and (not window or abs(i - j) <= window)
            ]
            q = query[i, head]
            scores = []
            for j in seen:
                k = key[j, head]
                if config.position == "rotary":
                    score = rotate(q, positions[i], theta) @ rotate(k, positions[j], theta)
                else:
                    score = q @ k
                score /= math.sqrt(size)
                if config.position == "alibi":
                    score -= slopes(heads)[head] * abs(i - j)
                scores.append(score)
            weights = np.exp(np.array(scores) - max(scores))
            context[i, head] = (weights / weights.sum()) @ value[seen, head]
    return dense(context, layer["attention_output"], 2)


def feed_forward(config, x, layer):
    inner, activate = dense(x, layer["intermediate"]), _ACTIVATIONS[config.hidden_act]
    inner = activate(inner[:, 0]) * inner[:, 1] if config.feed_forward == "glu" else activate(inner)
    return dense(inner, layer["output"])


def layer_parameters(config, params):
    """The parameters of each layer, in the order in which they are applied."""
    stacks = params["layers"]
    if config.layer_groups:
        for i in range(config.num_hidden_layers):
            group = int(i / (config.num_hidden_layers / config.layer_groups))
            stack = stacks["shared" if config.layer_groups == 1 else f"shared_{group}"]
            for member in sorted(stack):
                yield stack[member]
        return
    for name in sorted(stacks):
        members = [stacks[name][member] for member in sorted(stacks[name])]
        for repeat in range(len(members[0]["query"]["kernel"])):
            for member in members:
                yield {
                    part: {leaf: array[repeat] for leaf, array in leaves.items()}
                    for part, leaves in member.items()
                }


def embed(config, params, ids, types, positions):
    tables = params["embeddings"]
    x = tables["word_embeddings"][ids]
    if config.type_vocab_size == 1:
        x = x + tables["token_type_embeddings"][0]
    elif config.type_vocab_size:
        x = x + tables["token_type_embeddings"][types]
    if config.position == "learned":
        x = x + tables["position_embeddings"][positions + config.position_offset]
    elif config.position.endswith("sinusoid"):
        waves = np.stack([sinusoid(position, x.shape[-1]) for position in positions])
        x = x + waves * tables.get("position_scale", 1)
    if config.embedding_norm:
        x = norm(config, x, tables["layer_norm"])
    return dense(x, tables["projection"]) if "projection" in tables else x


def states(config, params, ids, types, positions, sequences):
    """The embeddings [L, H] of one row, and the states behind each layer; the last one behind the norm."""
    x = embed(config, params, ids, types, positions)
    found = [x]
    for i, layer in enumerate(layer_parameters(config, params)):
        is_global = i % config.global_every == 0
        window = 0 if is_global else config.local_window
        theta = config.rotary_theta if is_global else config.local_rotary_theta

        def attend(x, layer=layer, window=window, theta=theta):
            return attention(config, x, layer, positions, sequences, window, theta)

        if config.norm_placement == "post":
            x = norm(config, x + attend(x), layer["attention_norm"])
            x = norm(config, x + feed_forward(config, x, layer), layer["output_norm"])
        else:
            x = x + attend(norm(config, x, layer["attention_norm"]) if "attention_norm" in layer else x)
            x = x + feed_forward(config, norm(config, x, layer["output_norm"]), layer)
        found.append(x)
    if config.final_norm:
        found[-1] = norm(config, found[-1], params["final_norm"])
    return found
