"""`casque demo`: a small shop with a broker, workers and a few hundred jobs, some of which fail, and one worker killed.

It runs the ordinary commands, `casque serve` and `casque worker`, in processes of their own, on the functions in
app.py; the demo starts them, enqueues, watches and reports.
"""
