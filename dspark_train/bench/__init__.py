"""What `dspark-train bench` measures: the data path and the ledger against their limits and against the peer.

Each side of a comparison runs in a process of its own, so that its CPU seconds and its memory are its own, and both
sides run in turns within one call, so that a busy machine slows both.
"""
