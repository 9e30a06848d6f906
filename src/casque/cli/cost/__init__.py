"""What a queue will cost: a small model of the requests that it makes, and `casque cost`, which asks it.

The model is the one that benchmarks/cost.py measures and docs/explanation/what-it-costs.md explains. It never looks at
a queue.
"""
