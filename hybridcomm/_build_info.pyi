# Written by setup.py; None if nothing was compiled.
TORCH_VERSION: str | None
