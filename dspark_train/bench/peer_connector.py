"""hs-connectors' own connector, as the peer's engine loads it; it refuses a CPU, and this is all that is changed."""

from __future__ import annotations

from typing import Any

import torch
from hs_connectors.mooncake_hidden_states_connector import MooncakeHiddenStatesConnector


class CpuMooncakeConnector(MooncakeHiddenStatesConnector):  # type: ignore[misc]
    """Theirs, on a CPU where there is no accelerator."""

    def _device(self) -> Any:
        return super()._device() if torch.accelerator.is_available() else torch.cpu
