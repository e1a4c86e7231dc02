"""How each kind of peer is called: one module each, with `make(...)` for `rank.main`."""
