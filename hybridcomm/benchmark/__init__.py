"""The microbenchmarks: every collective beside its peers, in interleaved pairs.

`python -m hybridcomm bench` is the command. Each peer has a team of rank processes, all alive at
once, of which one works at a time: for each case the teams are sampled in turn, so that whatever
else the machine does falls on all of them alike, and what counts is the ratio within a pair.

The ranks of an MPI peer run in an environment without torch; so what they import (`cases`,
`buffers`, `messages`, `rank`, `callers.mpi`) needs numpy only.
"""
