"""`casque jobs`: list, explain and change the jobs that are in a queue."""
