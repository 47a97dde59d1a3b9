"""The kernels in Triton, which are imported, and Triton with them, only where `kernels.AVAILABLE` says that it is there."""
