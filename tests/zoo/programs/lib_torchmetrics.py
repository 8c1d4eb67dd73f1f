"""torchmetrics: states on the device that each batch adds to, and lists that are joined at the end.

Right: one stream.
"""
import os

import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")

metrics = MetricCollection([MulticlassAccuracy(5), MulticlassF1Score(5), MulticlassAUROC(5)]).to(DEVICE)
confusion = MulticlassConfusionMatrix(5).to(DEVICE)
error, correlation = MeanSquaredError().to(DEVICE), PearsonCorrCoef().to(DEVICE)
for number in range(6):
    labels = torch.arange(number, number + 100, device=DEVICE) % 5
    scores = torch.nn.functional.one_hot(labels, 5).float().softmax(1)
    metrics.update(scores, labels)
    confusion.update(scores, labels)
    error.update(labels.float(), labels.float() + 1)
    correlation.update(labels.float(), labels.float() * 2)
values = [round(value.item(), 3) for _, value in sorted(metrics.compute().items())]
print(values, confusion.compute().diag().sum().item(), error.compute().item(), round(correlation.compute().item(), 3))
