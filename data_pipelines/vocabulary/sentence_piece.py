"""Trains SentencePiece models, in which [PAD], [UNK], [CLS], [SEP] and [MASK] have the ids 0 to 4."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

import sentencepiece

from bert_jax.errors import UserError
from bert_jax.io.progress import Progress
from bert_jax.tokenization import albert_text, normalization
from data_pipelines import readers, sentences
from data_pipelines.vocabulary.options import Options

SAMPLE_BYTES = 30_000_000  # SentencePiece needs 20 times the size of the sample in memory
_ALBERT_SYMBOLS = list('()"-.\u2013\u00a3\u20ac')  # those of google-research/albert's vocabularies
_LONGEST = 1 << 16  # bytes; SentencePiece leaves out longer lines
_THREADS = 16  # the result depends on it, so it is not the number of cores


def learn(documents: Iterable[readers.Document], options: Options, progress: Progress) -> bytes:
    """Returns the content of a .model file that is learned from documents."""
    model = io.BytesIO()
    normalize = albert_text.normalizer(options.folded, options.folded)
    if options.normalizer == "bert":

        def normalize(line: str) -> str:
            return normalization.fold(normalization.clean(line), options.folded, options.folded)

    lines = (line for document in documents for line in sentences.split(document))

    def folded() -> Iterator[str]:
        for line in lines:
            yield from readers.split_long(normalize(line), _LONGEST // 4)  # a character has up to 4 bytes
        progress.start("learning tokens")

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=folded(),
            model_writer=model,
            model_type="unigram",
            vocab_size=options.size,
            hard_vocab_limit=False,
            character_coverage=options.character_coverage,
            normalization_rule_name="nmt_nfkc",
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece="[PAD]",
            unk_piece="[UNK]",
            bos_piece="[CLS]",
            eos_piece="[SEP]",
            control_symbols=["[MASK]"],
            user_defined_symbols=_ALBERT_SYMBOLS if options.normalizer == "albert" else [],
            max_sentence_length=_LONGEST,
            num_threads=_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"SentencePiece can't learn --size={options.size} tokens from this text: {reason}"
        ) from None
    return model.getvalue()
