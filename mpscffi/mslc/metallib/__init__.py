"""Precompiled Metal libraries: the container of a `.metallib` file, and what the host device makes of it.

`container` reads, `writer` writes, `library` lists a library's kernels and builds them, through `mpscffi.mslc.air`.
"""
