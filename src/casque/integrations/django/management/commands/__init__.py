"""`manage.py casque_worker`."""
