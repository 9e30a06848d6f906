"""Mistakes that the simulator has to find: each is made on purpose and must break the invariant that it endangers.

Among them are all the rules that the log protocol marks as vital, and what earlier seeds found and is mended now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

import pytest

from casque.settings import BrokerSettings
from simulation.world import BRUTAL, CALM, ROUGH, Invariant, Profile
from simulation.world.broker import LEASE_S
from simulation.world.layout import (
    BUDGETED,
    CONVERTING,
    COPIED,
    COPIED_DOCUMENT,
    COPIED_RING,
    DAMAGED,
    DAMAGED_DOCUMENT,
    DOCUMENT,
    ERASED,
    ERASED_DOCUMENT,
    FLEET,
    FLEET_DOCUMENT,
    FLEET_RING,
    FLEET_SERVED,
    FOREIGN,
    GUARDED,
    LED,
    LED_DOCUMENT,
    LED_RING,
    LOG,
    MIXED,
    MIXED_DOCUMENT,
    MIXED_WATCHED,
    MOVED,
    MOVED_DOCUMENT,
    MOVED_RING,
    PACED,
    RING,
    SERVED,
    STALLED,
    WATCHED,
    WATCHED_RING,
    Layout,
)
from simulation.world.profile import DISK, FLEETING, ROLLING, Fault
from tests.simulation import (
    archive_mutations,
    broker_mutations,
    convert_mutations,
    copy_mutations,
    erasing_mutations,
    fleet_mutations,
    foreign_mutations,
    log_mutations,
    move_mutations,
    mutations,
    reader_mutations,
    ring_mutations,
    served_mutations,
    tenant_mutations,
    trial_mutations,
    turn_mutations,
    zone_mutations,
)

Mutation = Callable[[pytest.MonkeyPatch], None]
_Row = tuple[Mutation, Layout, Profile, Invariant | None]

STORMY = replace(ROUGH, name="stormy", every_s={**ROUGH.every_s, Fault.OUTAGE: 4.0})
"""Outages long enough for callers to be told of them."""
SLEEPY = replace(ROUGH, name="sleepy", every_s={Fault.PAUSE: 4.0, Fault.CRASH: 25.0})
PAIR = replace(CALM, name="pair", nodes=2, every_s={Fault.PAUSE: 5.0})
"""Two who take turns at having the queue for themselves, and oversleep."""
NAPS = replace(PAIR, name="naps", lease_s=12.0, latency_s=(0.002, 0.02), every_s={Fault.PAUSE: 8.0})
"""Two whose pauses are long enough for what they would write over to be collected meanwhile."""
DREAMS = replace(NAPS, name="dreams", leisure=3.0)
"""The same in a quieter world, where one of them often has the queue for itself when it falls asleep."""
TRIO = replace(PAIR, name="trio", nodes=3)
WATCHES = replace(TRIO, name="watches", skew_s=300.0, every_s={Fault.CLOCK_JUMP: 3.0})
"""Nothing goes wrong but the clocks."""
JUMPY = replace(ROUGH, name="jumpy", skew_s=1200.0, every_s={Fault.CLOCK_JUMP: 3.0, Fault.CRASH: 8.0})
TAKEOVER = replace(TRIO, name="takeover", skew_s=1200.0, every_s={Fault.FAILOVER_STEP: 9.0})
"""Whoever takes over has a clock that is a quarter of an hour ahead."""
DEAF = replace(
    ROUGH,
    name="deaf",
    writes={Fault.HIDDEN: 0.25},
    reads={Fault.READ_FAILED: 0.5},
    settings=replace(ROUGH.settings, storage_patience=timedelta(seconds=0.3)),
)
IMPATIENT = replace(
    CALM,
    name="impatient",
    writes={Fault.THROTTLED: 0.5},
    settings=replace(CALM.settings, storage_patience=timedelta(seconds=0.1)),
)
LIDS = replace(CALM, name="lids", every_s={Fault.SLEEP: 6.0, Fault.CLOSE: 6.0})
"""Lids are shut over answers that are on their way, and processes come and go meanwhile."""
LOST_LIDS = replace(LIDS, name="lost-lids", writes={Fault.AFTER: 0.1})
DROWSY = replace(CALM, name="drowsy", writes={Fault.AFTER: 0.03}, every_s={Fault.PAUSE: 3.0})
"""Whoever oversleeps comes with an old ring."""

CLOSING = replace(CALM, name="closing", every_s={Fault.CLOSE: 1.5})
"""Nothing goes wrong: processes stop cleanly, and start again."""
VISITORS = replace(
    CALM,
    name="visitors",
    nodes=4,
    skew_s=600.0,
    drift=0.05,
    every_s={Fault.CLOSE: 2.0, Fault.CRASH: 6.0, Fault.CLOCK_JUMP: 3.0},
)
"""Nobody stays for the length of a lease, some die, and clocks are set all the time."""

BLURRED = replace(
    CALM,
    name="blurred",
    unread=0.8,
    keyed=0.5,
    large=0.5,
    settings=replace(CALM.settings, storage_patience=timedelta(seconds=0.2)),
)
"""Many payloads lie beside the queue, and can rarely be read."""

NODDING = replace(
    CALM, name="nodding", nap_s=(1.5, 2.1), latency_s=(0.005, 0.06), curious=4, leisure=10.0, every_s={Fault.PAUSE: 0.7}
)
"""Brokers that doze off for about a lease, and callers who look at the queue all the time."""
DOZING = replace(NODDING, name="dozing", leisure=4.0)
"""The same, with more to do for whoever takes over."""
RESTARTS = replace(CALM, name="restarts", latency_s=(0.005, 0.08), every_s={Fault.CRASH: 4.0})
"""Brokers die, and some come back before anybody has missed them."""
STAFFED = replace(CALM, name="staffed", worker_lease_s=6.0, every_s={Fault.CLOSE: 4.0})
"""Real workers, which are stopped cleanly again and again."""
SHARDS_AWAY = replace(
    CALM,
    name="shards away",
    worker_lease_s=6.0,
    every_s={Fault.SHARD_AWAY: 6.0},
    settings=replace(CALM.settings, storage_patience=timedelta(seconds=20)),
)
"""One shard after the other cannot be reached for longer than leases last, and callers are patient."""
HEDGED = replace(CALM, name="hedged", hedged=True, reads={Fault.READ_SLOW: 0.15}, every_s={})
"""Batches are admitted through two queues at once, and some reads take long."""
HELD = replace(CALM, name="held", holders=2)
"""Zones are leased and empty while the ring changes, and jobs are admitted to them."""
STRICT = replace(ROUGH, name="strict", strict=True)
"""Batches of FIFO zones are admitted beside their other jobs."""
SETTLERS = replace(
    CALM,
    name="settlers",
    settlers=True,
    leisure=20.0,
    latency_s=(0.002, 0.01),
    skew_s=8.0,
    every_s={Fault.CLOCK_JUMP: 4.0},
)
"""Little is asked but by those who move the ring under an empty zone, and clocks differ by more than it remembers."""
SWITCHERS = replace(CALM, name="switchers", switchers=True, leisure=20.0, every_s={})
"""Gates and rules are set all the time by one process, while the others resize the ring."""
AHEAD = replace(
    CALM,
    name="ahead",
    keepers=True,
    settings=replace(CALM.settings, archive_retention=timedelta(days=2)),
)
"""Hours of the archive are kept for two days, and some clocks are many days ahead."""
HEIRS = replace(CALM, name="heirs", heirs=2)
"""Names of jobs pass from one tenant to another, and those who had them act on them."""
NEIGHBOURS = replace(CALM, name="neighbours", looked_back=3)
"""Tenants read events that are still there."""
SECONDS_OFF = replace(CALM, name="seconds off", skew_s=3.0, every_s={Fault.CLOCK_JUMP: 1.0})
"""Clocks that are never right, and never wrong by much."""
FADING = replace(
    CALM,
    name="fading",
    large=0.6,
    reads={Fault.READ_FAILED: 0.2},
    operators=2,
    settings=replace(CALM.settings, storage_patience=timedelta(milliseconds=1), max_attempts=1),
)
"""Reads fail and nobody tries again; jobs die at once, many have large payloads, and somebody purges them."""
HAZY = replace(
    CALM,
    name="hazy",
    unread=0.4,
    large=0.8,
    insistent=True,
    settings=replace(CALM.settings, storage_patience=timedelta(milliseconds=1)),
)
"""Most payloads lie beside the queue, some cannot be read, and most requests are asked again."""
KEYED = replace(CALM, name="keyed", keyed=0.7, insistent=True)
BUSY = replace(CALM, name="busy", latency_s=(0.001, 0.01), leisure=0.5)
"""Much is asked of a store that answers at once."""
FULL = replace(
    CALM, name="full", full=True, writes={Fault.AFTER: 0.15, Fault.DELAYED: 0.1, Fault.THROTTLED: 0.3}, every_s={}
)
"""A disk that is full now and then, on a line that loses answers."""
COARSE = replace(
    CALM,
    name="coarse",
    grain_ms=1_000,
    skew_s=0.0,
    urgent=True,
    one_customer=True,
    leisure=0.3,
    writes={Fault.THROTTLED: 0.4},
    every_s={},
    settings=replace(CALM.settings, storage_patience=timedelta(milliseconds=1)),
)
"""Many commits fail, and what takes their place has the same time: clocks agree, and show whole seconds. Every job is
more urgent than those before it, so that the turn of its zone is made for it."""
LOG_LONG = replace(LOG, name="log-long", duration_s=30.0)
"""Longer than anybody sleeps."""
LED_RING_TIGHT = replace(
    LED_RING,
    name="led-ring-tight",
    hurried={
        **LED_RING.hurried,
        "simulation.world.server.SETTINGS": BrokerSettings(
            heartbeat=timedelta(seconds=LEASE_S / 2), lease=timedelta(seconds=LEASE_S), poll=timedelta(seconds=0.3)
        ),
    },
)
"""The shortest lease that is permitted: two heartbeats."""

_RULES: list[_Row] = [
    (mutations.ack_without_token_check, DOCUMENT, STORMY, Invariant.TOKENS),
    (mutations.ack_without_token_check, LOG, STORMY, Invariant.TOKENS),
    (mutations.settle_without_token_check, DOCUMENT, STORMY, Invariant.TOKENS),
    (mutations.settle_without_token_check, LOG, STORMY, Invariant.TOKENS),
    (mutations.settled_outcomes_not_remembered, LOG, CALM, Invariant.ONE_EFFECT),
    (mutations.settled_outcomes_not_remembered, LED, TRIO, Invariant.ONE_EFFECT),
    (mutations.one_refused_outcome_refuses_the_rest, LOG, STORMY, Invariant.ABSENT),
    (mutations.ticks_not_undone_with_their_batch, LOG, STORMY, Invariant.TICKED),
    (mutations.late_ticks_skipped, LOG, SLEEPY, Invariant.TICKED),
    (mutations.late_ticks_skipped, LED, SLEEPY, Invariant.TICKED),
    (mutations.schedules_set_by_whatever_the_clock_says, DOCUMENT, SECONDS_OFF, Invariant.CONSERVED),
    (mutations.ticks_moved_without_a_look_at_the_schedule, LOG, CALM, Invariant.CONSERVED),
    (mutations.purged_jobs_counted_as_dead, LOG, CALM, Invariant.CONSERVED),
    (mutations.purged_jobs_counted_as_dead, RING, ROUGH, Invariant.CONSERVED),
    (mutations.tries_lost_by_the_next_claim, DOCUMENT, STORMY, Invariant.TRIES),
    (mutations.tries_lost_by_the_next_claim, LOG, STORMY, Invariant.TRIES),
    (mutations.claims_that_are_given_back_counted_as_tries, LOG, CALM, Invariant.TRIES),
    (mutations.last_leases_that_ran_out_told_as_failures, DOCUMENT, STORMY, Invariant.TRIES),
    (mutations.last_leases_that_ran_out_told_as_failures, LOG, STORMY, Invariant.TRIES),
    (mutations.gates_not_heeded_by_whoever_claims, LOG, CALM, Invariant.GATES),
    (mutations.gates_not_heeded_by_whoever_adds, LED, CALM, Invariant.GATES),
    (mutations.crashes_counted_as_attempts, DOCUMENT, CALM, Invariant.COUNTED),
    (mutations.first_write_overwrites, DOCUMENT, STORMY, Invariant.ONE_HISTORY),
    (mutations.first_write_overwrites, LOG, STORMY, Invariant.ONE_HISTORY),
    (mutations.request_ids_not_remembered, DOCUMENT, STORMY, Invariant.ONE_EFFECT),
    (mutations.request_ids_not_remembered, LOG, STORMY, Invariant.ONE_EFFECT),
    (mutations.batches_not_remembered, DOCUMENT, STORMY, Invariant.ADMITTED),
    (mutations.only_the_last_batch_counts_as_repeated, LOG, STORMY, Invariant.ADMITTED),
    (mutations.written_times_believed_at_once, DOCUMENT, VISITORS, Invariant.LEASE),
    (mutations.written_times_believed_at_once, LOG, VISITORS, Invariant.LEASE),
    (mutations.visits_that_overlap_counted_twice, LOG, VISITORS, Invariant.LEASE),
    (mutations.leases_judged_by_wall_clocks, DOCUMENT, STORMY, Invariant.LEASE),
    (mutations.leases_judged_by_wall_clocks, LOG, STORMY, Invariant.LEASE),
    (mutations.unknown_taken_for_failed, DOCUMENT, STORMY, Invariant.ABSENT),
    (mutations.own_writes_not_recognised, DOCUMENT, STORMY, Invariant.ABSENT),
    (mutations.failed_batches_not_rolled_back, DOCUMENT, STORMY, Invariant.SAME_STATE),
    (mutations.claims_not_given_back, DOCUMENT, STORMY, Invariant.GIVEN_BACK),
    (mutations.answered_before_it_landed, DOCUMENT, STORMY, Invariant.DURABLE),
    (mutations.answered_before_it_landed, LOG, STORMY, Invariant.DURABLE),
    (mutations.full_disks_believed_after_an_attempt_without_an_answer, LOG, FULL, Invariant.ABSENT),
    (mutations.writes_believed_before_they_are_synced, DOCUMENT, DISK, Invariant.CURRENT),
    (mutations.writes_believed_before_they_are_synced, LOG, DISK, Invariant.CURRENT),
    (mutations.writes_believed_before_they_are_synced, LED, DISK, Invariant.CURRENT),
    (mutations.leases_never_run_out, DOCUMENT, STORMY, Invariant.LIVE),
    (mutations.jobs_go_to_the_back_with_their_first_worker, DOCUMENT, STORMY, Invariant.PLACE),
    (mutations.jobs_go_to_the_back_with_their_first_worker, LED, SLEEPY, Invariant.PLACE),
    (mutations.jobs_go_to_the_back_with_their_first_worker, RING, STORMY, Invariant.PLACE),
    (mutations.jobs_keep_their_place_whatever_they_kill, DOCUMENT, STORMY, Invariant.PLACE),
    (mutations.jobs_keep_their_place_whatever_they_kill, LOG, STORMY, Invariant.PLACE),
    (mutations.jobs_handed_out_after_their_time, DOCUMENT, FLEETING, Invariant.LAPSED),
    (mutations.jobs_handed_out_after_their_time, LED, FLEETING, Invariant.LAPSED),
    (mutations.jobs_handed_out_after_their_time, RING, FLEETING, Invariant.LAPSED),
    (mutations.running_jobs_expire, LOG, FLEETING, None),
    (mutations.running_jobs_expire, DOCUMENT, FLEETING, None),
    (mutations.restored_jobs_never_expire, LOG, FLEETING, None),
    (mutations.priorities_ignored, DOCUMENT, STORMY, Invariant.ORDER),
    (mutations.heartbeats_not_written, DOCUMENT, STORMY, Invariant.SAME_STATE),
    (ring_mutations.fifo_zones_that_go_on_after_a_failure, LOG, CALM, None),
    (ring_mutations.fifo_zones_that_go_on_after_a_failure, LED, TRIO, None),
    (ring_mutations.fifo_zones_that_several_work_on, DOCUMENT, CALM, None),
    (ring_mutations.running_jobs_of_a_zone_not_counted, LOG, STORMY, Invariant.CLAIMABLE),
    (ring_mutations.paused_zones_served, LED, CALM, Invariant.CLAIMABLE),
    (tenant_mutations.tenants_share_their_ids, LOG, CALM, Invariant.TENANTS),
    (tenant_mutations.tenants_share_their_keys, LED, CALM, Invariant.TENANTS),
    (tenant_mutations.tenants_find_what_they_can_name, DOCUMENT, CALM, Invariant.TENANTS),
    (tenant_mutations.tenants_watch_whatever_is_added, LOG, NEIGHBOURS, Invariant.TENANTS),
    (tenant_mutations.tenants_are_let_through_before_their_call_is_carried_out, LOG, HEIRS, Invariant.TENANTS),
    (tenant_mutations.tenants_are_let_through_before_their_call_is_carried_out, DOCUMENT, HEIRS, Invariant.TENANTS),
    (tenant_mutations.tenants_are_let_through_before_their_call_is_carried_out, RING, HEIRS, Invariant.TENANTS),
    (tenant_mutations.one_tenants_requests_push_out_anothers, DOCUMENT, KEYED, Invariant.ONE_EFFECT),
    (mutations.forgotten_batches_taken_for_lost, LOG, LIDS, None),
    (mutations.forgotten_batches_taken_for_lost, DOCUMENT, LOST_LIDS, Invariant.ABSENT),
    (mutations.forgotten_writers_not_accounted_for, LOG, LIDS, None),
    (log_mutations.snapshots_forget_that_writers_were_forgotten, LOG, LIDS, Invariant.REPLAY),
    (mutations.requests_forgotten_by_whoever_comes_new, LOG, STORMY, Invariant.ONE_EFFECT),
    (mutations.repeated_requests_not_compared, LOG, CALM, Invariant.DURABLE),
    (mutations.repeated_requests_not_compared, LED, TRIO, Invariant.DURABLE),
    (mutations.repeated_requests_not_compared, DOCUMENT, CALM, Invariant.DURABLE),
    (mutations.holders_of_keys_shown_as_asked_for, LOG, KEYED, Invariant.PAYLOADS),
    (mutations.jobs_beside_large_ones_shown_as_asked_for, DOCUMENT, CALM, Invariant.PAYLOADS),
    (log_mutations.replicas_forget_requests_each_by_itself, LOG, CALM, Invariant.REPLAY),
    (ring_mutations.running_jobs_of_a_fifo_zone_not_counted_by_its_limit, LOG, CALM, Invariant.CLAIMABLE),
    (ring_mutations.running_jobs_of_a_fifo_zone_not_counted_by_its_limit, LED, TRIO, Invariant.CLAIMABLE),
    (log_mutations.wins_not_confirmed, LOG, PAIR, Invariant.SAME_STATE),
    (log_mutations.second_body_for_a_tried_slot, LOG, SLEEPY, Invariant.ABSENT),
    (log_mutations.deleted_before_the_floor_is_raised, LOG, SLEEPY, Invariant.KEPT),
    (log_mutations.fences_collected, LOG, SLEEPY, Invariant.KEPT),
    (log_mutations.floor_at_the_newest_snapshot, LOG, SLEEPY, Invariant.KEPT),
    (log_mutations.head_read_before_the_tail, LOG, SLEEPY, Invariant.EPOCHS),
    (log_mutations.log_probed_before_the_head_is_claimed, LOG, SLEEPY, Invariant.EPOCHS),
    (log_mutations.no_fence_after_a_change_of_epoch, LOG_LONG, DREAMS, Invariant.CURRENT),
    (log_mutations.snapshots_forget_request_ids, LOG, SLEEPY, Invariant.REPLAY),
    (log_mutations.snapshots_forget_gates, LOG, SLEEPY, Invariant.REPLAY),
    (log_mutations.snapshots_forget_tags, LOG, SLEEPY, Invariant.REPLAY),
    (log_mutations.snapshots_forget_admissions, LOG, SLEEPY, Invariant.REPLAY),
    (log_mutations.snapshots_forget_what_visits_saw, LOG, VISITORS, Invariant.SAME_STATE),
    (log_mutations.fence_taken_for_an_ordinary_commit, LOG, PAIR, Invariant.EPOCHS),
    (log_mutations.fence_before_the_head_is_flipped, LOG, PAIR, Invariant.EPOCHS),
    (log_mutations.head_collected, LOG, SLEEPY, Invariant.KEPT),
    (log_mutations.snapshots_published_into_another_epoch, LOG, PAIR, Invariant.EPOCHS),
    (log_mutations.follower_that_never_looks_at_the_floor, LOG, PAIR, Invariant.CURRENT),
    (log_mutations.archived_before_it_is_committed, LOG, STORMY, Invariant.ARCHIVED),
    (log_mutations.archived_without_claiming_the_range, LOG, STORMY, Invariant.ARCHIVED),
    (log_mutations.another_range_than_the_one_that_was_begun, LOG, STORMY, Invariant.ARCHIVED),
    (log_mutations.called_archived_before_it_is_written, LOG, STORMY, Invariant.ARCHIVED),
    (log_mutations.floor_past_what_is_archived, LOG, STORMY, Invariant.ARCHIVED),
    (log_mutations.snapshots_forget_what_is_yet_to_be_archived, LOG, STORMY, Invariant.ARCHIVED),
    (log_mutations.archived_before_it_is_committed, LED, SLEEPY, Invariant.ARCHIVED),
    (log_mutations.archived_without_claiming_the_range, LED, SLEEPY, Invariant.ARCHIVED),
    (log_mutations.another_range_than_the_one_that_was_begun, LED, SLEEPY, Invariant.ARCHIVED),
    (mutations.document_archived_without_claiming_the_range, DOCUMENT, STORMY, Invariant.ARCHIVED),
    (mutations.document_removes_first_and_archives_then, DOCUMENT, STORMY, Invariant.ARCHIVED),
    (mutations.document_archives_what_is_not_committed, DOCUMENT, STORMY, Invariant.ARCHIVED),
    (mutations.request_ids_not_remembered, LED, SLEEPY, Invariant.ONE_EFFECT),
    (broker_mutations.cut_off_calls_answered_as_done, LED_RING, CLOSING, Invariant.DURABLE),
    (mutations.leases_judged_by_wall_clocks, LED, SLEEPY, Invariant.LEASE),
    (log_mutations.log_probed_before_the_head_is_claimed, LED, SLEEPY, Invariant.EPOCHS),
    (log_mutations.deposed_leader_goes_on, LED, SLEEPY, Invariant.EPOCHS),
    (log_mutations.leader_without_a_fence, LED, NODDING, Invariant.CURRENT),
    (log_mutations.deleted_before_the_floor_is_raised, LED, SLEEPY, Invariant.KEPT),
    (log_mutations.fences_collected, LED, SLEEPY, Invariant.KEPT),
    (broker_mutations.healthy_leader_evicted, LED, TRIO, Invariant.HEALTHY),
    (broker_mutations.healthy_leader_evicted, LED_DOCUMENT, TRIO, Invariant.HEALTHY),
    (broker_mutations.takeover_by_wall_clock, LED_DOCUMENT, WATCHES, Invariant.HEALTHY),
    (broker_mutations.silence_measured_until_the_answer, WATCHED, ROUGH, Invariant.HEALTHY),
    (broker_mutations.registers_again_on_conflict, LED, TRIO, Invariant.HEALTHY),
    (broker_mutations.registers_again_on_conflict, LED_DOCUMENT, TRIO, Invariant.HEALTHY),
    (broker_mutations.deposed_document_leader_goes_on, LED_DOCUMENT, TRIO, Invariant.EPOCHS),
]

_MENDED: list[_Row] = [
    (mutations.claims_of_a_repeated_request_given_back, DOCUMENT, STORMY, Invariant.TOKENS),
    (mutations.answer_lost_to_a_cancellation, DOCUMENT, BUSY, Invariant.GIVEN_BACK),
    (mutations.failed_give_back_forgotten, DOCUMENT, IMPATIENT, Invariant.GIVEN_BACK),
    (mutations.direct_claims_not_given_back, DOCUMENT, STORMY, Invariant.GIVEN_BACK),
    (mutations.loss_believed_without_reading, DOCUMENT, DEAF, Invariant.ABSENT),
    (mutations.requests_forgotten_by_a_fast_clock, DOCUMENT, JUMPY, Invariant.ONE_EFFECT),
    (mutations.upkeep_that_fails_fails_the_call, LOG, IMPATIENT, Invariant.ABSENT),
]

_RINGS: list[_Row] = [
    (ring_mutations.home_compared_without_the_generation, RING, DROWSY, Invariant.ONE_PLACE),
    (ring_mutations.zones_made_for_callers_with_an_old_ring, RING, DROWSY, Invariant.ONE_PLACE),
    (ring_mutations.old_homes_not_asked, RING, DROWSY, Invariant.ONE_PLACE),
    (ring_mutations.zones_whose_last_job_is_running_count_as_gone, RING, DROWSY, Invariant.ONE_PLACE),
    (ring_mutations.zones_with_dead_jobs_alone_count_as_gone, RING, DROWSY, Invariant.ONE_PLACE),
    (ring_mutations.request_ids_not_looked_for_in_old_homes, RING, CALM, Invariant.ONE_EFFECT),
    (ring_mutations.old_sizes_forgotten_while_zones_are_there, RING, CALM, Invariant.REACHED),
    (ring_mutations.old_sizes_forgotten_without_telling_the_shards, RING, SETTLERS, Invariant.REACHED),
    (ring_mutations.rules_not_copied_to_shards_that_are_added, RING, DROWSY, Invariant.ZONES),
    (ring_mutations.rules_copied_over_newer_ones, RING, CALM, Invariant.ZONES),
    (ring_mutations.settings_copied_whatever_was_written_since, RING, SWITCHERS, None),
    (ring_mutations.settings_copied_whatever_was_written_since, LED_RING, SWITCHERS, None),
    (ring_mutations.shards_take_jobs_before_they_have_the_settings, RING, CALM, None),
    (ring_mutations.repeated_dequeues_claim_anew_when_theirs_are_settled, RING, DROWSY, Invariant.ONE_EFFECT),
    (ring_mutations.set_in_the_first_shard_and_called_failed, RING, STORMY, None),
    (ring_mutations.new_shards_not_looked_for_after_a_setting, RING, SWITCHERS, None),
    (ring_mutations.leases_of_zones_not_counted_by_those_who_add, RING, CALM, Invariant.ONE_PLACE),
    (ring_mutations.leases_of_zones_not_counted_by_those_who_admit, RING, HELD, Invariant.ONE_PLACE),
    (zone_mutations.zones_released_behind_their_holders, LOG, CALM, Invariant.LEASE),
    (zone_mutations.zones_released_behind_their_holders, SERVED, CALM, Invariant.LEASE),
    (zone_mutations.staged_jobs_lose_their_place_in_the_line, LOG, STRICT, Invariant.FIFO),
    (zone_mutations.staged_jobs_lose_their_place_in_the_line, RING, STRICT, Invariant.FIFO),
    (
        ring_mutations.times_of_two_machines_compared_by_those_who_forget_sizes,
        RING,
        SETTLERS,
        Invariant.ONE_EFFECT,
    ),
    (ring_mutations.jobs_looked_for_before_requests, RING, HEIRS, Invariant.ONE_EFFECT),
]

BULKY = replace(CALM, name="bulky", large=0.7, reads={Fault.READ_SLOW: 0.5})
"""Most payloads lie beside the queue, and take their time."""
CUT_OFF = replace(CALM, name="cut off", cuts=0.06, every_s={})
"""Nothing goes wrong but connections."""

_EVERYWHERE: list[_Row] = [
    (mutations.first_write_overwrites, RING, STORMY, Invariant.ONE_HISTORY),
    (mutations.first_write_overwrites, SERVED, STORMY, Invariant.ONE_HISTORY),
    (mutations.first_write_overwrites, LED_RING, STORMY, Invariant.ONE_HISTORY),
    (mutations.failed_batches_not_rolled_back, RING, STORMY, Invariant.SAME_STATE),
    (mutations.failed_batches_not_rolled_back, LED_RING, STORMY, Invariant.SAME_STATE),
    (mutations.tries_lost_by_the_next_claim, RING, STORMY, Invariant.TRIES),
    (mutations.leases_judged_by_wall_clocks, RING, STORMY, Invariant.LEASE),
    (mutations.leases_judged_by_wall_clocks, LED_RING, STORMY, Invariant.LEASE),
    (mutations.leases_never_run_out, RING, STORMY, Invariant.LIVE),
    (mutations.late_ticks_skipped, RING, SLEEPY, Invariant.TICKED),
    (mutations.late_ticks_skipped, LED_RING, SLEEPY, Invariant.TICKED),
    (mutations.late_ticks_skipped, DOCUMENT, SLEEPY, Invariant.TICKED),
    (mutations.request_ids_not_remembered, LED_RING, STORMY, Invariant.ONE_EFFECT),
]
"""What a plain queue must not do, done in the shards of rings and behind brokers."""

_SERVICES: list[_Row] = [
    (served_mutations.request_ids_lost_on_the_wire, SERVED, CUT_OFF, Invariant.ONE_EFFECT),
    (served_mutations.tokens_lost_on_the_wire, SERVED, CALM, Invariant.TOKENS),
    (served_mutations.answered_before_it_was_asked_of_the_queue, SERVED, CALM, Invariant.DURABLE),
    (served_mutations.calls_lost_with_their_connection_called_failed, SERVED, BRUTAL, Invariant.ABSENT),
    (served_mutations.refusals_believed_though_an_attempt_is_on_its_way, COPIED_DOCUMENT, ROUGH, Invariant.ABSENT),
    (served_mutations.calls_served_by_whatever_shard_is_led, LED_RING, CALM, Invariant.EXPECTED),
    (served_mutations.dead_brokers_keep_their_shards, LED_RING, ROUGH, Invariant.LIVE),
    (served_mutations.idle_shards_taken_from_brokers_that_live, LED_RING, DISK, Invariant.LIVE),
    (served_mutations.shards_in_another_place_left_to_nobody, LED_RING, CALM, Invariant.LIVE),
    (served_mutations.gates_not_copied_to_shards_that_are_added, RING, CALM, Invariant.GATES),
    (served_mutations.batches_done_before_all_shards_have_theirs, RING, ROUGH, Invariant.ADMITTED),
    (served_mutations.parts_deleted_while_their_batch_is_under_way, RING, CALM, Invariant.KEPT),
    (zone_mutations.leased_zones_served_to_everybody, LOG, CALM, Invariant.CLAIMABLE),
    (zone_mutations.zone_leases_kept_for_ever, LOG, CALM, Invariant.LIVE),
    (zone_mutations.zone_leases_cut_short, LOG, CALM, Invariant.LEASE),
    (zone_mutations.zones_leased_twice, DOCUMENT, CALM, Invariant.LEASE),
    (zone_mutations.tokens_of_zones_not_compared, LOG, CALM, Invariant.TOKENS),
    (zone_mutations.releases_answered_and_not_carried_out, LOG, CALM, Invariant.DURABLE),
    (zone_mutations.snapshots_forget_leases_of_zones, LOG, CALM, Invariant.REPLAY),
    (zone_mutations.payloads_of_dead_jobs_dropped, LOG, ROUGH, Invariant.PAYLOADS),
    (zone_mutations.payloads_written_after_their_jobs, LOG, CALM, Invariant.PAYLOADS),
]
"""Sessions, connections, brokers of rings, leases of zones and large payloads."""

_READERS: list[_Row] = [
    (reader_mutations.followers_go_on_after_the_commit_that_was_cut, WATCHED, CUT_OFF, Invariant.FOLLOWED),
    (reader_mutations.followers_are_shown_again_what_they_saw, WATCHED, CUT_OFF, Invariant.FOLLOWED),
    (reader_mutations.followers_wait_for_a_leader_that_was_deposed, WATCHED, STORMY, Invariant.LIVE),
    (reader_mutations.stopping_brokers_end_streams_as_if_they_were_complete, WATCHED, ROLLING, None),
    (reader_mutations.lists_that_break_off_taken_for_whole, WATCHED, CUT_OFF, None),
    (reader_mutations.archives_read_again_from_their_beginning, WATCHED, CUT_OFF, Invariant.SHOWN),
    (reader_mutations.archived_objects_that_cannot_be_read_left_out, WATCHED, ROUGH, Invariant.SHOWN),
    (reader_mutations.large_jobs_that_ended_meanwhile_called_damaged, WATCHED, BULKY, Invariant.EXPECTED),
    (reader_mutations.readers_keep_what_others_need_room_for, STALLED, CALM, Invariant.HELD),
    (reader_mutations.commits_that_were_taken_away_passed_over, STALLED, CALM, Invariant.FOLLOWED),
    (reader_mutations.values_read_ahead_without_asking_for_room, STALLED, CALM, Invariant.HELD),
    (reader_mutations.room_for_what_was_sent_never_given_back, STALLED, CALM, None),
    (reader_mutations.readers_that_stall_never_make_way, STALLED, CALM, Invariant.LIVE),
]
"""What is shown to those who follow, list and read the archive through brokers."""

_RING_READERS: list[_Row] = [
    (ring_mutations.surplus_claims_taken_from_whoever_was_told_of_them, WATCHED_RING, ROLLING, Invariant.TOKENS),
    (ring_mutations.roots_changed_on_a_version_that_another_task_has_read, WATCHED_RING, DISK, Invariant.ONE_HISTORY),
    (reader_mutations.lists_that_break_off_taken_for_whole, WATCHED_RING, CUT_OFF, Invariant.SHOWN),
    (reader_mutations.first_shards_listed_alone, WATCHED_RING, CALM, Invariant.SHOWN),
]
"""The same of rings."""

_FOREIGNERS: list[_Row] = [
    (foreign_mutations.osqueue_jobs_completed_by_whoever_names_them, FOREIGN, CALM, Invariant.TOKENS),
    (foreign_mutations.osqueue_pushes_answered_before_they_have_landed, FOREIGN, CALM, Invariant.DURABLE),
    (foreign_mutations.osqueue_heartbeats_that_only_look, FOREIGN, CALM, Invariant.DURABLE),
    (foreign_mutations.calls_that_were_cut_off_called_refused, FOREIGN, STORMY, Invariant.ABSENT),
    (foreign_mutations.tokens_of_single_calls_lost, FOREIGN, CALM, Invariant.TOKENS),
    (foreign_mutations.request_ids_of_single_calls_lost, FOREIGN, CALM, Invariant.ONE_EFFECT),
]
"""Programs of other languages, whose calls need no session."""

_MOVERS: list[_Row] = [
    (move_mutations.rescheduled_jobs_not_listed_again, MOVED_DOCUMENT, CALM, Invariant.CLAIMABLE),
    (move_mutations.running_jobs_rescheduled, MOVED, CALM, Invariant.CAUSED),
    (move_mutations.repeated_reschedules_carried_out_again, MOVED, STORMY, Invariant.ONE_EFFECT),
    (move_mutations.repeated_reschedules_carried_out_again, MOVED_RING, STORMY, Invariant.ONE_EFFECT),
    (move_mutations.priorities_of_reschedules_not_looked_at, MOVED_RING, CALM, Invariant.CAUSED),
    (move_mutations.reschedules_answered_and_not_carried_out, MOVED_DOCUMENT, CALM, Invariant.DURABLE),
]
"""Operators who change the time and the priority of jobs."""

_AT_THE_DOOR: list[_Row] = [
    (tenant_mutations.sessions_outlive_their_tokens, GUARDED, CALM, Invariant.TENANTS),
    (tenant_mutations.streams_outlive_their_tokens, GUARDED, CALM, Invariant.TENANTS),
    (tenant_mutations.tokens_known_by_their_ids, GUARDED, CALM, Invariant.TENANTS),
    (tenant_mutations.entrypoints_of_tokens_not_read, GUARDED, CALM, Invariant.TENANTS),
    (tenant_mutations.archives_shown_to_every_tenant, GUARDED, CALM, Invariant.TENANTS),
    (tenant_mutations.request_ids_shared_by_all_tokens, GUARDED, CALM, Invariant.TENANTS),
    (tenant_mutations.tenants_share_their_ids, GUARDED, CALM, Invariant.TENANTS),
    (tenant_mutations.tenants_find_what_they_can_name, GUARDED, CALM, Invariant.TENANTS),
    (tenant_mutations.tenants_watch_whatever_is_added, GUARDED, CALM, Invariant.TENANTS),
]
"""Tenants with tokens, and those whose token does not count."""

_FLEETS: list[_Row] = [
    (fleet_mutations.declined_jobs_get_a_backoff, FLEET_SERVED, CALM, Invariant.EXPECTED),
    (fleet_mutations.declines_count_as_attempts, FLEET, CALM, Invariant.COUNTED),
    (fleet_mutations.declines_count_as_attempts, FLEET_DOCUMENT, CALM, Invariant.COUNTED),
    (fleet_mutations.declines_without_end, FLEET, CALM, Invariant.DECLINED),
    (fleet_mutations.declined_jobs_are_dead_at_once, FLEET_SERVED, CALM, None),
    (fleet_mutations.stale_leases_taken_from_everybody, FLEET, CALM, Invariant.LEASE),
    (fleet_mutations.stale_leases_taken_from_everybody, FLEET_RING, CALM, Invariant.LEASE),
    (fleet_mutations.stale_leases_taken_again_when_it_is_asked_again, FLEET, CALM, None),
    (fleet_mutations.claims_go_back_after_that_has_failed, FLEET_DOCUMENT, CALM, Invariant.TOKENS),
    (tenant_mutations.tenants_share_their_ids, FLEET_RING, CALM, Invariant.TENANTS),
    (tenant_mutations.tenants_share_their_keys, FLEET_SERVED, CALM, Invariant.TENANTS),
]
"""Workers of two versions, claims that are given back, and operators."""

_COPIES: list[_Row] = [
    (copy_mutations.head_and_broker_do_not_compare_their_place, COPIED, CALM, Invariant.COPIED),
    (copy_mutations.head_and_broker_do_not_compare_their_place, COPIED_DOCUMENT, CALM, Invariant.COPIED),
    (copy_mutations.head_and_broker_do_not_compare_their_place, COPIED_RING, CALM, Invariant.COPIED),
    (copy_mutations.brokers_of_copies_send_callers_to_the_original, COPIED, CALM, Invariant.COPIED),
    (copy_mutations.payloads_left_behind_by_copies, COPIED, CALM, None),
    (copy_mutations.copies_forget_the_rules_of_zones, COPIED, CALM, Invariant.COPIED),
    (copy_mutations.copies_without_the_archive, COPIED_DOCUMENT, CALM, Invariant.COPIED),
    (copy_mutations.copies_are_called_after_the_original, COPIED, CALM, Invariant.COPIED),
]
"""Copies of the bucket, backups and restores."""

_CONVERSIONS: list[_Row] = [
    (convert_mutations.logs_converted_without_a_fence, CONVERTING, CALM, None),
    (convert_mutations.documents_converted_over_what_was_written_meanwhile, CONVERTING, CALM, None),
    (convert_mutations.fences_removed_with_the_rest_of_the_log, CONVERTING, CALM, Invariant.KEPT),
    (convert_mutations.conversions_forget_what_is_yet_to_be_archived, CONVERTING, CALM, None),
    (convert_mutations.conversions_forget_the_rules_of_zones, CONVERTING, CALM, Invariant.CONVERTED),
    (convert_mutations.logs_removed_before_the_switch, CONVERTING, CALM, None),
    (convert_mutations.queues_opened_as_logs_whatever_their_head_says, CONVERTING, CALM, None),
]
"""Conversions of a queue that is in use."""


_TRIALS: list[_Row] = [
    (trial_mutations.heartbeats_that_were_refused_renew_the_trust_of_a_leader, LED, DOZING, Invariant.CURRENT),
    (trial_mutations.successors_do_not_wait_for_memories_to_fade, LED, NODDING, Invariant.CURRENT),
    (trial_mutations.late_looks_restart_the_silence_of_all, LED_RING_TIGHT, ROUGH, Invariant.LIVE),
    (trial_mutations.jobs_that_outlive_the_drain_left_to_their_leases, LOG, STAFFED, Invariant.GIVEN_BACK),
    (trial_mutations.jobs_that_outlive_the_drain_called_failed, LOG, STAFFED, Invariant.CAUSED),
    (trial_mutations.payloads_that_cannot_be_read_fail_what_was_committed, LOG, BLURRED, Invariant.ABSENT),
    (trial_mutations.claims_whose_payloads_cannot_be_read_called_failed, LOG, BLURRED, Invariant.GIVEN_BACK),
    (trial_mutations.shards_that_a_broker_has_not_heard_of_refused_for_good, LED_RING, RESTARTS, Invariant.EXPECTED),
    (trial_mutations.small_queues_forget_the_tokens_of_their_claims, LOG, ROUGH, Invariant.TOKENS),
    (trial_mutations.small_queues_forget_the_tokens_of_their_claims, DOCUMENT, ROUGH, Invariant.TOKENS),
    (trial_mutations.calls_in_the_window_lost_to_reads, PACED, CALM, None),
    (trial_mutations.calls_that_wait_for_the_budget_answered_at_once, BUDGETED, CALM, Invariant.DURABLE),
    (trial_mutations.heartbeats_wait_for_all_shards, RING, SHARDS_AWAY, Invariant.LEASE),
    (trial_mutations.workers_sent_away_by_brokers_that_disagree, LED, STAFFED, Invariant.GIVEN_BACK),
    (trial_mutations.callers_cancelled_with_the_search_for_a_leader, SERVED, CLOSING, Invariant.EXPECTED),
    (trial_mutations.purges_whose_payloads_cannot_be_looked_for_called_failed, DOCUMENT, FADING, Invariant.ABSENT),
    (trial_mutations.unread_claims_of_a_repeated_request_given_back, DOCUMENT, HAZY, Invariant.TOKENS),
    (trial_mutations.unread_claims_given_back_by_a_task_of_their_own, DOCUMENT, HAZY, Invariant.GIVEN_BACK),
    (trial_mutations.claims_beside_a_missing_payload_left_to_their_leases, DAMAGED, IMPATIENT, Invariant.GIVEN_BACK),
    (
        trial_mutations.claims_beside_a_missing_payload_left_to_their_leases,
        DAMAGED_DOCUMENT,
        IMPATIENT,
        Invariant.GIVEN_BACK,
    ),
    (trial_mutations.archives_kept_by_whatever_the_clock_says, LOG, AHEAD, Invariant.ARCHIVED),
    (trial_mutations.clocks_of_keepers_believed_from_their_start, LOG, AHEAD, Invariant.ARCHIVED),
    (turn_mutations.stale_turns_recognised_by_number, LOG, COARSE, Invariant.CLAIMABLE),
    (trial_mutations.batches_refused_while_somebody_admits_them, RING, HEDGED, Invariant.ABSENT),
]
"""What trials broke: each of these was in the code once."""


_FORMS: list[_Row] = [
    (archive_mutations.every_form_of_a_range_read, MIXED, CALM, Invariant.ARCHIVED),
    (archive_mutations.every_form_of_a_range_read, MIXED_WATCHED, CALM, Invariant.SHOWN),
    (archive_mutations.parquet_passed_over, MIXED, CALM, Invariant.ARCHIVED),
    (archive_mutations.parquet_passed_over, MIXED_DOCUMENT, CALM, Invariant.ARCHIVED),
    (archive_mutations.parquet_passed_over, MIXED_WATCHED, CALM, Invariant.SHOWN),
    (archive_mutations.one_object_read_of_each_range, MIXED, ROUGH, Invariant.ARCHIVED),
    (archive_mutations.other_form_taken_for_the_whole_range, MIXED_DOCUMENT, ROUGH, Invariant.ARCHIVED),
    (archive_mutations.forms_share_a_name, MIXED, CALM, Invariant.ARCHIVED),
    (archive_mutations.parquet_of_the_first_piece_alone, MIXED, CALM, Invariant.ARCHIVED),
]


_ERASURES: list[_Row] = [
    (erasing_mutations.missing_forms_left_to_late_writers, ERASED, ROUGH, Invariant.ARCHIVED),
    (erasing_mutations.first_form_alone_erased, ERASED, CALM, Invariant.ARCHIVED),
    (erasing_mutations.first_form_alone_erased, ERASED_DOCUMENT, CALM, Invariant.ARCHIVED),
    (erasing_mutations.erased_objects_taken_for_damage, ERASED, ROUGH, Invariant.ARCHIVED),
    (erasing_mutations.rest_written_over_the_rest_of_another, ERASED, CALM, Invariant.ARCHIVED),
    (erasing_mutations.erasures_recorded_when_they_are_done, ERASED, CALM, Invariant.ARCHIVED),
    (erasing_mutations.objects_changed_by_others_left_as_they_are, ERASED, CALM, Invariant.ARCHIVED),
]


class Mistake(NamedTuple):
    """One of them, and where it is looked for."""

    mutation: Mutation
    layout: Layout
    weather: Profile
    invariant: Invariant | None
    """None: what it does shows in several ways, and any of them will do."""

    @property
    def name(self) -> str:
        return f"{self.mutation.__name__} {self.layout.name} {self.weather.name}"


_ALL = (
    *_RULES,
    *_MENDED,
    *_RINGS,
    *_SERVICES,
    *_READERS,
    *_RING_READERS,
    *_FOREIGNERS,
    *_MOVERS,
    *_AT_THE_DOOR,
    *_EVERYWHERE,
    *_FLEETS,
    *_COPIES,
    *_CONVERSIONS,
    *_TRIALS,
    *_FORMS,
    *_ERASURES,
)
MISTAKES = [Mistake(*row) for row in _ALL]
