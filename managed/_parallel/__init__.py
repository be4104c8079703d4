"""Trains a model on several devices at once, in stages and with several micro-batches."""
