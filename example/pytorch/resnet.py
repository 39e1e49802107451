"""ResNet-18 and ResNet-34 for use without torchvision, with torchvision's parameter names."""

import torch
from torch import nn

DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut around them."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or before != channels:
            convolution = nn.Conv2d(before, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet(nn.Module):
    """Maps images (n, 3, height, width) to logits (n, classes)."""

    def __init__(self, depths: tuple, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        before = 64
        for number, depth in enumerate(depths):
            channels, stride = 64 << number, 1 if number == 0 else 2
            blocks = [BasicBlock(before, channels, stride)]
            blocks += [BasicBlock(channels, channels, 1) for _ in range(depth - 1)]
            setattr(self, f"layer{1 + number}", nn.Sequential(*blocks))
            before = channels
        self.fc = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = nn.functional.max_pool2d(x, 3, stride=2, padding=1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(x.mean(dim=(2, 3)))


def network(arch: str, classes: int) -> nn.Module:
    """Return an untrained network, from torchvision if that is installed."""
    try:
        from torchvision import models
    except ImportError:
        if arch not in DEPTHS:
            known = ", ".join(DEPTHS)
            raise ValueError(f"--arch must be {known} without torchvision, got {arch}") from None
        return ResNet(DEPTHS[arch], classes)
    return models.get_model(arch, num_classes=classes)
