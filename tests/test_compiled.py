"""The compiled part is loaded only for the torch that it was built against."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from hybridcomm import _compiled
from hybridcomm.process_group import Options, create


def pretend(monkeypatch: pytest.MonkeyPatch, torch_version: str | None) -> None:
    """Makes the installation look as if built against another torch, or not compiled (None)."""
    info = ModuleType("hybridcomm._build_info")
    info.TORCH_VERSION = torch_version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hybridcomm._build_info", info)


def test_it_loads() -> None:
    """As installed here."""
    assert _compiled.load().__name__ == "hybridcomm._C"


def test_another_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both versions are named, and what to do."""
    pretend(monkeypatch, "2.0.0+odd")
    with pytest.raises(ImportError, match=r"built against torch 2\.0\.0\+odd") as caught:
        _compiled.load()
    assert str(torch.__version__) in str(caught.value)
    assert "pip install --no-build-isolation" in str(caught.value)


def test_a_reference_install_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """HYBRIDCOMM_BUILD=reference records that nothing was compiled."""
    pretend(monkeypatch, None)
    with pytest.raises(ImportError, match="installed without its compiled part"):
        _compiled.load()


def test_a_source_tree_that_was_never_built_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record at all."""
    monkeypatch.setitem(sys.modules, "hybridcomm._build_info", None)
    with pytest.raises(ImportError, match="installed without its compiled part"):
        _compiled.load()


def test_what_the_loader_says_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """For instance a missing symbol."""
    import hybridcomm

    monkeypatch.delattr(hybridcomm, "_C", raising=False)
    monkeypatch.setitem(sys.modules, "hybridcomm._C", None)
    pretend(monkeypatch, str(torch.__version__))
    with pytest.raises(ImportError, match="cannot be loaded"):
        _compiled.load()


def test_the_creator_refuses_options_of_another_backend() -> None:
    """Before anything is loaded."""
    group = torch._C._distributed_c10d._DistributedBackendOptions()
    with pytest.raises(TypeError, match=r"dict; hybridcomm takes hybridcomm\.Options"):
        create(group, {"algorithm": "ring"})
    assert Options() == Options()
