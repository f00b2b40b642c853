"""A small GPT that learns to write like Poseidon's own documentation, letter by letter.

    poseidon run --workers 2 --servers 1 --run-dir run -- python examples/torch/gpt.py --epochs 2

The lines with `poseidon` are all that is Poseidon's. Without a cluster the same script trains alone. It writes a sample at its end.
"""

import argparse
import pathlib

import torch
from torch import nn
from torch.nn import functional

import poseidon.torch as poseidon

TEXTS = sorted((pathlib.Path(__file__).resolve().parents[2] / "docs").glob("*.md"))


class Text(torch.utils.data.Dataset):
    """Pieces of `length` letters of the text; the letter behind each one is to be guessed."""

    def __init__(self, length, pieces):
        text = "".join(path.read_text() for path in TEXTS)
        self.letters = sorted(set(text))
        number = {letter: i for i, letter in enumerate(self.letters)}
        self.codes = torch.tensor([number[letter] for letter in text])
        self.length = length
        self.pieces = min(pieces, (len(self.codes) - 1) // length)

    def __len__(self):
        return self.pieces

    def __getitem__(self, i):
        piece = self.codes[i * self.length:(i + 1) * self.length + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.mix(self.before(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.behind(x))))


class Gpt(nn.Module):
    def __init__(self, letters, length, width, depth, heads=4):
        super().__init__()
        self.length = length
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters, bias=False)
        nn.init.normal_(self.letter.weight, std=0.02)
        self.head.weight = self.letter.weight

    def forward(self, x):
        x = self.letter(x) + self.place[:x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@torch.no_grad()
def write(model, letters, beginning, count):
    """`count` letters behind the beginning."""
    torch.manual_seed(0)
    codes = [letters.index(letter) for letter in beginning]
    for _ in range(count):
        guess = model(torch.tensor([codes[-model.length:]]))[0, -1]
        codes.append(torch.multinomial(torch.softmax(guess, 0), 1).item())
    return "".join(letters[code] for code in codes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="of one worker")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--pieces", type=int, default=1 << 30, help="of the text, at most")
    parser.add_argument("--checkpoint-every", type=int, default=100, help="iterations")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    data = Text(arguments.length, arguments.pieces)
    model = Gpt(len(data.letters), arguments.length, arguments.width, arguments.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    checkpoint = {"every_iterations": arguments.checkpoint_every}
    model, optimizer = poseidon.distribute(model, optimizer, name="gpt", job={"checkpoint": checkpoint})
    loader = torch.utils.data.DataLoader(data, batch_sampler=poseidon.batch_sampler(data, arguments.batch_size))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs * len(loader))
    poseidon.register_state("scheduler", scheduler)
    for x, y in poseidon.steps(loader, arguments.epochs):
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        poseidon.clip_grad_norm_(model.parameters(), 1.0)
        poseidon.report(loss=loss)
        optimizer.step()
        scheduler.step()
        if scheduler.last_epoch % 50 == 0 and poseidon.rank() == 0:
            print(f"iteration {scheduler.last_epoch}  loss {loss.item():.3f}", flush=True)
    poseidon.wait(model)
    if poseidon.rank() == 0:
        print(write(model.eval(), data.letters, "The coordinator ", 200))


if __name__ == "__main__":
    main()
