"""Options: what is allowed, where it comes from, and what an error names."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from hybridcomm.process_group import Options


def test_the_default_leaves_all_to_the_backend() -> None:
    """With an empty environment."""
    chosen = Options().with_environment({})
    assert (dict(chosen.algorithms), chosen.channels) == ({}, None)
    assert (chosen.slots, chosen.slot_bytes) == (None, None)


def test_the_environment_fills_in_what_was_not_given() -> None:
    """Code wins, entry by entry."""
    environment = {
        "HYBRIDCOMM_ALGORITHM": " all_reduce=ring, broadcast = binomial,",
        "HYBRIDCOMM_CHANNELS": "2",
        "HYBRIDCOMM_SLOTS": "4",
        "HYBRIDCOMM_SLOT_BYTES": "65536",
    }
    chosen = Options({"all_reduce": "two_shot"}, slots=8).with_environment(environment)
    assert chosen.algorithms == {"all_reduce": "two_shot", "broadcast": "binomial"}
    assert (chosen.channels, chosen.slots, chosen.slot_bytes) == (2, 8, 65536)


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        ("HYBRIDCOMM_ALGORITHM", "ring", "'ring' is not COLLECTIVE=ALGORITHM"),
        ("HYBRIDCOMM_ALGORITHM", "all_reduce=", "all_reduce has no ''"),
        (
            "HYBRIDCOMM_ALGORITHM",
            "all_reduce=square",
            "all_reduce has no 'square'; one of two_shot, ring",
        ),
        ("HYBRIDCOMM_ALGORITHM", "all_reduce=two_shot_mapped", "has no 'two_shot_mapped'"),
        ("HYBRIDCOMM_ALGORITHM", "allreduce=ring", "allreduce"),
        ("HYBRIDCOMM_ALGORITHM", "all_reduce=ring,all_reduce=ring", "all_reduce is named twice"),
        ("HYBRIDCOMM_CHANNELS", "0", "0 is not within 1 to 64"),
        ("HYBRIDCOMM_CHANNELS", "two", "'two' is no integer"),
        ("HYBRIDCOMM_CHANNELS", "-1", "'-1' is no integer"),
        ("HYBRIDCOMM_SLOTS", "17", "17 is not within 2 to 16"),
        ("HYBRIDCOMM_SLOT_BYTES", "100", "100 is not a multiple of 64 within 64 to 1073741824"),
        ("HYBRIDCOMM_SLOT_BYTES", "2147483648", "2147483648 is not a multiple of 64 within 64"),
    ],
)
def test_an_error_names_the_variable(variable: str, text: str, complaint: str) -> None:
    """And the value, and what is allowed."""
    with pytest.raises(ValueError, match=f"^{variable}: ") as caught:
        Options().with_environment({variable: text})
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"algorithms": {"all_reduce": "square"}}, "algorithms: all_reduce has no 'square'"),
        ({"channels": 65}, "channels: 65 is not within 1 to 64"),
        ({"slots": 1}, "slots: 1 is not within 2 to 16"),
        ({"slot_bytes": 2.0}, "slot_bytes: 2.0 is no integer"),
        ({"channels": True}, "channels: True is no integer"),
    ],
)
def test_an_error_names_the_option(options: dict[str, Any], complaint: str) -> None:
    """The same checks for values given in code."""
    with pytest.raises(ValueError, match=complaint):
        Options(**options)


def test_options_are_values() -> None:
    """Not changed by what they were made from; equal, and alike as keys, if the same."""
    given = {"all_reduce": "ring"}
    options = Options(given)
    given["all_reduce"] = "two_shot"
    assert options == Options({"all_reduce": "ring"})
    assert hash(options) == hash(Options({"all_reduce": "ring"}))
    assert pickle.loads(pickle.dumps(options)) == options
