"""What models of transformers look like from outside, without that library: outputs, configs, a small GPT-2."""

from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


class ModelOutput(OrderedDict):
    """A dict whose entries are attributes too; what is None is not in it."""

    def __init__(self, **entries):
        super().__init__((name, value) for name, value in entries.items() if value is not None)

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass
class PlainOutput:
    """The same as an object that is no container."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Config:
    def __init__(self, **values):
        self.__dict__.update(values)


class Conv1D(nn.Module):
    """GPT-2's linear layer: y = x W + b, with W [inputs, outputs]."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(0.5 * torch.randn(nx, nf))
        self.bias = nn.Parameter(0.1 * torch.randn(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.c_attn, self.c_proj = Conv1D(3 * width, width), Conv1D(width, width)
        self.c_fc, self.c_out = Conv1D(2 * width, width), Conv1D(width, 2 * width)

    def forward(self, x, mask):
        q, k, v = self.c_attn(self.ln(x)).chunk(3, -1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -1e9)
        x = x + self.c_proj(scores.softmax(-1) @ v)
        return x + self.c_out(torch.tanh(self.c_fc(x)))


class TinyLMHeadModel(nn.Module):
    """Tied embeddings, packed attention, Conv1D, a head without bias."""

    output = ModelOutput

    def __init__(self, vocabulary=4, width=3, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.config = Config(is_encoder_decoder=False, problem_type=None)
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(8, width)
        self.block = Block(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        self.double()

    def forward(self, input_ids, attention_mask=None, labels=None):
        t = input_ids.shape[1]
        seen = torch.ones(t, t).tril().bool()[None]
        if attention_mask is not None:
            seen = seen & attention_mask.bool()[:, None]
        x = self.block(self.wte(input_ids) + self.wpe(torch.arange(t)), seen)
        logits, loss = self.lm_head(x), None
        if labels is not None:  # the mean over the batch's tokens, each told by the one before
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return self.output(loss=loss, logits=logits)


class TinyForTokenClassification(nn.Module):
    """Labels stand where their tokens do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.wte, self.head = nn.Embedding(4, 3), nn.Linear(3, 3)
        self.double()

    def forward(self, input_ids, attention_mask=None, **more):
        return PlainOutput(self.head(torch.tanh(self.wte(input_ids))))


class TinyForSequenceClassification(nn.Module):
    def __init__(self, **config):
        super().__init__()
        torch.manual_seed(0)
        self.config = Config(is_encoder_decoder=False, **config)
        self.wte, self.head = nn.Embedding(4, 3), nn.Linear(3, config["num_labels"])
        self.double()

    def forward(self, input_ids=None, labels=None):
        return ModelOutput(logits=self.head(torch.tanh(self.wte(input_ids)).mean(1)))
