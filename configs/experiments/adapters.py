"""Parameter-efficient methods against full fine-tuning (Hu et al. 2022, table 2).

    bert-jax sweep --experiment=adapters --workdir=runs/adapters --model=all-MiniLM-L6-v2 \
        --data=glue=glue
"""

from bert_jax.runs.sweep import Experiment, Variant, finetuning

VARIANTS = {
    "full": {},
    "LoRA, rank 1": {"adapter.kind": "lora", "adapter.rank": 1, "optimizer.learning_rate": 2e-3},
    "LoRA, rank 4": {"adapter.kind": "lora", "adapter.rank": 4, "optimizer.learning_rate": 2e-3},
    "LoRA, rank 16": {"adapter.kind": "lora", "adapter.rank": 16, "optimizer.learning_rate": 2e-3},
    "Houlsby, width 16": {"adapter.kind": "houlsby", "adapter.size": 16, "optimizer.learning_rate": 1e-3},
    "Houlsby, width 64": {"adapter.kind": "houlsby", "adapter.size": 64, "optimizer.learning_rate": 1e-3},
    "biases": {"adapter.kind": "bitfit", "optimizer.learning_rate": 2e-3},
    "head": {"adapter.kind": "head", "optimizer.learning_rate": 2e-3},
}


def get_experiment():
    return Experiment(
        "Parameter-efficient fine-tuning",
        variants=[Variant(name, tune={"*": fields}) for name, fields in VARIANTS.items()],
        measures=[finetuning(task, rate=1e-4) for task in ("MRPC", "STS-B", "RTE", "SST-2")],
        published="""
Hu et al. 2022, table 2, RoBERTa-Base: full fine-tuning 94.8 on SST-2, 90.2 on MRPC, 78.7 on RTE and 91.2 on
STS-B; LoRA of rank 8 95.1, 89.7, 86.6 and 91.5; biases 93.7, 92.7, 81.5 and 90.8. There RTE, MRPC and STS-B
start from a model fine-tuned on MNLI, and every task has its own learning rate; here each method has one.
""",
    )
