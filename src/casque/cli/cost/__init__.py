"""A small model of the requests that a queue makes and what they cost, and `casque cost`, which evaluates it.

The model is the one that benchmarks/cost.py measures and docs/explanation/what-it-costs.md explains. It never reads a
queue.
"""
