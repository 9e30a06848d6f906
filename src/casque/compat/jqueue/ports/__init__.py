"""What a storage adapter provides."""
