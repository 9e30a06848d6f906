"""A run for people: how it goes, and what came of it."""

from __future__ import annotations

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from casque.clock import SystemClock
from casque.service import EventKind
from simulation.chaos.fleet import BrokerMember, Health, Member
from simulation.chaos.run import Chaos, Report

_CLOCK = SystemClock()
COLOURS = {
    Health.UP: "green",
    Health.STOPPED: "yellow",
    Health.STARTING: "cyan",
    Health.DOWN: "red",
    Health.LEAVING: "magenta",
}


def picture(chaos: Chaos) -> Group:
    """How it stands just now."""
    elapsed_s = (_CLOCK.monotonic_ms() - chaos.phase_ms) / 1000
    chronicle, ledger = chaos.chronicle, chaos.ledger
    added, acked = chronicle.kinds[EventKind.ADDED], chronicle.kinds[EventKind.ACKED]
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_row("phase", f"[bold]{chaos.phase.value}[/] for {elapsed_s:.0f} s ({chaos.plan.seconds:.0f} s of fire)")
    facts.add_row("leader", f"{chaos.head.leader or 'nobody'}, epoch {chaos.head.epoch}")
    facts.add_row(
        "jobs", f"{added:,} enqueued, {acked:,} done, {added - acked:,} left, position {chronicle.position:,}"
    )
    facts.add_row("acknowledged", f"{ledger.succeeded['enqueue']:,} enqueues, {ledger.succeeded['ack']:,} acks")
    facts.add_row("faults", ", ".join(f"{n} x {what}" for what, n in sorted(chaos.tormentor.counts.items())) or "none")
    facts.add_row("silence", f"{ledger.longest_silence_ms / 1000:.2f} s at most")
    if problems := chaos.report.problems + chronicle.problems:
        facts.add_row("[bold red]problems[/]", escape("\n".join(problems[:5])))
    members = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    cells = [_member(chaos, member) for member in chaos.fleet.members]
    for start in range(0, len(cells), 3):
        members.add_row(*cells[start : start + 3])
    recent = Text("\n".join(chaos.tormentor.recent), style="dim")
    return Group(facts, Text(), members, Text(), recent)


def _member(chaos: Chaos, member: Member) -> str:
    leads = isinstance(member, BrokerMember) and member.address == chaos.head.leader
    name = f"[bold]{member.name}[/] leads" if leads else member.name
    return f"[{COLOURS[member.health]}]●[/] {name} [dim]{member.health.value}, start {member.starts}[/]"


def show(report: Report, console: Console) -> None:
    """What came of it."""
    plan = report.plan
    table = Table(
        title=f"chaos on {plan.url.partition(':')[0]}, {plan.way.value}, seed {plan.seed}",
        show_header=False,
        title_justify="left",
    )
    for what, count in sorted(report.faults.items()):
        table.add_row(what, f"{count:,}")
    table.add_row("of these on the leader", f"{report.leaders_hit:,}")
    table.add_row("leaderships", f"{report.leaderships:,}")
    table.add_row("longest unavailability", f"{report.longest_silence_s:.2f} s without an answer to any producer")
    table.add_row("longest call", f"{report.longest_call_s:.2f} s")
    table.add_row("calls", f"{report.calls:,} recorded and checked, {report.unknown:,} of them without a known outcome")
    table.add_row("jobs", f"{report.jobs:,} in {report.commits:,} commits")
    table.add_row("rate", f"{report.jobs / max(report.seconds, 1):,.0f} jobs/s for {report.seconds:.0f} s")
    table.add_row("at rest", f"{report.calm_s:.1f} s after the last fault")
    events = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.events.items()))
    table.add_row("events", events or "none: there is no single log to follow")
    done = ", ".join(f"{count:,} {verb}" for verb, count in sorted(report.succeeded.items()))
    table.add_row("succeeded", done)
    refusals = ", ".join(f"{count:,} x {what}" for what, count in sorted(report.refused.items()))
    table.add_row("refused", refusals or "nothing")
    console.print(table)
    for problem in report.problems:
        console.print("violation:", escape(problem), style="red", soft_wrap=True, highlight=False)
    if report.problems:
        console.print(f"[bold red]{len(report.problems)} violations[/], see {plan.folder}", soft_wrap=True)
    else:
        console.print(
            "[bold green]held[/]: one order explains every job's calls; nothing acknowledged was lost or done twice"
        )
