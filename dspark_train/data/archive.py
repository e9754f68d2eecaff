"""Hidden states that were extracted once, for training from many times: a directory with a file a sample.

Files are named as speculators names them, ``hs_N.safetensors`` for row N of the data set, so that either reads what the
other has made. ``hidden_states.json`` says what they were made from; where it is absent, each file speaks for itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from dspark_train.data.dataset import Dataset
from dspark_train.errors import DataError, Problem
from dspark_train.topology.resolve import Resolved

INFO = "hidden_states.json"
EXTRACT = "extract them: dspark-train extract --topology FILE"
_FILE = re.compile(r"hs_(\d+)\.safetensors")


class ArchiveInfo(BaseModel):
    """What the files of a directory were made from. fingerprint: of the data set; seq_len: what is longer was cut."""

    model_config = ConfigDict(frozen=True)

    target: str
    layer_ids: tuple[int, ...]
    hidden_size: int
    dtype: str
    fingerprint: str
    seq_len: int

    @classmethod
    def of(cls, resolved: Resolved, dataset: Dataset) -> ArchiveInfo:
        """What a run needs. Only once the target's figures are known."""
        assert resolved.layer_ids is not None
        assert resolved.facts.hidden_size is not None
        return cls(
            target=Path(resolved.topology.target.model).name,
            layer_ids=resolved.layer_ids,
            hidden_size=resolved.facts.hidden_size,
            dtype=resolved.hidden_dtype,
            fingerprint=dataset.fingerprint,
            seq_len=resolved.topology.data.seq_len,
        )


def sample_key(sample: int) -> str:
    """The name of a sample's file, without its ending."""
    return f"hs_{sample}"


def present(directory: Path) -> set[int]:
    """The samples that are there."""
    names = (path.name for path in directory.iterdir()) if directory.is_dir() else ()
    return {int(match.group(1)) for name in names if (match := _FILE.fullmatch(name))}


def read_info(directory: Path) -> ArchiveInfo | None:
    """``hidden_states.json``, None where there is none. Raises DataError where it is broken."""
    try:
        return ArchiveInfo.model_validate_json((directory / INFO).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise _fault(directory / INFO, "cannot be read", "remove it if the files are right") from error


def write_info(directory: Path, info: ArchiveInfo) -> None:
    """Say what the files of a directory are made from."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / INFO).write_text(info.model_dump_json(indent=1) + "\n", encoding="utf-8")


def differences(have: ArchiveInfo, want: ArchiveInfo) -> list[str]:
    """Where files made so are of no use to who needs them so; a longer ``seq_len`` is."""
    found = [
        f"{name} is {getattr(have, name)}, not {getattr(want, name)}"
        for name in ("target", "layer_ids", "hidden_size", "dtype")
        if getattr(have, name) != getattr(want, name)
    ]
    if have.fingerprint != want.fingerprint:
        found.append("the data set is another one")
    if have.seq_len < want.seq_len:
        found.append(f"samples were cut to {have.seq_len} tokens, not {want.seq_len}")
    return found


def check_archive(directory: Path, resolved: Resolved, dataset: Dataset) -> None:
    """Raises DataError where more samples are missing than may fail, or the files were made from something else."""
    have = read_info(directory)
    if have and (wrong := differences(have, ArchiveInfo.of(resolved, dataset))):
        raise _fault(
            directory, f"holds other hidden states: {'; '.join(wrong)}", "name another directory, or " + EXTRACT
        )
    missing = sorted(set(range(len(dataset))) - present(directory))
    if len(missing) > resolved.topology.ledger.max_failed_frac * len(dataset):
        text = f"lacks the hidden states of {len(missing)} of {len(dataset)} samples, the first of them {missing[0]}"
        raise _fault(directory, text, EXTRACT)


def _fault(path: Path, text: str, remedy: str) -> DataError:
    return DataError([Problem(str(path), 0, "", text, remedy)])
