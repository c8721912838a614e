"""Faces of other engines: `minimax_m31.compat.vllm`."""
