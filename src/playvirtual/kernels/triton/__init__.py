"""The kernels in Triton. They are imported, and Triton with them, only where `kernels.AVAILABLE` says so."""
