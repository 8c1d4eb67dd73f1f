"""Lightning's Trainer: mixed precision, accumulated and clipped gradients, workers, a validation after each epoch.

Right: one stream.
"""
import os
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

ON_CPU = os.environ.get("ZOO_DEVICE", "cuda") == "cpu"
warnings.filterwarnings("ignore")


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                                         torch.nn.Linear(16 * 26 * 26, 10))

    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("checked", torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    lightning.seed_everything(0, verbose=False)
    data = TensorDataset(torch.rand(512, 1, 28, 28), torch.arange(512) % 10)
    train, check = (DataLoader(data, 64, num_workers=2, pin_memory=not ON_CPU) for _ in range(2))
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu" if ON_CPU else "gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, precision="bf16-mixed", accumulate_grad_batches=2,
        gradient_clip_val=1.0)
    trainer.fit(Classifier(), train, check)
    losses = {name: 0 < value.item() < 5 for name, value in sorted(trainer.callback_metrics.items())}
    print("steps:", trainer.global_step, "losses:", losses)


if __name__ == "__main__":
    main()
