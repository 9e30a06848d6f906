"""`casque zones`: the tenants of a queue, their turns and limits, and their jobs."""
