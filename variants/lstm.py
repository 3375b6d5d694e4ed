"""The LSTM: the recurrent network that Transformers replaced, as a baseline."""

from __future__ import annotations

import torch
from torch import nn

from bench.variant import Shape, Unsupported, variant
from variants._masking import nothing_seen, zero_padding

State = tuple[torch.Tensor, torch.Tensor]
WEIGHTS = ("input_FC", "hidden_FU", "bias_F")


@variant(
    kind="different",
    paper="Hochreiter and Schmidhuber 1997, Neural Computation 9(8); gates as in torch.nn.LSTM",
    time="n",
    memory="n",
    cross=False,
    normalised=False,
)
class Lstm(nn.Module):
    """One LSTM over the values of all heads, with as many units as the output is wide; q and k are not read.

    Bidirectional: half of the units run backwards, so their number must be even. A padded position leaves the state as
    it is. Weights are uniform within 1/sqrt(units), with a fixed seed. States and gates are float32 or wider.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.heads * shape.value_dim
        if not shape.causal and width % 2:
            raise Unsupported(f"heads * value_dim must be even for two directions, got {width}")
        self.shape = shape
        self.units = width if shape.causal else width // 2
        generator = torch.Generator().manual_seed(0)
        sizes = ((4 * self.units, shape.kv_heads * shape.value_dim), (4 * self.units, self.units), (4 * self.units,))
        for direction in ("forward", "backward")[: 1 if shape.causal else 2]:
            for name, size in zip(WEIGHTS, sizes, strict=True):
                drawn = (2 * torch.rand(size, generator=generator) - 1) * self.units**-0.5
                self.register_parameter(f"{direction}_{name}", nn.Parameter(drawn))

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """v (B,Hkv,N,Dv), key_mask (B,N) -> (B,H,N,Dv)."""
        _, v = zero_padding(k, v, key_mask)
        if 0 in (q.shape[0], q.shape[2]):
            return nothing_seen(q, v.shape[3])
        x_BNC = v.to(torch.promote_types(v.dtype, torch.float32)).transpose(1, 2).flatten(2)
        out_BNU = self._run("forward", x_BNC, key_mask)
        if not self.shape.causal:
            turned = None if key_mask is None else key_mask.flip(1)
            out_BNU = torch.cat([out_BNU, self._run("backward", x_BNC.flip(1), turned).flip(1)], -1)
        out_BNHE = out_BNU.view(len(v), -1, self.shape.heads, v.shape[3])
        return out_BNHE.transpose(1, 2).to(q.dtype)

    def prefill(self, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> State:
        """Hidden and cell state, each (B, units), after these values; Unsupported with padding."""
        if key_mask is not None:
            raise Unsupported("prefill with a key_mask is not supported: leave the padding out")
        x_BNC = v.to(torch.promote_types(v.dtype, torch.float32)).transpose(1, 2).flatten(2)
        return self._lstm("forward", x_BNC, self._start(x_BNC))[1]

    def step(self, state: State, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, State]:
        """The output (B,H,1,Dv) after one more position, and the state after it (a new one)."""
        x_BNC = v.to(state[0].dtype).transpose(1, 2).flatten(2)
        out_BNU, state = self._lstm("forward", x_BNC, state)
        return out_BNU.view(len(v), 1, self.shape.heads, -1).transpose(1, 2).to(q.dtype), state

    def state_size(self, n: int) -> int:
        """Elements of the state per example: the same for every length n."""
        return 2 * self.units

    def flops(self, query_len: int, key_len: int) -> int:
        """Two matrix products a position and direction; the gates themselves are not counted."""
        return 2 * key_len * sum(weight.numel() for weight in self.parameters() if weight.dim() == 2)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Position by position, in float64; padded positions are passed over."""
        _, v = zero_padding(k.double(), v.double(), key_mask)
        x_BNC = torch.cat(v.unbind(1), -1)
        real_BN = torch.ones(x_BNC.shape[:2], dtype=torch.bool, device=v.device) if key_mask is None else key_mask
        outs = [self._loop("forward", x_BNC, real_BN)]
        if not self.shape.causal:
            outs.append(self._loop("backward", x_BNC.flip(1), real_BN.flip(1)).flip(1))
        return torch.stack(torch.split(torch.cat(outs, -1), self.shape.value_dim, -1), 1)

    def _loop(self, direction: str, x_BNC: torch.Tensor, real_BN: torch.Tensor) -> torch.Tensor:
        into, within, bias = self._weights(direction, torch.float64)
        hidden = cell = x_BNC.new_zeros(len(x_BNC), self.units)
        outs = []
        for i in range(x_BNC.shape[1]):
            gates = x_BNC[:, i] @ into.T + hidden @ within.T + bias
            take, keep, new, show = gates.chunk(4, 1)
            next_cell = torch.sigmoid(keep) * cell + torch.sigmoid(take) * torch.tanh(new)
            next_hidden = torch.sigmoid(show) * torch.tanh(next_cell)
            real_B1 = real_BN[:, i, None]
            cell, hidden = torch.where(real_B1, next_cell, cell), torch.where(real_B1, next_hidden, hidden)
            outs.append(hidden)
        return torch.stack(outs, 1)

    def _run(self, direction: str, x_BNC: torch.Tensor, key_mask: torch.Tensor | None) -> torch.Tensor:
        """Outputs (B,N,U); real positions are moved together, so that padded ones come last and change none of them."""
        if key_mask is None:
            return self._lstm(direction, x_BNC, self._start(x_BNC))[0]
        order_BN = (~key_mask).to(torch.int8).argsort(dim=1, stable=True)
        together = x_BNC.gather(1, order_BN[:, :, None].expand_as(x_BNC))
        out_BNU, _ = self._lstm(direction, together, self._start(x_BNC))
        before_BN = key_mask.cumsum(1)  # real positions up to here: the output after the last of them is what is read
        place_BNU = (before_BN - 1).clamp(min=0)[:, :, None].expand(-1, -1, self.units)
        return out_BNU.gather(1, place_BNU).masked_fill((before_BN == 0)[:, :, None], 0)

    def _start(self, x_BNC: torch.Tensor) -> State:
        zero = x_BNC.new_zeros(len(x_BNC), self.units)
        return zero, zero

    def _lstm(self, direction: str, x_BNC: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        if x_BNC.shape[1] == 0:
            return x_BNC.new_zeros(len(x_BNC), 0, self.units), state
        into, within, bias = self._weights(direction, x_BNC.dtype)
        first = tuple(part[None] for part in state)
        out, hidden, cell = torch.lstm(
            x_BNC, first, [into, within, bias, torch.zeros_like(bias)], True, 1, 0.0, False, False, True
        )
        return out, (hidden[0], cell[0])

    def _weights(self, direction: str, dtype: torch.dtype) -> list[torch.Tensor]:
        return [getattr(self, f"{direction}_{name}").to(dtype) for name in WEIGHTS]
