"""Sharing a GPU softly: the MPS daemon of each GPU, time slices, and what a holder needs of them.

What this room sets are caps: none of them sets memory bandwidth, caches or faults apart, and a time
slice no memory either (docs/reference/gpu-sharing.md has it line by line).
"""
