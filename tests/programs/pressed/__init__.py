"""Programs under memory pressure: pressed.py is how each begins."""
