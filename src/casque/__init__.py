"""casque: a durable job queue whose only infrastructure is a bucket."""
