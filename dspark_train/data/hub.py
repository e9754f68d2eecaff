"""Uploading an export to a model hub: what would go there, and, when it is asked for, going there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dspark_train.data.draft import PROVENANCE, read_draft_facts
from dspark_train.data.target import is_hub_id
from dspark_train.errors import DSparkError, UsageError

_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


class UploadError(DSparkError):
    """The hub did not take an upload."""


def upload(directory: Path, repository: str, *, confirm: bool, private: bool) -> dict[str, Any]:
    """Upload ``directory``, or (confirm False) only tell what would be.

    Left at home: the provenance, which has this machine's paths; the card tells what matters. Raises UsageError where
    others could not use it, UploadError where the hub says no.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError(f"--push-to-hub {repository}: give OWNER/NAME")
    facts = read_draft_facts(str(directory))
    if facts is None or not is_hub_id(facts.target):
        named = facts.target if facts else ""
        raise UsageError(
            f"the draft names its target {named!r}, where nobody else finds it: give --target-id OWNER/NAME"
        )
    files = {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != PROVENANCE
    }
    plan = {"repository": repository, "private": private, "files": files, "uploaded": False, "url": None}
    return plan | {"uploaded": True, "url": _send(directory, repository, private)} if confirm else plan


def _send(directory: Path, repository: str, private: bool) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        done = api.upload_folder(repo_id=repository, folder_path=directory, ignore_patterns=[PROVENANCE])
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError, ValueError) as error:
        raise UploadError(f"the hub did not take {repository}: {error}: see `hf auth whoami`") from error
    return str(done)
