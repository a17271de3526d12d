"""SAM in transformers' Trainer: a tiny BERT, built from a configuration, learns which of two tokens is the commoner.

SAMTrainer wraps the optimizer that TrainingArguments name; accumulation, clipping, the schedule and checkpoints are
Trainer's own.

    pip install 'evenly[transformers]'
    python examples/transformers_sam.py
"""

import tempfile
from functools import partial

import numpy as np
import torch
import transformers

import evenly
from evenly.integrations.transformers import SAMTrainer

A, B, LENGTH = 1, 2, 11


def sentences(count, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(A, B + 1, (count, LENGTH), generator=generator)
    labels = ((tokens == A).sum(1) > (tokens == B).sum(1)).long()
    return [{"input_ids": row, "labels": int(label)} for row, label in zip(tokens, labels, strict=True)]


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=4, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def accuracy(prediction):
    return {"accuracy": float((np.argmax(prediction.predictions, axis=1) == prediction.label_ids).mean())}


with tempfile.TemporaryDirectory() as folder:
    args = transformers.TrainingArguments(
        folder, num_train_epochs=4, learning_rate=3e-3, per_device_train_batch_size=16, gradient_accumulation_steps=2,
        max_grad_norm=1.0, weight_decay=0.01, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False, logging_strategy="no",
    )  # fmt: skip
    trainer = SAMTrainer(
        bert(), args, train_dataset=sentences(800, seed=1), eval_dataset=sentences(400, seed=2),
        compute_metrics=accuracy, perturb=partial(evenly.SAM, rho=0.05),
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    print(trainer.perturbed.__class__.__name__, "around", trainer.perturbed.base.__class__.__name__)
    print(f"{trainer.state.global_step} steps, accuracy {trainer.evaluate()['eval_accuracy']:.1%}")
