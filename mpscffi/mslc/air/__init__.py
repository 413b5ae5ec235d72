"""AIR, the LLVM dialect of precompiled Metal kernels, made into kernel libraries.

A function's bitcode is printed as text by clang (`toolchain`), read (`module`, `metadata`), rewritten in terms of the
prelude (`translate`, with `intrinsics` and `entry`), and compiled by clang with `intrinsics.cpp` linked in.
"""
