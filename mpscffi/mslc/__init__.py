"""The host device's Metal compiler: Metal source in, kernel libraries for the CPU out."""
