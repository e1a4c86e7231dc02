"""The demonstration: a small language model trained over two backends, side by side.

`corpus` reads the text, `model` is the network, `settings` holds the fixed numbers, `ranks` starts
and ends the processes, `train` and `exchange` are what they run, `picture` draws the result and
`command` is `python -m hybridcomm demo`.
"""
