"""Which implementation a process gets: as asked for, else what there is, said once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings

import pytest

from hybridcomm import _compiled
from hybridcomm.process_group import implementation


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the package was installed without a compiler."""
    monkeypatch.setattr(_compiled, "built_for", lambda: None)
    monkeypatch.setattr(implementation, "_warned", False)
    monkeypatch.delenv(implementation.VARIABLE, raising=False)


@pytest.mark.parametrize("word", ["compiled", "reference"])
def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv(implementation.VARIABLE, word)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert implementation.choose() == word


@pytest.mark.parametrize("word", ["", "  "])
def test_what_was_compiled_is_used(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv(implementation.VARIABLE, word)
    assert implementation.choose() == "compiled"


@pytest.mark.usefixtures("nothing_compiled")
def test_plain_python_warns_once() -> None:
    with pytest.warns(UserWarning, match=r"runs in plain Python.*HYBRIDCOMM_IMPL=reference"):
        assert implementation.choose() == "reference"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert implementation.choose() == "reference"


@pytest.mark.usefixtures("nothing_compiled")
def test_whoever_asks_for_plain_python_is_not_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(implementation.VARIABLE, "reference")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert implementation.choose() == "reference"


@pytest.mark.usefixtures("nothing_compiled")
def test_whoever_asks_for_the_compiled_one_does_not_get_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(implementation.VARIABLE, "compiled")
    assert implementation.choose() == "compiled"
    with pytest.raises(ImportError, match="installed without its compiled part"):
        _compiled.load()


def test_a_word_that_is_none_of_them_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(implementation.VARIABLE, "referenz")
    with pytest.raises(
        ValueError, match="HYBRIDCOMM_IMPL: 'referenz' is not known; one of compiled, reference"
    ):
        implementation.choose()


_WITHOUT_A_BUILD = """
    import sys
    sys.modules["hybridcomm._build_info"] = None
    sys.modules["hybridcomm._C"] = None
    import torch
    import torch.distributed as dist
    import hybridcomm

    store = dist.HashStore()
    dist.init_process_group("hybridcomm", store=store, rank=0, world_size=1)
    total = torch.arange(3.0)
    dist.all_reduce(total)
    hybridcomm.all_reduce(total)
    dist.new_group([0])
    dist.destroy_process_group()
    print(total.tolist())
"""


def test_a_process_without_a_build_works_and_says_so_once() -> None:
    """All of the package, in a process that cannot import anything compiled of ours."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_WITHOUT_A_BUILD)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0.0, 1.0, 2.0]"
    assert done.stderr.count("runs in plain Python") == 1
