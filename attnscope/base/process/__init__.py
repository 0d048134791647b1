"""The process that attnscope runs in: signals, standard streams, memory, devices, torchrun."""
