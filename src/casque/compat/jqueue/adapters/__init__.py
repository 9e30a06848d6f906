"""Adapters for storage."""
