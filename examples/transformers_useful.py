"""USEFUL and PDE in transformers' Trainer, on texts whose first token gives most labels away.

A tiny BERT, built from a configuration, learns which of two tokens is the commoner. In nine of ten sentences the first
token is a shortcut to the answer. UsefulTrainer finds the sentences without it by itself and repeats them; PDETrainer
is told the groups, and keeps the weights of the best worst group.

    pip install 'evenly[transformers]'
    python examples/transformers_useful.py

The same script runs in several processes: torchrun --nproc-per-node 2 examples/transformers_useful.py
"""

import os
import tempfile

import torch
import transformers

from evenly.integrations.transformers import PDETrainer, UsefulTrainer, worst_group_metrics

SHORTCUT, NONE, A, B, LENGTH = 1, 3, 4, 5, 9


def sentences(count, seed):
    """Sentences of A and B after a first token, and their groups: 2 x label + whether the shortcut is missing."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(A, B + 1, (count, LENGTH), generator=generator)
    labels = ((tokens == A).sum(1) > (tokens == B).sum(1)).long()
    lacking = torch.rand(count, generator=generator) < 0.1
    first = torch.where(lacking, NONE, SHORTCUT + labels)
    rows = torch.cat([first[:, None], tokens], 1)
    data = [{"input_ids": row, "labels": int(label)} for row, label in zip(rows, labels, strict=True)]
    return data, 2 * labels + lacking


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=6, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def arguments(folder, **options):
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return transformers.TrainingArguments(
        folder, num_train_epochs=6, learning_rate=2e-3, per_device_train_batch_size=32 // processes, report_to=[],
        disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, logging_strategy="no",
        ddp_backend="gloo" if processes > 1 else None, **options,
    )  # fmt: skip


def report(trainer, name):
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    measured = trainer.evaluate(test)
    if trainer.is_world_process_zero():
        shares = f"accuracy {measured['eval_mean']:.1%}, worst group {measured['eval_worst_group']:.1%}"
        print(f"{name}: {len(trainer.selection.indices)} of {len(train)} examples chosen; test {shares}")


train, train_groups = sentences(1200, seed=1)
validation, validation_groups = sentences(600, seed=2)
test, test_groups = sentences(600, seed=3)

with tempfile.TemporaryDirectory() as folder:
    trainer = UsefulTrainer(
        bert(), arguments(f"{folder}/useful", save_strategy="no"), train_dataset=train,
        compute_metrics=worst_group_metrics(test_groups, train_groups),
    )  # fmt: skip
    report(trainer, "USEFUL")
    lacking = train_groups[trainer.selection.indices] % 2 == 1
    print(f"{int(lacking.sum())} of {int((train_groups % 2).sum())} sentences without the shortcut are among them")

    best = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    trainer = PDETrainer(
        bert(), arguments(f"{folder}/pde", metric_for_best_model="worst_group", **best), train_dataset=train,
        eval_dataset=validation, groups=train_groups, validation_groups=validation_groups,
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    trainer.compute_metrics = worst_group_metrics(test_groups, train_groups)
    report_only = trainer.evaluate(test)
    print(f"PDE: test accuracy {report_only['eval_mean']:.1%}, worst group {report_only['eval_worst_group']:.1%}")
