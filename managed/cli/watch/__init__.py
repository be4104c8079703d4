"""Looking at running processes: the parts that `managed top` and `managed status` share."""
