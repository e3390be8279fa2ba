"""Fine-tuning of a file with texts and labels, as a user calls it; and work directories as it leaves them,
with drawn weights, where nothing has to be trained."""

from support.tiny_model import draw_parameters, tiny_config

from bert_jax import checkpoint, tasks, tokenization
from bert_jax.tasks.base import family
from bert_jax.workdir import run_directory as workdir


def make_problem(vocabulary, task, labels=None, fields=(), **data):
    """`fields` are of the configuration, `data` those of `config.data`."""
    spec, tokenizer = tasks.get(task), tokenization.load(vocabulary)
    config = tasks.default_config("tiny", task)
    bert = tiny_config(tokenizer.vocab_size)
    config.update(dict(task=task, max_length=16, batch_size=16) | dict(fields))
    config.model, config.data = bert.to_dict(), dict(config.data) | data
    return family(spec.kind)(config, spec, labels, tokenizer, bert)


def make_run(directory, vocabulary, task, labels=None, fields=(), **data):
    """As `make_problem`. Returns the directory."""
    problem = make_problem(vocabulary, task, labels, fields, **data)
    with workdir.WorkDir(directory) as held:
        run = {"command": "finetune", "config": problem.config.to_dict(), "labels": labels}
        run |= {"head": problem.exported_as, "problem_type": problem.problem_type}
        held.open_run(run | {"vocabulary": problem.tokenizer.settings()})
        held.copy_vocabulary(problem.tokenizer.path)
        keeper = checkpoint.Checkpointer(held.checkpoints)
        keeper.save(3, {"params": draw_parameters(problem.task)})
        keeper.close()
    return directory


def command(files, workdir, pretrained, *more, text="text", label="label"):
    """`finetune` of files/train.csv and dev.csv, whose columns are named."""
    return [
        "finetune",
        "--config=finetune/classification",
        f"--workdir={workdir}",
        f"--config.init_from={pretrained}",
        f"--config.data.train={files}/train.csv",
        f"--config.data.eval={files}/dev.csv",
        f"--config.data.text_a={text}",
        f"--config.data.label={label}",
        *more,
    ]


NO_DROPOUT = ("--config.model.hidden_dropout_prob=0", "--config.model.attention_probs_dropout_prob=0")
