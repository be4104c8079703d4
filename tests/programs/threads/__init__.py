"""Programs of threads that share tensors: threads_begin.py is how each begins."""
