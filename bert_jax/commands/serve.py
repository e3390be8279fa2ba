"""Serve a model over HTTP: vectors, words for masks, and predictions.

    bert-jax serve --model=sentence-transformers/all-MiniLM-L6-v2
    bert-jax serve --model=runs/mini --workdir=runs/reviews --port=8080

    curl localhost:8000/embed -d '{"texts": ["one text", "another"]}'
    curl localhost:8000/v1/embeddings -d '{"input": "one text"}'
    curl localhost:8000/fill-mask -d '{"texts": ["The [MASK] sea."], "top": 3}'
    curl localhost:8000/predict -d '{"rows": ["a text", "another"]}'

--model serves /embed, /v1/embeddings (compatible with OpenAI's) and, with a masked LM head, /fill-mask.
--workdir, a fine-tuned run, or a --model with a fine-tuned head serves /predict. Concurrent requests are
batched. Programs are compiled before the first request, except for texts with several masks. GET /v1/models
names the model; /health and /metrics (Prometheus) give the state of the server. By default, the server
accepts requests of this machine only; --host=0.0.0.0 accepts all, without encryption or authentication.
SIGTERM and Ctrl-C finish open requests.
"""

from __future__ import annotations

import socket
import time

from absl import flags as absl_flags
from etils import epy

from bert_jax import signals
from bert_jax.commands import shared
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.io.progress import log, of_batches
from bert_jax.io.wording import counted
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.convert import model_card
    from bert_jax.inference import embedding, engine, fill_mask, predictor
    from bert_jax.parallel import compiler_options
    from bert_jax.serving import server as http

_GRACE_SECONDS = 30


def define_flags(define: Define) -> None:
    define.string("model", f"Model for /embed, /fill-mask and /predict: {shared.MODEL}.")
    define.string("workdir", "Work directory of `bert-jax finetune`, for /predict.")
    shared.add_dtype(define)
    define.string("host", "Address to listen on.", "127.0.0.1")
    define.integer("port", "Port to listen on. 0: any free port.", 8000)
    define.integer("batch_size", "Maximum number of items to compute together.", 32)


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    if not flags.workdir:
        shared.check_given(flags, ["model"], "serve without --workdir")
    shared.at_least(flags, batch_size=1, port=0)
    _check_address(flags.host, flags.port)
    compiler_options.enable_compilation_cache()
    served = _services(flags)
    began = time.monotonic()
    programs = 0
    for service in served:
        with of_batches(f"compiling /{service.name}", "programs") as on_program:
            programs += service.warm_up(flags.batch_size, on_program)
    name = model_card.public_path(files.absolute(flags.model or flags.workdir))
    server = http.Server(served, name, most=flags.batch_size)
    log(f"{counted(programs, 'program')} compiled in {time.monotonic() - began:.1f} s")
    options = dict(log_level="warning", timeout_graceful_shutdown=_GRACE_SECONDS)
    with signals.noted():
        http.HttpServer(server, log, host=flags.host, port=flags.port, **options).run()
    log("stopped")


def _check_address(host: str, port: int) -> None:
    """Raises UserError if no requests can be received there, before models are loaded."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in addresses:
            socket.create_server(address, family=family).close()
    except (OSError, UnicodeError, OverflowError) as error:
        raise UserError(f"--host={host} --port={port}: cannot listen there ({error})") from None


def _services(flags: absl_flags.FlagValues) -> list[http.Service]:
    found: list[http.Service] = []
    if flags.model:
        model = convert.load(flags.model, log=log)
        embedder = embedding.Embedder(model, dtype=flags.dtype, log=log)
        found.append(http.embedding(embedder))
        filling = engine.masked_lm_of(model)
        if filling is not None and not filling.config.causal:
            placed = embedder.engine if filling is model else None
            filler = fill_mask.MaskFiller(model, log, flags.dtype, shared_with=placed)
            found.append(http.fill_mask(filler))
    source = flags.workdir
    if not source and model.head in predictor.HEADS and model.head != "multiple_choice":
        source = flags.model  # without --workdir, it is always given
    if source:
        options = dict(batch_size=flags.batch_size, dtype=flags.dtype)
        found.append(http.prediction(predictor.Predictor(source, log=log, **options)))
    return found
