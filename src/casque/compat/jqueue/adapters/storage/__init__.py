"""One object in memory, in a file, on S3 or on Google Cloud Storage."""
