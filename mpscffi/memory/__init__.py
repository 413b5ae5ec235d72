"""The parts of the caching allocator, which :mod:`mpscffi.allocator` puts together."""
