"""How a call's arguments, result or exception travel between members: as bytes, the same way on every cluster."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from dspark_train.errors import DSparkError


class RemoteError(DSparkError):
    """A member raised an exception that cannot travel: this carries its type and text."""


def pack_args(args: tuple[Any, ...]) -> bytes:
    """Arguments of a call as bytes. Raises what pickle raises: passing such a value is a bug of the caller."""
    return pickle.dumps(args)


def unpack_args(packed: bytes) -> tuple[Any, ...]:
    """The inverse of :func:`pack_args`."""
    args: tuple[Any, ...] = pickle.loads(packed)
    return args


def pack_value(value: Any) -> bytes:
    """A result as bytes; one that cannot be pickled becomes the error that says so."""
    try:
        return pickle.dumps(("value", value))
    except Exception as error:  # noqa: BLE001 - pickling runs the value's own code, which may raise anything
        return pack_error(TypeError(f"the result {type(value).__name__} cannot be pickled: {error}"))


def pack_error(error: BaseException) -> bytes:
    """An exception as bytes: itself where it survives the journey, else a RemoteError of its type and text."""
    trace = "".join(traceback.format_exception(error))
    travelling = error if _survives(error) else RemoteError(f"{type(error).__name__}: {error}")
    return pickle.dumps(("error", travelling, trace))


def _survives(error: BaseException) -> bool:
    # An exception with a constructor of its own may pickle and come back as something else, or not at all.
    try:
        back = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - as above
        return False
    return type(back) is type(error) and str(back) == str(error)


def unpack(packed: bytes) -> Any:
    """The result, or raise the exception, with the traceback of where it was raised in its notes."""
    kind, what, *trace = pickle.loads(packed)
    if kind == "value":
        return what
    what.add_note(f"raised by a member:\n{trace[0]}")
    raise what
