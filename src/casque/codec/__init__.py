"""State and events to bytes and back. The only package that knows what stored objects look like inside."""
