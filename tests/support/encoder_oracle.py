"""An encoder in NumPy and float64, written from the papers: what `bert_jax.models` is compared with.

One layer after the other; it shares no code with the models.
"""

import cmath
import math

import jax
import numpy as np


def _gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


ACTIVATIONS = {
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


def bucket(config, distance):
    """The row of DeBERTa's table for a distance."""
    longest = config.max_relative_positions or config.max_position_embeddings
    if not config.position_buckets:
        return min(max(distance + longest, 0), 2 * longest - 1)
    middle, size = config.position_buckets // 2, abs(distance)
    if size > middle:
        size = math.ceil(math.log(size / middle) / math.log((longest - 1) / middle) * (middle - 1)) + middle
    place = math.copysign(size, distance) + config.position_buckets
    return int(min(max(place, 0), 2 * config.position_buckets - 1))


def disentangled(config, query, key, layer, table):
    """What distances add to the products of queries and keys, before the temperature: [heads, L, L]."""
    suffix = "" if config.share_attention_key else "position_"
    length, heads, size = query.shape
    added = np.zeros((heads, length, length))
    for i in range(length):
        for j in range(length):
            row = table[bucket(config, i - j)]
            if "c2p" in config.position_attention:
                added[:, i, j] += (query[i] * dense(row, layer[f"{suffix}key"])).sum(-1)
            if "p2c" in config.position_attention:
                added[:, i, j] += (key[j] * dense(row, layer[f"{suffix}query"])).sum(-1)
    return added / math.sqrt(size)


def convolution(config, x, y, parameters, sequences):
    """The output y of the first layer, with the convolution of its input x."""
    half, kernel = config.conv_kernel_size // 2, parameters["dense"]["kernel"]
    mixed = np.tile(parameters["dense"]["bias"], (len(x), 1))
    for i in range(len(x)):
        for offset in range(-half, half + 1):
            if 0 <= i + offset < len(x) and sequences[i + offset] == sequences[i]:
                mixed[i] += x[i + offset] @ kernel[offset + half]
    return norm(config, y + np.tanh(mixed), parameters["layer_norm"])


def attention(config, x, layer, positions, sequences, window, theta, table=None, context=None):
    """[L, H] of one row -> [L, H], and the probabilities [heads, L, L]."""
    query = dense(x, layer["query"])
    key, value = (dense(x if context is None else context, layer[name]) for name in ("key", "value"))
    if config.position == "rotary":
        query, key = (
            np.array(
                [[rotate(head, p, theta) for head in heads] for heads, p in zip(x, positions, strict=True)]
            )
            for x in (query, key)
        )
    index = np.arange(len(x))
    distances = np.abs(np.subtract.outer(index, index))
    scores = np.einsum("ihd,jhd->hij", query, key) / math.sqrt(query.shape[-1])
    if config.position == "disentangled":
        scores += disentangled(config, query, key, layer, table)
        scores *= (1 + len(config.position_attention.split("|"))) ** -0.5
    if config.position == "alibi":
        scores -= np.multiply.outer(slopes(query.shape[1]), distances)
    seen = np.equal.outer(sequences, sequences) & (distances <= (window or len(x)))
    if config.causal:
        seen &= np.tri(len(x), dtype=bool)
    weights = np.exp(np.where(seen, scores - scores.max(-1, keepdims=True), -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    return dense(np.einsum("hij,jhd->ihd", weights, value), layer["attention_output"], 2), weights


def feed_forward(config, x, layer):
    inner, activate = dense(x, layer["intermediate"]), ACTIVATIONS[config.hidden_act]
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
                yield jax.tree.map(lambda array, repeat=repeat: array[repeat], member)


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
    if config.projection_placement == "before_norm":
        x = dense(x, tables["projection"]) if "projection" in tables else x
        return norm(config, x, tables["layer_norm"])
    if config.embedding_norm:
        x = norm(config, x, tables["layer_norm"])
    return dense(x, tables["projection"]) if "projection" in tables else x


def masked_states(config, params, ids, types, positions, sequences):
    """The states [L, H] of the enhanced mask decoder, for one row."""
    context = states(config, params, ids, types, positions, sequences)[0][-2]
    *_, layer = layer_parameters(config, params)
    table = norm(config, params["relative"]["table"], params["relative"]["layer_norm"])
    x = context + params["mask_positions"][positions]
    for _ in range(2):
        read, _ = attention(config, x, layer, positions, sequences, 0, 0, table, context)
        x = norm(config, x + read, layer["attention_norm"])
        x = norm(config, x + feed_forward(config, x, layer), layer["output_norm"])
    return x


def states(config, params, ids, types, positions, sequences, vector=None):
    """The embeddings [L, H] of one row, and the states behind each layer, the last one behind the norm; and
    the probabilities of attention of each layer. Those of a decoder also read a vector [H]."""
    x = embed(config, params, ids, types, positions)
    found, weights = [x], []
    table = params["relative"]["table"] if "relative" in params else None
    if config.relative_norm and table is not None:
        table = norm(config, table, params["relative"]["layer_norm"])
    for i, layer in enumerate(layer_parameters(config, params)):
        is_global = i % config.global_every == 0
        window = 0 if is_global else config.local_window
        theta = config.rotary_theta if is_global else config.local_rotary_theta

        def attend(x, layer=layer, window=window, theta=theta):
            out, probabilities = attention(config, x, layer, positions, sequences, window, theta, table)
            weights.append(probabilities)
            return out

        if config.norm_placement == "post":
            x = norm(config, x + attend(x), layer["attention_norm"])
            if vector is not None:
                cross = layer["cross_attention"]
                x = norm(
                    config, x + dense(dense(vector, cross["value"]), cross["output"], 2), cross["layer_norm"]
                )
            x = norm(config, x + feed_forward(config, x, layer), layer["output_norm"])
        else:
            x = x + attend(norm(config, x, layer["attention_norm"]) if "attention_norm" in layer else x)
            x = x + feed_forward(config, norm(config, x, layer["output_norm"]), layer)
        if "convolution" in layer:
            x = convolution(config, found[-1], x, layer["convolution"], sequences)
        found.append(x)
    if config.final_norm:
        found[-1] = norm(config, found[-1], params["final_norm"])
    return found, weights
