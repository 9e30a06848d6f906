"""The queues, the heartbeat and the JSON form of a state."""
