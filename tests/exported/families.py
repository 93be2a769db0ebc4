"""The models that tests export: a family each, small, with random weights, in float64 so that derivatives of all orders
can be compared to rounding. A branch or loop of torch.export is an `if` or `for` where it is not exported: what a model
should give comes from Python's own control flow and autograd."""

import math

import torch
from torch import nn
from torch.nn import functional as F

exporting = torch.compiler.is_exporting


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.net(x)


class ConvNet(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4) if norm else nn.Identity()
        self.second = nn.Conv2d(4, 3, 3, stride=2)
        self.head = nn.Linear(3 * 3 * 3, 2)
        if norm:
            nn.init.normal_(self.norm.running_mean)
            nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x):
        x = self.norm(self.first(x)).tanh()
        return self.head(F.softplus(self.second(x)).flatten(1))


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.na = nn.BatchNorm2d(channels)
        self.b = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.nb = nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.softplus(x + self.nb(self.b(F.softplus(self.na(self.a(x))))))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = F.avg_pool2d(self.blocks(self.stem(x)), 2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, padding=1)
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        skip = torch.tanh(self.down(x))
        low = torch.tanh(self.middle(F.avg_pool2d(skip, 2)))
        return self.out(torch.cat([skip, self.up(low)], 1))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell = kind(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.net(x)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.net = nn.TransformerDecoder(layer, 1)
        self.register_buffer("mask", torch.triu(torch.full((5, 5), -math.inf), 1), persistent=False)

    def forward(self, x, memory):
        return self.net(x, memory, tgt_mask=self.mask, tgt_is_causal=False)


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 2, stride=2)
        self.place = nn.Parameter(torch.randn(1, 9, 8))
        self.query = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.place
        q, k, v = self.query(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(x.mean(1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, words, scale):
        return self.head(self.table(words) * scale).log_softmax(-1)


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(10, 4, mode="mean")
        self.head = nn.Linear(4, 2)

    def forward(self, words, scale):
        return self.head(self.table(words) * scale).tanh()


class GraphNetwork(nn.Module):
    """Messages along edges, summed where they end."""

    def __init__(self):
        super().__init__()
        self.message = nn.Linear(6, 3)
        self.update = nn.Linear(6, 3)

    def forward(self, nodes, edges):
        for _ in range(2):
            sent = torch.tanh(self.message(torch.cat([nodes[edges[0]], nodes[edges[1]]], -1)))
            nodes = torch.tanh(
                self.update(torch.cat([nodes, torch.zeros_like(nodes).index_add(0, edges[1], sent)], -1))
            )
        return nodes


class Potential(nn.Module):
    """An energy of atoms by continuous filters of distances, as SchNet has them."""

    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(4, 6)
        self.filter = nn.Sequential(nn.Linear(5, 6), nn.Softplus(), nn.Linear(6, 6))
        self.head = nn.Sequential(nn.Linear(6, 6), nn.Softplus(), nn.Linear(6, 1))
        self.register_buffer("centres", torch.linspace(0, 3, 5))

    def forward(self, places, kinds):
        n = places.shape[0]
        i, j = torch.triu_indices(n, n, 1)
        distance = (places[i] - places[j]).square().sum(-1).sqrt()
        waves = torch.exp(-2 * (distance[:, None] - self.centres).square())
        weight = self.filter(waves) * (0.5 * (torch.cos(distance * 0.5) + 1))[:, None]
        atoms = self.kinds(kinds)
        sent = torch.zeros_like(atoms).index_add(0, i, atoms[j] * weight).index_add(0, j, atoms[i] * weight)
        return self.head(atoms + sent).sum()


class Flow(nn.Module):
    """Affine couplings, and the logarithm of the density."""

    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(3))

    def forward(self, x):
        total = torch.zeros_like(x[..., 0])
        for net in self.nets:
            a, b = x.chunk(2, -1)
            shift, scale = net(a).chunk(2, -1)
            scale = torch.tanh(scale)
            x = torch.cat([b * torch.exp(scale) + shift, a], -1)
            total = total + scale.sum(-1)
        return x, total - 0.5 * x.square().sum(-1)


class OrdinaryDifferentialEquation(nn.Module):
    """Explicit steps until a time, in a while_loop."""

    def __init__(self):
        super().__init__()
        self.field = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, x):
        def goes_on(t, x):
            return t < 0.95

        def step(t, x):
            return t + 0.1, x + 0.1 * self.field(x)

        t = torch.zeros((), dtype=x.dtype)
        if exporting():
            return torch.while_loop(goes_on, step, (t, x))[1]
        while goes_on(t, x):
            t, x = step(t, x)
        return x


class Cumulative(nn.Module):
    """A recurrence in a scan."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(5, 3)

    def forward(self, start, inputs):
        def step(carry, x):
            carry = torch.tanh(self.mix(torch.cat([carry, x], -1)))
            return carry, carry * 2

        if exporting():
            from torch._higher_order_ops.scan import scan

            return scan(step, start, inputs, dim=0)
        outs = []
        for x in inputs:
            start, out = step(start, x)
            outs.append(out)
        return start, torch.stack(outs)


class Mapped(nn.Module):
    """The same for each row."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(3, 2)

    def forward(self, rows, scale):
        def of_row(row, scale):
            return torch.tanh(self.mix(row * scale))

        if exporting():
            from torch._higher_order_ops.map import map as map_rows

            return map_rows(of_row, rows, scale)
        return torch.stack([of_row(row, scale) for row in rows])


class Experts(nn.Module):
    """One of two networks, by a value."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(3, 1)
        self.a = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.b = nn.Linear(3, 2)

    def forward(self, x):
        chosen = self.gate(x).sum() > 0
        if exporting():
            return torch.cond(chosen, lambda x: self.a(x), lambda x: self.b(x).sin(), (x,))
        return self.a(x) if chosen else self.b(x).sin()


class DeepONet(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
        self.trunk = nn.Sequential(nn.Linear(1, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, samples, places):
        return torch.einsum("bk,pk->bp", self.branch(samples), self.trunk(places))


class FourierLayer(nn.Module):
    """Products of complex numbers among frequencies."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, 4, dtype=torch.complex128) / 3)
        self.local = nn.Conv1d(3, 3, 1)

    def forward(self, x):
        waves = torch.fft.rfft(x, dim=-1)[..., :4]
        mixed = torch.einsum("bif,iof->bof", waves, self.weight)
        return F.gelu(torch.fft.irfft(mixed, n=x.shape[-1], dim=-1) + self.local(x))


class NoGrad(nn.Module):
    """A block under no_grad beside one with gradients."""

    def __init__(self):
        super().__init__()
        self.net = Perceptron()

    def forward(self, x):
        with torch.no_grad():
            shift = x.mean(0) * 2
        return self.net(x) - shift.sum()


def whole(n, *shape):
    return torch.randint(0, n, shape)


def families():
    """name: (a module, a function that draws arguments, dimension of a batch that varies in the first argument)."""
    draw = torch.randn
    return {
        "perceptron": (Perceptron(), lambda: (draw(4, 3),), 0),
        "conv_net": (ConvNet(norm=False), lambda: (draw(2, 2, 8, 8),), 0),
        "conv_net_norm": (ConvNet(norm=True).eval(), lambda: (draw(2, 2, 8, 8),), 0),
        "res_net": (ResNet().eval(), lambda: (draw(2, 1, 6, 6),), None),
        "u_net": (UNet(), lambda: (draw(1, 1, 6, 6),), None),
        "lstm": (Recurrent(nn.LSTM), lambda: (draw(2, 4, 3),), None),
        "gru": (Recurrent(nn.GRU), lambda: (draw(2, 4, 3),), None),
        "encoder": (Encoder(), lambda: (draw(2, 5, 8),), None),
        "decoder": (Decoder(), lambda: (draw(2, 5, 8), draw(2, 3, 8)), None),
        "vision_transformer": (VisionTransformer(), lambda: (draw(2, 1, 6, 6),), None),
        "words": (Words(), lambda: (whole(10, 5), draw(5, 1)), None),
        "bags": (Bags(), lambda: (whole(10, 3, 4), draw(3, 1)), None),
        "graph_network": (GraphNetwork(), lambda: (draw(5, 3), whole(5, 2, 8)), None),
        "potential": (Potential(), lambda: (draw(5, 3), whole(4, 5)), None),
        "flow": (Flow(), lambda: (draw(3, 4),), None),
        "differential_equation": (OrdinaryDifferentialEquation(), lambda: (draw(3, 2),), None),
        "cumulative": (Cumulative(), lambda: (draw(3), draw(4, 2)), None),
        "mapped": (Mapped(), lambda: (draw(4, 3), draw(3)), None),
        "experts": (Experts(), lambda: (draw(3),), None),
        "deep_o_net": (DeepONet(), lambda: (draw(3, 6), draw(4, 1)), None),
        "fourier_layer": (FourierLayer(), lambda: (draw(2, 3, 10),), None),
        "no_grad": (NoGrad(), lambda: (draw(4, 3),), None),
    }
