"""Megatron-Core and Megatron-Bridge on the cpu platform.

`spec.py` builds the model from layers that run anywhere (`layers.py`, `attention.py`), through the layer specs that
Megatron-Core offers for that. What has no such door is a `Patch`: `cuda.py` for torch, `patches.py` for the rest.
"""
