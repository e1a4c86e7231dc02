"""What a collective raises: classes, attributes, and the way over a process boundary."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from torch.distributed import DistBackendError

import hybridcomm
from hybridcomm.errors import make_error

FIELDS: dict[str, Any] = {
    "operation": "all_reduce",
    "sequence": 17,
    "group": "default_pg",
    "rank": 1,
    "peer": 3,
    "size_bytes": 4096,
}
CLASSES = {
    "peer_lost": hybridcomm.PeerLostError,
    "timeout": hybridcomm.CommTimeoutError,
    "mismatch": hybridcomm.MismatchError,
    "aborted": hybridcomm.CommAbortedError,
    "system": hybridcomm.CommError,
}


@pytest.mark.parametrize(("kind", "cls"), CLASSES.items())
def test_each_kind_has_its_class(kind: str, cls: type[hybridcomm.CommError]) -> None:
    """And each class is what code written for torch's own backends expects."""
    error = make_error(kind, "rank 3 died", FIELDS)
    assert type(error) is cls
    assert isinstance(error, hybridcomm.CommError)
    assert isinstance(error, DistBackendError)
    assert isinstance(error, RuntimeError)
    assert str(error) == "rank 3 died"
    assert {name: getattr(error, name) for name in FIELDS} == FIELDS


def test_what_is_not_known_is_none() -> None:
    """All facts are optional."""
    error = make_error("timeout", "late", {})
    assert all(getattr(error, name) is None for name in FIELDS)


def test_a_wrong_argument_is_a_value_error() -> None:
    """Nothing happened to the group, so it is no CommError."""
    error = make_error("invalid", "tensor 2 has no elements", FIELDS)
    assert type(error) is ValueError
    assert str(error) == "tensor 2 has no elements"


def test_an_unknown_kind_or_fact_is_refused() -> None:
    """C++ and Python must agree on the words."""
    with pytest.raises(KeyError):
        make_error("bad_luck", "", {})
    with pytest.raises(TypeError):
        make_error("timeout", "", {"colour": 1})


@pytest.mark.parametrize("kind", CLASSES)
def test_it_survives_a_trip(kind: str) -> None:
    """Multiprocessing and torch's elastic agent pickle exceptions."""
    error = make_error(kind, "rank 3 died", FIELDS)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert twin.args == error.args
        assert vars(twin) == vars(error) == FIELDS
