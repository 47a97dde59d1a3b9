"""How updates and acting become few launches: compiled code and CUDA graphs."""
