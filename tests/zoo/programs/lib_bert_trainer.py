"""transformers' Trainer fine-tunes a small BERT in bfloat16, with workers, page-locked batches and an evaluation.

Right: one stream; batches are uploaded without waiting on the same one.
"""
import os
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

ON_CPU = os.environ.get("ZOO_DEVICE", "cuda") == "cpu"


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        words = (torch.arange(64) * (index + 1)) % 400
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": index % 3}


def main():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=400, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=256, num_labels=3)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=16, num_train_epochs=2, report_to=[], dataloader_num_workers=2,
            logging_steps=4, save_strategy="no", bf16=not ON_CPU, use_cpu=ON_CPU, disable_tqdm=True)
        trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Sentences(),
                          eval_dataset=Sentences())
        trained, evaluated = trainer.train(), trainer.evaluate()
    print("steps:", trained.global_step, "losses:", 0 < trained.training_loss < 3, 0 < evaluated["eval_loss"] < 3)


if __name__ == "__main__":
    main()
