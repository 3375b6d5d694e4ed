"""What variants with a decaying state share: the scan over segments, gates of padded positions, the norm of heads.

S_t = decay_t S_{t-1} + k_t v_t^T, out_t = q_t S_t, and forms of it. Worked through in segments that stay in the cache,
each computed again in the backward, within a segment in chunks. Only the inputs and one state per segment are kept.
A padded position leaves the state as it is: no input, no decay. Decays are logarithms, at most 0; they are subtracted
before they are exponentiated, so that nothing overflows however strong they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bench.variant import Shape, Unsupported
from variants._masking import nothing_seen, zero_padding

CHUNK = 64  # positions
FINE = 8  # positions of a block within a chunk
SEGMENT = {"cpu": 2**18}  # elements of q in a segment
SEGMENT_ELSEWHERE = 2**24
NORM_EPS = 1e-6

# (inputs of a segment, each (B,H,L,...), the state before it) -> (output (B,H,L,E), the state after it)
SegmentScan = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def scan(
    segment: SegmentScan, inputs: Sequence[torch.Tensor], state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (B,H,N,E) and the last state, segment after segment of the inputs (B,H,N,...)."""
    first = inputs[0]
    row = first.shape[0] * first.shape[1] * first.shape[3]
    size = max(1, SEGMENT.get(first.device.type, SEGMENT_ELSEWHERE) // (row * CHUNK)) * CHUNK
    outs = []
    for parts in zip(*(torch.split(x, size, 2) for x in inputs), strict=True):
        if torch.is_grad_enabled():
            out, state = checkpoint(segment, *parts, state, use_reentrant=False, preserve_rng_state=False)
        else:
            out, state = segment(*parts, state)
        outs.append(out)
    return torch.cat(outs, 2), state


def chunks(x_BHLD: torch.Tensor) -> torch.Tensor:
    """(B, H, c, CHUNK, ...) with zeros at the end: no input and no decay."""
    padded = F.pad(x_BHLD, (0, 0) * (x_BHLD.dim() - 3) + (0, -x_BHLD.shape[2] % CHUNK))
    return padded.view(*padded.shape[:2], -1, CHUNK, *padded.shape[3:])


def joined(x_BHcRE: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` positions of chunks, (B, H, L, E)."""
    return x_BHcRE.flatten(2, 3)[:, :, :length]


def between(total_BHcR: torch.Tensor) -> torch.Tensor:
    """exp(G_i - G_j) for j <= i and 0 for later j, from running sums G of log decays: (B, H, c, R, R)."""
    gap = total_BHcR[..., :, None] - total_BHcR[..., None, :]
    later = torch.ones(gap.shape[-2:], dtype=torch.bool, device=gap.device).triu(1)
    return gap.masked_fill(later, -torch.inf).exp()


def scalar_decay(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay_BHL: torch.Tensor, state_BHDE: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A `SegmentScan` with one decay per head and position."""
    length = q.shape[2]
    q, k, v, total = chunks(q), chunks(k), chunks(v), chunks(log_decay_BHL).cumsum(-1)
    end = total[..., -1:]
    own_BHcDE = (k * (end - total).exp()[..., None]).mT @ v
    states = [state_BHDE]
    for own, decay in zip(own_BHcDE.unbind(2), end.exp()[..., None].unbind(2), strict=True):
        states.append(torch.addcmul(own, states[-1], decay))
    before = torch.stack(states[:-1], 2)
    out = (q @ k.mT * between(total)) @ v + (q * total.exp()[..., None]) @ before
    return joined(out, length), states[-1]


def vector_decay(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay_BHLD: torch.Tensor, state_BHDE: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A `SegmentScan` with a decay per feature (Yang et al. 2024, 2312.06635, section 4.3).

    exp(G_i - G_j) is split at the start of the block of FINE positions that i lies in, so that both halves decay; only
    pairs within a block are multiplied out feature by feature.
    """
    length = q.shape[2]
    q, k, v, total = chunks(q), chunks(k), chunks(v), chunks(log_decay_BHLD).cumsum(3)
    end_BHc1D = total[:, :, :, -1:]
    own_BHcDE = (k * (end_BHc1D - total).exp()).mT @ v
    states = [state_BHDE]
    for own, decay in zip(own_BHcDE.unbind(2), end_BHc1D.exp().mT.unbind(2), strict=True):
        states.append(torch.addcmul(own, states[-1], decay))
    out = (q * total.exp()) @ torch.stack(states[:-1], 2)
    blocks = list(zip(*(torch.split(x, FINE, 3) for x in (q, k, total)), strict=True))
    rows = []
    for number, (block_q, block_k, block_total) in enumerate(blocks):
        start = block_total[:, :, :, :1]
        near = torch.einsum("bhcrd,bhcsd,bhcrsd->bhcrs", block_q, block_k, between(block_total.mT).movedim(3, -1))
        seen = number * FINE
        far_k = k[:, :, :, :seen] * (start - total[:, :, :, :seen]).exp()
        far = (block_q * (block_total - start).exp()) @ far_k.mT
        later = near.new_zeros(*near.shape[:4], CHUNK - seen - FINE)
        rows.append(torch.cat([far, near, later], -1))
    return joined(out + torch.cat(rows, 3) @ v, length), states[-1]


class Recurrent(nn.Module):
    """A variant with a state (B,H,D,E); what makes it one are its inputs, its update, and its chunked scan.

    Outputs are normalised per head, for the state, and so what is read from it, grows with time. Raises Unsupported for
    values of width 1, of which that would leave a sign.
    """

    segment: ClassVar[SegmentScan]
    reads_per_key: ClassVar[int] = 0  # how often the state is read for a key, beside the read for a query

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        if shape.value_dim == 1:
            raise Unsupported("value_dim must be at least 2: outputs are normalised per head")
        self.shape = shape

    def inputs(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        x: torch.Tensor | None,
        key_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """q, k, v and gates of every position, (B,H,N,...), float32 or wider; k and v are 0 at padded positions."""
        raise NotImplementedError

    def update(
        self, state_BHDE: torch.Tensor, k_BHD: torch.Tensor, v_BHE: torch.Tensor, *gates: torch.Tensor
    ) -> torch.Tensor:
        """The state after one more position (a new tensor)."""
        raise NotImplementedError

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        x: torch.Tensor | None = None,
        key_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B,H,N,D), (B,Hkv,N,D), (B,Hkv,N,Dv), x (B,N,C) where it is wanted, key_mask (B,N) -> (B,H,N,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        if 0 in (q.shape[0], q.shape[2]):
            return nothing_seen(q, v.shape[3])
        inputs = self.inputs(q, k, v, _masked_input(x, key_mask), key_mask)
        out, _ = scan(type(self).segment, inputs, _no_state(*inputs))
        return _head_norm(out).to(q.dtype)

    def prefill(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        x: torch.Tensor | None = None,
        key_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The state (B,H,D,Dv) after these positions."""
        k, v = zero_padding(k, v, key_mask)
        q = k[:, :1].expand(-1, self.shape.heads, -1, -1)  # asks for nothing that is used
        inputs = self.inputs(q, k, v, _masked_input(x, key_mask), key_mask)
        state = _no_state(*inputs)
        return scan(type(self).segment, inputs, state)[1] if k.shape[2] else state

    def step(
        self,
        state_BHDE: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        x: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output (B,H,1,Dv) for one more position, which sees itself, and the state after it (a new tensor)."""
        asked, *rest = self.inputs(q, k, v, x, None)
        state_BHDE = self.update(state_BHDE, *(part[:, :, 0] for part in rest))
        return _head_norm(asked @ state_BHDE).to(q.dtype), state_BHDE

    def reference(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        x: torch.Tensor | None = None,
        key_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Position by position, in float64."""
        k, v = zero_padding(k.double(), v.double(), key_mask)
        x = None if x is None else x.double()
        asked, *rest = self.inputs(q.double(), k, v, _masked_input(x, key_mask), key_mask)
        state, outs = _no_state(asked, *rest), []
        for i in range(q.shape[2]):
            state = self.update(state, *(part[:, :, i] for part in rest))
            outs.append(torch.einsum("BHD,BHDE->BHE", asked[:, :, i], state))
        return _head_norm(torch.stack(outs, 2))

    def state_size(self, n: int) -> int:
        """Elements of the state per example: the same for every length n."""
        return self.shape.heads * self.shape.head_dim * self.shape.value_dim

    def flops(self, query_len: int, key_len: int) -> int:
        """Of the recurrent form: reads of the state, the outer product of every key and value, and the gates."""
        products = query_len + (1 + self.reads_per_key) * key_len
        gates = sum(weight.numel() for weight in self.parameters() if weight.dim() == 2)
        return 2 * self.state_size(1) * products + 2 * gates * key_len


def per_head(heads: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Keys and values (B,G,N,...) for every query head, in float32 or wider."""
    return tuple(x.to(wide(x.dtype)).repeat_interleave(heads // x.shape[1], 1) for x in tensors)


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 where that is asked."""
    return torch.promote_types(dtype, torch.float32)


def drawn(*sizes: tuple[int, int]) -> list[nn.Parameter]:
    """Weights (out, in) from N(0, 1/in), with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(size, generator=generator) * size[1] ** -0.5) for size in sizes]


def gate(x_BNC: torch.Tensor | None, *weights: torch.Tensor) -> torch.Tensor:
    """x W^T ... (B,N,out) in float32 or wider."""
    assert x_BNC is not None
    x_BNC = x_BNC.to(wide(x_BNC.dtype))
    for weight in weights:
        x_BNC = x_BNC @ weight.to(x_BNC.dtype).T
    return x_BNC


def masked(gate_BHN: torch.Tensor, key_mask: torch.Tensor | None) -> torch.Tensor:
    """A log decay or a strength (B,H,N) or (B,H,N,D), 0 at padded positions."""
    if key_mask is None:
        return gate_BHN
    padded = ~key_mask[:, None]
    return gate_BHN.masked_fill(padded if gate_BHN.dim() == 3 else padded[..., None], 0)


def _masked_input(x_BNC: torch.Tensor | None, key_mask: torch.Tensor | None) -> torch.Tensor | None:
    """Padded positions of x become 0, so that what stands there reaches no gradient of a gate's weights."""
    return x_BNC if x_BNC is None or key_mask is None else x_BNC.masked_fill(~key_mask[:, :, None], 0)


def _no_state(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *gates: torch.Tensor) -> torch.Tensor:
    return q.new_zeros(*q.shape[:2], k.shape[3], v.shape[3])


def _head_norm(out_BHNE: torch.Tensor) -> torch.Tensor:
    """Over the root mean square of each head at each position."""
    return F.rms_norm(out_BHNE, out_BHNE.shape[-1:], eps=NORM_EPS)
