"""How many bytes a sample takes in the store, and where its parts lie. Pure arithmetic, in this one place.

The store writes and reads by it; the ledger counts by it what a lease will fill.
"""

from __future__ import annotations

from dataclasses import dataclass

ALIGN_BYTES = 64
TOKEN_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class SampleLayout:
    """Byte layout of one sample's object: hidden states, then at the next multiple of 64 bytes its token ids."""

    num_tokens: int
    bytes_per_token: int

    @property
    def hidden_bytes(self) -> int:
        return self.num_tokens * self.bytes_per_token

    @property
    def tokens_offset(self) -> int:
        return -(-self.hidden_bytes // ALIGN_BYTES) * ALIGN_BYTES

    @property
    def tokens_bytes(self) -> int:
        return self.num_tokens * TOKEN_ID_BYTES

    @property
    def total_bytes(self) -> int:
        """Size of the object, the end padded to the alignment as well."""
        return -(-(self.tokens_offset + self.tokens_bytes) // ALIGN_BYTES) * ALIGN_BYTES
