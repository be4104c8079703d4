"""How tests start a fresh interpreter: warnings are errors there too."""

__all__ = ["WARNINGS"]

WARNINGS = ["-W", "error"]
# What torch 2.11 says of its own sparse constructors, and of any gradient from another device.
for message in ("Sparse invariant checks are implicitly", "The AccumulateGrad node's stream does"):
    WARNINGS += ["-W", f"ignore:{message}:UserWarning"]
