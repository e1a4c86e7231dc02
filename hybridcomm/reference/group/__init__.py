"""The process group in plain Python: the reference executor's lanes over sockets.

It is what `"hybridcomm"` gives where nothing is compiled, and with HYBRIDCOMM_IMPL=reference: the
same programs, numbers, options and errors as csrc/, without its speed. Imports no compiled code of
this project.

From top to bottom: `process_group.py` is what torch calls; `calls.py` turns a call into an
operation; `communicator.py` carries operations out in their order (with `collective.py` and
`messages.py` for one collective and for send and receive); `rendezvous.py` connects the ranks;
`engine.py` is the one thread on which all of that happens.
"""

from __future__ import annotations

from .process_group import GroupOptions, ReferenceProcessGroup

__all__ = ["GroupOptions", "ReferenceProcessGroup"]
