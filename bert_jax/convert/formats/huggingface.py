"""Reads and writes Hugging Face folders: config.json, safetensors and tokenizer files.

Nothing in them is executed. transformers and sentence-transformers can load the written folders.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import safetensors
import tokenizers
from etils import epy
from safetensors.numpy import load_file, save_file
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax import tokenization
from bert_jax.checkpoint.leaves import check_finite
from bert_jax.convert import families, sentences
from bert_jax.convert.families import CLASSIFIER, FAMILIES, Family
from bert_jax.convert.formats.base import Format
from bert_jax.convert.heads import HEADS, PRETRAINED, head_of
from bert_jax.convert.model import Model, check_file_params, params_of_head
from bert_jax.convert.param_mapping import HUGGINGFACE
from bert_jax.errors import UserError, reading
from bert_jax.io import atomic, files, json_files
from bert_jax.io.wording import some
from bert_jax.models import config as bert_config
from bert_jax.tokenization import byte_bpe, sentence_piece, templates
from bert_jax.tokenization.huggingface import ADDED_FLAGS, CONFIG, read_tokenizer

with epy.lazy_imports():
    import huggingface_hub

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

# Dtypes of unquantized weights, and of PyTorch's buffers. Quantized weights have other dtypes.
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "BOOL")

# File names of weights in other formats; all but the last two are pickles or may contain one.
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")

_NEVER = -1e4  # the score of a piece that is never chosen

# By the name of the vocabulary: the class of transformers where the family does not determine it.
_CLASSES = {
    "vocab.txt": "BertTokenizer",
    "spiece.model": "AlbertTokenizer",
    "sentencepiece.bpe.model": "XLMRobertaTokenizer",
    # This class reads tokenizer.json; DebertaV2Tokenizer of transformers 5 ignores its normalizer.
    "spm.model": "PreTrainedTokenizerFast",
    "tokenizer.json": "PreTrainedTokenizerFast",
}


class HuggingFace(Format):
    """A folder in the format of transformers' `save_pretrained`."""

    name = HUGGINGFACE
    title = "Hugging Face folder"

    def detect(self, path: files.PathLike) -> bool:
        """True for a directory with weights or transformers' config.json, perhaps in its encoder's folder."""
        if not files.is_directory(path):
            return False
        folder = sentences.encoder_folder(os.fspath(path))
        there = files.names(folder)
        if any(name in there for name in (WEIGHTS, INDEX, *_OTHER_WEIGHTS)):
            return True
        return CONFIG in there and "model_type" in json_files.read(os.path.join(folder, CONFIG))

    def read_config(
        self, path: files.PathLike
    ) -> tuple[bert_config.EncoderConfig, tokenization.Tokenizer | None]:
        folder = sentences.encoder_folder(os.fspath(path))
        config, family, _ = _read_config(folder)
        return config, read_tokenizer(folder, family.tokenizer)

    def read(self, path: files.PathLike, *, ignore: str = "", log: Callable[[str], None] = print) -> Model:
        """Reads the model in float32, without the parameters of other heads (see `params_of_head`)."""
        root = os.fspath(path)
        folder = sentences.encoder_folder(root)
        config, family, fields = _read_config(folder)
        classes = fields.get("architectures") or [""]
        if not {INDEX, WEIGHTS}.intersection(files.names(folder)):
            raise UserError(
                f"{folder} has no {WEIGHTS} or {INDEX}; pickles, which can run code, are not read"
            )
        tensors, untied = family.canonical(_read_tensors(folder))
        heads = [family.head_of_class(name) for name in classes]
        named = next(filter(None, heads), None)
        found = family.from_files(tensors, config, HUGGINGFACE, named)
        check_file_params(folder, family, found, ignore)
        head = _head_of(found.params, family, named)
        lacking = set(family.required(named or "none")) - {name.split("/")[0] for name in found.params}
        if untied:
            log(f"warning: {folder}: {untied[0]} is not tied, so that its masked LM head is not used")
        elif lacking:
            log(f"warning: {folder} has no {some(sorted(lacking))}, which its head {named} needs")
        params = params_of_head(found.params, head, family, folder, log)
        labels, problem_type, scores = None, "", sentences.PairScores()
        if CLASSIFIER in params and HEADS[head].labeled:
            labels = _labels(fields, params[CLASSIFIER].shape[0])
        if head == "sequence_classification":
            problem_type = fields.get("problem_type") or ""
            scores = sentences.read_scores(root, fields, config.max_seq_length)
        tokenizer = read_tokenizer(folder, family.tokenizer, log)
        model = Model(config, params, head, tokenizer, labels, root, problem_type)
        sentence = self.read_sentence(root, config, tokenizer)
        return model.replace(sentence=sentence, scores=scores, untied=untied[0] if untied else "")

    def read_sentence(
        self,
        path: files.PathLike,
        config: bert_config.EncoderConfig,
        tokenizer: tokenization.Tokenizer | None,
    ) -> sentences.SentenceVectors | None:
        return sentences.read(os.fspath(path), config.max_seq_length, tokenizer)

    def warning(self, model: Model) -> str:
        tokenizer = model.tokenizer
        if tokenizer is None or tokenizer.kind != "sentencepiece":
            return ""
        name = _class_name(model, tokenizer)
        if not _same_rows(tokenizer.template, tokenizer.default_template):
            return (
                f"transformers' {name} puts the special tokens of a pair of texts as in "
                f"{tokenizer.default_template.pair!r}, and this model has {tokenizer.template.pair!r}"
            )
        if tokenizer.normalizer == "albert" or name != "AlbertTokenizer":
            return ""
        return "transformers' AlbertTokenizer normalizes text: ids differ for two backquotes or apostrophes"

    def write(
        self,
        model: Model,
        folder: files.PathLike,
        card: str = "",
        max_shard_bytes: int = 5_000_000_000,
    ) -> None:
        """Writes all files, with weights in files of at most `max_shard_bytes`, or of a single tensor."""
        folder = os.fspath(folder)
        write_description(model, folder, card)
        tensors = model.family.to_files(model.params, model.config, HUGGINGFACE, model.head)
        if model.head == "none":
            prefix = f"{model.family.base}."
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        _write_weights(tensors, folder, max_shard_bytes)


FORMAT = HuggingFace()


def _read_config(folder: str) -> tuple[bert_config.EncoderConfig, Family, dict[str, Any]]:
    file = os.path.join(folder, CONFIG)
    fields = json_files.read(file, {"architectures?": ([str], None), "id2label?": (dict, None)})
    kind = fields.get("model_type", "bert")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(f"{file}: model_type is {kind!r}, expected one of {', '.join(FAMILIES)}")
    try:
        config = FAMILIES[kind].read_config(fields)
        return config, families.of(config), fields
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _head_of(params: Collection[str], family: Family, named: str | None) -> str:
    groups = {name.split("/")[0] for name in params}
    required = set(family.required(named or "none"))
    if named not in (None, "none") and required <= groups:
        groups -= {"classifier", "qa"} - required  # another task's, which may be left in the file
    return head_of(groups, *([named] if named and "classifier" in required else []))


def _labels(fields: Mapping[str, Any], count: int) -> tuple[str, ...] | None:
    named = fields.get("id2label") or {}
    labels = tuple(str(named.get(str(i), f"LABEL_{i}")) for i in range(count))
    if labels == ("LABEL_0",) and fields.get("problem_type") != "multi_label_classification":
        return None  # the name that transformers gives to a regression value, or to a single score
    return labels


def _read_tensors(folder: str) -> dict[str, np.ndarray]:
    shards = {WEIGHTS}
    # A model that is saved again in one file still has the index of its former shards.
    if WEIGHTS not in files.names(folder):
        index = json_files.read(os.path.join(folder, INDEX), {"weight_map": {str: str}})
        shards = set(index["weight_map"].values())
    tensors: dict[str, np.ndarray] = {}
    for name in sorted(shards):
        tensors |= load_safetensors(os.path.join(folder, name))
    return tensors


def load_safetensors(path: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a safetensors file by name; half precision is not converted."""
    try:
        # `open_read` raises an error for a directory; safetensors does not.
        with reading(path), files.local_copy(path) as copy, files.open_read(copy):
            with safetensors.safe_open(copy, "numpy") as file:
                names = file.keys()
                for name in names:
                    tensor = file.get_slice(name)
                    dtype, is_matrix = tensor.get_dtype(), len(tensor.get_shape()) > 1
                    # Counters are not matrices, and position_ids is a buffer.
                    if dtype not in _DTYPES and is_matrix and not name.endswith("_ids"):
                        raise UserError(f"{path}: {name} is {dtype}; quantized weights are not supported")
            tensors = load_file(copy)
    except (safetensors.SafetensorError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error})") from error
    check_finite(path, tensors)
    return tensors


def write_description(model: Model, folder: str, card: str = "", pools_any: bool = True) -> None:
    """Writes the files of a Hugging Face folder that are not weights, and README.md if there is a card.

    If `pools_any`, every encoder gets the files of sentence-transformers, by default with mean pooling.
    """
    sentences.write_json(folder, CONFIG, _config(model))
    if model.tokenizer is not None:
        _write_tokenizer(model, model.tokenizer, folder)
    sentence = model.sentence or sentences.SentenceVectors()
    # A model that is not converted completely does not get these files, which would promise its vectors.
    pools = model.head in PRETRAINED and not sentence.unsupported
    if model.is_sentence_encoder or (pools_any and pools):
        sentences.write(sentence, model.config.hidden_size, model.config.max_seq_length, folder)
    if card:
        atomic.write_text(os.path.join(folder, "README.md"), card)


def _config(model: Model) -> dict[str, Any]:
    fields = model.family.write_config(model.config, model.head)
    fields["dtype"] = str(next(iter(model.params.values())).dtype)
    if model.tokenizer is not None:
        ids = model.tokenizer.special_ids
        fields |= {name: ids[role] for name, role in model.family.special_ids.items()}
    classes = model.classes
    # Without the field, transformers infers it from the training labels.
    is_classifier = model.head == "sequence_classification"
    if is_classifier:
        fields |= {"problem_type": model.problem_type} if model.problem_type else {}
        if model.scores.activation:  # read by sentence-transformers since version 4
            fields["sentence_transformers"] = {"activation_fn": model.scores.activation}
    if is_classifier and not model.labels and (classes == 1 or model.problem_type == "regression"):
        fields["num_labels"] = classes  # transformers assumes 2 if there are no labels
    elif classes and HEADS[model.head].labeled:
        labels = model.labels or [f"LABEL_{i}" for i in range(classes)]
        fields["id2label"] = {str(i): name for i, name in enumerate(labels)}
        fields["label2id"] = {name: i for i, name in enumerate(labels)}
    return fields


def _write_weights(tensors: Mapping[str, np.ndarray], folder: str, limit: int) -> None:
    split = huggingface_hub.split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=limit,
    )
    for file, names in split.filename_to_tensors.items():
        shard = {name: np.ascontiguousarray(tensors[name]) for name in names}
        _save(shard, os.path.join(folder, file))
    if split.is_sharded:
        content = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        sentences.write_json(folder, INDEX, content)


def _save(tensors: dict[str, np.ndarray], path: str) -> None:
    save_file(tensors, path, {"format": "pt"})  # transformers requires this metadata
    # safetensors creates files that only their owner can read.
    shutil.copymode(os.path.join(os.path.dirname(path), CONFIG), path)


def _text_length(model: Model) -> int:
    positions = model.config.max_seq_length
    if model.head == "sequence_classification":
        return min(model.scores.max_seq_length or positions, positions)
    return (model.sentence.max_seq_length if model.sentence else 0) or positions


def _write_tokenizer(model: Model, tokenizer: tokenization.Tokenizer, folder: str) -> None:
    fields = model.family.tokenizer.fields
    if model.config.type_vocab_size == 1 and "model_input_names" not in fields:
        tokenizer = copy.copy(tokenizer)
        tokenizer.template = tokenizer.template.with_one_type()
    name = _class_name(model, tokenizer)
    special: dict[str, Any] = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
    settings: dict[str, Any]
    if isinstance(tokenizer, byte_bpe.ByteBpeTokenizer):
        settings = _write_byte_bpe(tokenizer, name, folder)
        # Some classes of transformers read only the tokens of tokenizer.json, not the flags of the mask.
        flags = {**dict(zip(("lstrip", "rstrip"), tokenizer.mask_strips, strict=True)), "normalized": False}
        mask = {"__type": "AddedToken", "content": special["mask_token"], **flags, "single_word": False}
        special["mask_token"] = mask
        special |= {"bos_token": special["cls_token"], "eos_token": special["sep_token"]}
    else:
        settings = {"do_lower_case": tokenizer.lower_case, "strip_accents": tokenizer.strip_accents}
        atomic.copy_file(tokenizer.path, os.path.join(folder, _file_name(tokenizer)))
    settings |= {"model_max_length": _text_length(model), "tokenizer_class": name}
    if tokenizer.kind == "sentencepiece":
        special = {f"{role}_token": tokenizer.tokens[i] for role, i in tokenizer.special_ids.items()}
        settings["keep_accents"] = not tokenizer.strip_accents
        if tokenizer.normalizer == "albert":
            settings["remove_space"] = True
            albert_rust(tokenizer).save(os.path.join(folder, "tokenizer.json"))
            del settings["strip_accents"]  # its presence means the normalization of BERT
        elif tokenizer.normalizer == "deberta":
            settings["split_by_punct"] = False
            _deberta_rust(tokenizer).save(os.path.join(folder, "tokenizer.json"))
    elif tokenizer.kind == "wordpiece":
        settings["tokenize_chinese_chars"] = True
        _rust(tokenizer).save(os.path.join(folder, "tokenizer.json"))
    if name == "PreTrainedTokenizerFast":  # transformers 5 gives it no token types by default
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    settings |= fields
    sentences.write_json(folder, "tokenizer_config.json", settings | special)
    sentences.write_json(folder, "special_tokens_map.json", special)


def _file_name(tokenizer: tokenization.Tokenizer) -> str:
    return tokenizer.released_name or tokenization.KINDS[tokenizer.kind].released[0]


def _class_name(model: Model, tokenizer: tokenization.Tokenizer) -> str:
    record = model.family.tokenizer
    is_own = record.kind == tokenizer.kind != "sentencepiece"
    # A SentencePiece model has ALBERT's or fairseq's ids, whatever the family of the model is.
    if is_own and (tokenizer.kind == "bpe" or tokenizer.template == record.template):
        return record.class_name
    # BertTokenizer always uses BERT's template and token types; this class uses those in tokenizer.json.
    if tokenizer.kind == "wordpiece" and (is_own or not _same_rows(tokenizer.template, templates.BERT)):
        return "PreTrainedTokenizerFast"
    return _CLASSES[_file_name(tokenizer)]


def _same_rows(one: templates.Template, other: templates.Template) -> bool:
    ours, theirs = ([name for name, _ in template.places("pair")] for template in (one, other))
    return ours == theirs


def _write_byte_bpe(tokenizer: byte_bpe.ByteBpeTokenizer, class_name: str, folder: str) -> dict[str, Any]:
    """Writes tokenizer.json, and separate files if they suffice; returns fields of tokenizer_config.json."""
    content = tokenizer.content
    written = {"tokenizer.json": byte_bpe.serialized(content)}
    if tokenizer.is_plain:
        written |= byte_bpe.separate(content)
    elif class_name != _CLASSES["tokenizer.json"]:
        raise UserError(f"{tokenizer.path} normalizes or splits text unlike transformers' {class_name}")
    for name, data in written.items():
        atomic.write_file(os.path.join(folder, name), data)
    return {"add_prefix_space": tokenizer.prefix_space, "trim_offsets": True}


def _rust(tokenizer: tokenization.Tokenizer) -> tokenizers.Tokenizer:
    ids = {token: number for number, token in enumerate(tokenizer.tokens)}
    rust = tokenizers.Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]", max_input_chars_per_word=100))
    rust.normalizer = normalizers.BertNormalizer(
        lowercase=tokenizer.lower_case, strip_accents=tokenizer.strip_accents
    )
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.post_processor = _template(tokenizer)
    rust.decoder = decoders.WordPiece(prefix="##")
    rust.add_special_tokens(list(tokenizer.special_tokens.values()))
    for one in tokenizer.added_tokens:
        flags = {flag: one[flag] for flag in ADDED_FLAGS if one.get(flag) is not None}
        rust.add_tokens([tokenizers.AddedToken(one["content"], **flags)])
    return rust


def albert_rust(tokenizer: tokenization.Tokenizer) -> tokenizers.Tokenizer:
    """Returns the tokenizer for tokenizer.json, built like transformers' AlbertTokenizer.

    Without this file, transformers converts spiece.model, and then divides a text at each symbol that is a
    token by itself (a point, a dash) as if a space followed. The tokens that ALBERT divides further, such as
    `9,`, have a score so low that they are never chosen.
    """
    proto: Any = sentencepiece_model_pb2  # protobuf makes its classes when it is imported
    model = proto.ModelProto.FromString(files.read(tokenizer.path))
    scores = [
        (piece.piece, _NEVER if sentence_piece.ends_in_digit_comma(piece.piece) else piece.score)
        for piece in model.pieces
    ]
    rust = tokenizers.Tokenizer(models.Unigram(scores, tokenizer.special_ids["unk"], byte_fallback=False))
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if tokenizer.strip_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if tokenizer.lower_case:
        steps.append(normalizers.Lowercase())
    if model.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap))
    rust.normalizer = normalizers.Sequence(steps)
    space: dict[str, Any] = {"replacement": sentence_piece.WORD_START, "prepend_scheme": "always"}
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space)]
    )
    rust.post_processor = _template(tokenizer)
    rust.decoder = decoders.Metaspace(**space)
    rust.add_special_tokens(
        [
            tokenizers.AddedToken(tokenizer.tokens[i], lstrip=role == "mask", normalized=False)
            for role, i in tokenizer.special_ids.items()
        ]
    )
    return rust


def _deberta_rust(tokenizer: tokenization.Tokenizer) -> tokenizers.Tokenizer:
    rust = sentence_piece.rust_unigram(files.read(tokenizer.path))
    rust.post_processor = _template(tokenizer)
    rust.add_special_tokens(
        [tokenizers.AddedToken(tokenizer.tokens[i], normalized=False) for i in tokenizer.special_ids.values()]
    )
    return rust


def _template(tokenizer: tokenization.Tokenizer) -> processors.TemplateProcessing:
    special = {role: (tokenizer.tokens[i], i) for role, i in tokenizer.special_ids.items()}
    return byte_bpe.template_processing(tokenizer.template, special)
