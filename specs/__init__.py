"""Small exhaustive models of the log layout's protocol, and of the rules of a ring and of its settings.

Here these rules are written once more, as transitions of a state small enough to search completely: which
request may follow which, and what a store, a network and a stalled process may do in between. Nothing here imports
casque and casque imports nothing from here: the model is about the protocol, not about the code that carries it out.

`python -m specs --size small` searches; README.md says what is modelled, what is left out and what was found.
"""
