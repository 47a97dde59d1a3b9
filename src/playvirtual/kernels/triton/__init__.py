"""The kernels written in Triton: imported, and Triton with them, only where `kernels.AVAILABLE` says that there is one."""
