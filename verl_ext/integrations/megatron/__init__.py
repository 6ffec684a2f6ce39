"""verl's Megatron engine: layouts, and how a layout is proven equal to one process."""
