"""Small programs that several tests run, on the CPU and on the emulated device."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def data(samples=96):
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(samples, 1, 12, 12, generator=generator)
    return TensorDataset(images, torch.randint(0, 10, (samples,), generator=generator))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))


def cnn():
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(features, nn.Flatten(), nn.Linear(100, 10))


adam = partial(torch.optim.Adam, lr=0.01, foreach=True)


sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=True)


def to_device(loader, device, non_blocking=False):
    for batch in loader:
        yield tuple(entry.to(device, non_blocking=non_blocking) for entry in batch)


def train(device, make=mlp, optimizer=adam, batches=None, **options):
    """Train one epoch; return the losses and the weights, on the host."""
    model = make().to(device)
    steps = optimizer(model.parameters())
    losses = []
    loader = DataLoader(data(), batch_size=16, **options)
    for images, labels in (batches or to_device)(loader, device):
        steps.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist(), [entry.detach().cpu() for entry in model.state_dict().values()]


def same(first, second):
    """Bitwise equal losses and weights."""
    return first[0] == second[0] and all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))
