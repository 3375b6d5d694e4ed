"""Keys sorted into buckets, in order of positions, and cut into chunks within each bucket.

X rows, N queries and M keys of a row, u a bucket, S slots. What comes later in a bucket moves nothing before it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Shelf(NamedTuple):
    """Keys by bucket, in order of positions; each bucket starts a chunk, and slots that are left over are not real.

    key_XS, real_XS: the key of each slot. slot_XM: the slot of each key. first_Xu, count_Xu: of each bucket the number
    of its first chunk and of its keys. before_Xu: keys in earlier buckets. code_XM: sorted (bucket, position) codes.
    """

    key_XS: torch.Tensor
    real_XS: torch.Tensor
    slot_XM: torch.Tensor
    first_Xu: torch.Tensor
    count_Xu: torch.Tensor
    before_Xu: torch.Tensor
    code_XM: torch.Tensor

    def known(self, of_XN: torch.Tensor, p_XN: torch.Tensor) -> torch.Tensor:
        """How many keys of its bucket stand at or before a position."""
        code_XN = of_XN * self.code_XM.shape[1] + p_XN
        return torch.searchsorted(self.code_XM, code_XN, right=True) - self.before_Xu.gather(1, of_XN)


def shelve(of_XM: torch.Tensor, buckets: int, chunk: int) -> Shelf:
    """From the bucket of each key; what lies in bucket number `buckets`, after the others, is not real."""
    rows, keys = of_XM.shape
    count_Xu = of_XM.new_zeros(rows, buckets + 1).scatter_add_(1, of_XM, torch.ones_like(of_XM))
    chunks_Xu = (count_Xu + chunk - 1) // chunk
    first_Xu, before_Xu = (x.cumsum(1) - x for x in (chunks_Xu, count_Xu))
    sorted_XM, order_XM = of_XM.sort(dim=1, stable=True)
    place_XM = torch.arange(keys, device=of_XM.device) - before_Xu.gather(1, sorted_XM)
    put_XM = first_Xu.gather(1, sorted_XM) * chunk + place_XM
    empty_XS = of_XM.new_zeros(rows, (keys // chunk + buckets + 1) * chunk)  # enough however the keys fall
    return Shelf(
        key_XS=empty_XS.scatter(1, put_XM, order_XM),
        real_XS=empty_XS.bool().scatter(1, put_XM, sorted_XM < buckets),
        slot_XM=torch.empty_like(put_XM).scatter_(1, order_XM, put_XM),
        first_Xu=first_Xu,
        count_Xu=count_Xu,
        before_Xu=before_Xu,
        code_XM=sorted_XM * keys + order_XM,
    )
