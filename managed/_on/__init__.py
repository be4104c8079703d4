"""managed.on(): programs that are managed without a changed line, and what they ask of CUDA."""
