"""Every public name but errors and settings, which have pages of their own, by the part of the API it belongs to.

`scripts/reference.py` writes docs/reference/python.md from it, the site its API reference. A test compares it with
`casque.__all__`.
"""

from __future__ import annotations

PARTS = {
    "Functions": [
        "casque.App",
        "casque.functions.job.JobFunction",
        "casque.functions.job.JobCall",
        "casque.Handle",
        "casque.SyncHandle",
        "casque.JobContext",
        "casque.Snooze",
        "casque.Cancel",
        "casque.JobEvent",
        "casque.Progress",
    ],
    "Workers": [
        "casque.worker.Worker",
        "casque.worker.ConsumerOptions",
        "casque.worker.Selection",
        "casque.worker.Summary",
        "casque.worker.Handler",
        "casque.worker.Retry",
    ],
    "Queues": [
        "casque.Queue",
        "casque.SyncQueue",
        "casque.NewJob",
        "casque.Outcome",
        "casque.OutcomeKind",
        "casque.Gate",
    ],
    "Zones": ["casque.ZoneRules", "casque.ZoneStanding", "casque.PeekedZone", "casque.ZoneLease"],
    "Schedules": ["casque.Schedule", "casque.Missed"],
    "Jobs": ["casque.Job", "casque.SyncJob", "casque.JobState", "casque.Attempt", "casque.Ending"],
    "History": ["casque.QueueEvent", "casque.EventKind", "casque.ArchivedJob", "casque.ArchivedAttempt"],
    "The small API": [
        "casque.BrokerQueue",
        "casque.DirectQueue",
        "casque.HeartbeatManager",
        "casque.QueueState",
        "casque.JobStatus",
        "casque.ObjectStoragePort",
        "casque.InMemoryStorage",
        "casque.LocalFileSystemStorage",
        "casque.S3Storage",
        "casque.GCSStorage",
    ],
    "Copies": ["casque.backup_queue", "casque.restore_queue", "casque.clone_queue", "casque.Copied"],
    "Connecting": ["casque.ClientTlsFiles"],
    "Tests": [
        "casque.testing.inline",
        "casque.testing.in_memory",
        "casque.testing.assert_enqueued",
        "casque.testing.ManualClock",
    ],
}

NOT_MADE = {
    "JobFunction", "JobCall", "Handle", "SyncHandle", "Queue", "SyncQueue", "Job", "SyncJob", "ObjectStoragePort",
}  # fmt: skip
"""Classes that users are given and never call: their constructors are left out of the reference."""
