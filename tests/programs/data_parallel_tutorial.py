"""The loop of PyTorch's tutorial on nn.DataParallel, with a loss; prints the losses.

It is run plainly and by `managed run`, which changes nothing in it.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RandomDataset(Dataset[torch.Tensor]):
    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data[index]

    def __len__(self) -> int:
        return self.len


class Model(nn.Module):
    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.fc = nn.Linear(input_size, output_size)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.fc(input)
        size = " ".join(map(str, input.size()))
        print(f"in model {size}\n", end="", flush=True)  # parts of a batch print at once
        return output


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    rand_loader = DataLoader(RandomDataset(5, 100), batch_size=30, shuffle=False)
    model: nn.Module = Model(5, 2)
    if torch.cuda.device_count() > 1:
        print("devices", torch.cuda.device_count())
        model = nn.DataParallel(model)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for data in rand_loader:
        input = data.to(device)
        output = model(input)
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", f"{loss.item():.6f}", *output.size())


if __name__ == "__main__":
    main()
