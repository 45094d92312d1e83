"""Small networks around layers that use their weights inside one fused function."""

import torch
from torch import nn


class Attends(nn.Module):
    """Self attention, or attention of a few own queries to the inputs; a class from the mean over positions."""

    def __init__(self, across=False, masked=False, **options):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(4, 2, **{"batch_first": True, **options})
        for bias in (self.attention.in_proj_bias, self.attention.out_proj.bias):
            if bias is not None:
                nn.init.normal_(bias)
        self.across, self.masked = across, masked
        self.query, self.head = nn.Linear(4, 4) if across else None, nn.Linear(4, 3)
        self.double()

    def forward(self, x):
        length = x.shape[1]
        if not self.attention.batch_first:
            x = x.transpose(0, 1)
        time = 1 if self.attention.batch_first else 0
        q = torch.tanh(self.query(x)).narrow(time, 0, 2) if self.across else x
        options = {}
        if self.masked:
            hidden = torch.ones(length, length).triu(1).bool()[: q.shape[time]]
            padded = torch.zeros(x.shape[1 - time], length).bool()
            padded[:, -1] = True
            options = {"attn_mask": hidden, "key_padding_mask": padded}
        out = self.attention(q, x, x, need_weights=False, **options)[0]
        return self.head(out.mean(time))


class Recurs(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layer = kind(4, 3, **{"batch_first": True, **options})
        self.head = nn.Linear(3 * (2 if self.layer.bidirectional else 1), 3)
        self.double()

    def forward(self, x):
        out, last = self.layer(x if self.layer.batch_first else x.transpose(0, 1))
        h = last[0] if isinstance(last, tuple) else last
        return self.head(out.mean(1 if self.layer.batch_first else 0)) + h[-1]


class Widths(nn.Module):
    """Keys and values of widths of their own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(4, 2, kdim=3, vdim=2, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)
        self.head = nn.Linear(4, 3)
        self.double()

    def forward(self, x):
        return self.head(self.attention(x, x[..., :3], x[..., :2])[0].mean(1))


MODELS = {
    "self attention": lambda: Attends(),
    "time first": lambda: Attends(batch_first=False),
    "no bias": lambda: Attends(bias=False),
    "across": lambda: Attends(across=True),
    "across, time first": lambda: Attends(across=True, batch_first=False),
    "masked": lambda: Attends(masked=True),
    "own keys": lambda: Attends(add_bias_kv=True, add_zero_attn=True),
    "other widths": lambda: Widths(),
    "lstm": lambda: Recurs(nn.LSTM),
    "lstm, time first": lambda: Recurs(nn.LSTM, batch_first=False),
    "lstm, no bias": lambda: Recurs(nn.LSTM, bias=False),
    "lstm, two layers, both ways": lambda: Recurs(nn.LSTM, num_layers=2, bidirectional=True),
    "gru": lambda: Recurs(nn.GRU),
    "gru, time first, two layers": lambda: Recurs(nn.GRU, batch_first=False, num_layers=2),
    "rnn": lambda: Recurs(nn.RNN),
    "rnn, relu, both ways": lambda: Recurs(nn.RNN, nonlinearity="relu", bidirectional=True),
}


X = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
