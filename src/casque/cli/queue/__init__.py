"""`casque queue`: make, inspect, open and close, convert, copy and check one queue."""
