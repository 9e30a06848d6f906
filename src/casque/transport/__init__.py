"""The wire: servers that offer a `QueueService` to other processes, and clients that look like one.

Nothing here knows where a queue is stored or who leads it: a server is given a service, and a way to refuse when there
is none. Input is checked at the border, and every refusal is one of `casque.errors` on both sides.
"""
