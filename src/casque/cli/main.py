"""The commands and how they are found."""

from __future__ import annotations

from typing import Annotated

import typer

from casque import __version__
from casque.cli import (
    archive,
    convert,
    cron,
    dequeue,
    enqueue,
    jobs,
    jobs_show,
    pipeline,
    queue_copy,
    queue_create,
    queue_gates,
    queue_info,
    queue_resize,
    release,
    report,
    serve,
    settle,
    spark_doctor,
    spark_replay,
    spark_work,
    tail,
    token,
    verify,
    worker,
    zones,
    zones_consume,
    zones_data,
    zones_peek,
)
from casque.cli.bench import command as bench
from casque.cli.cost import command as cost
from casque.cli.demo.command import demo
from casque.cli.doctor import doctor
from casque.cli.running import help_of
from casque.cli.top import command as top

app = typer.Typer(
    name="casque",
    help="A durable job queue whose only infrastructure is a bucket.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
queue = typer.Typer(name="queue", help="Look after one queue.", no_args_is_help=True, rich_markup_mode="rich")
queue.command(help=help_of(queue_info.info), epilog=queue_info.EXAMPLES)(queue_info.info)
queue.command(help=help_of(queue_create.create), epilog=queue_create.EXAMPLES)(queue_create.create)
queue.command(help=help_of(queue_resize.resize), epilog=queue_resize.EXAMPLES)(queue_resize.resize)
queue.command(help=help_of(queue_gates.pause), epilog=queue_gates.EXAMPLES_PAUSE)(queue_gates.pause)
queue.command(help=help_of(queue_gates.resume), epilog=queue_gates.EXAMPLES_RESUME)(queue_gates.resume)
queue.command(help=help_of(queue_gates.drain), epilog=queue_gates.EXAMPLES_DRAIN)(queue_gates.drain)
queue.command(help=help_of(convert.convert), epilog=convert.EXAMPLES)(convert.convert)
queue.command(help=help_of(verify.verify), epilog=verify.EXAMPLES)(verify.verify)
queue.command(help=help_of(queue_copy.backup), epilog=queue_copy.EXAMPLES_BACKUP)(queue_copy.backup)
queue.command(help=help_of(queue_copy.restore), epilog=queue_copy.EXAMPLES_RESTORE)(queue_copy.restore)
queue.command(help=help_of(queue_copy.clone), epilog=queue_copy.EXAMPLES_CLONE)(queue_copy.clone)
queue.command(help=help_of(release.release), epilog=release.EXAMPLES)(release.release)
job = typer.Typer(name="jobs", help="The jobs of a queue.", no_args_is_help=True, rich_markup_mode="rich")
job.command("list", help=help_of(jobs.list_), epilog=jobs.EXAMPLES_LIST)(jobs.list_)
job.command("show", help=help_of(jobs_show.show_), epilog=jobs_show.EXAMPLES)(jobs_show.show_)
job.command(help=help_of(jobs.cancel), epilog=jobs.EXAMPLES_CANCEL)(jobs.cancel)
job.command(help=help_of(jobs.retry), epilog=jobs.EXAMPLES_RETRY)(jobs.retry)
job.command(help=help_of(jobs.purge), epilog=jobs.EXAMPLES_PURGE)(jobs.purge)
job.command(help=help_of(jobs.requeue), epilog=jobs.EXAMPLES_REQUEUE)(jobs.requeue)
crons = typer.Typer(
    name="cron", help="Jobs that are due again and again.", no_args_is_help=True, rich_markup_mode="rich"
)
crons.command("list", help=help_of(cron.list_), epilog=cron.EXAMPLES_LIST)(cron.list_)
crons.command("set", help=help_of(cron.set_), epilog=cron.EXAMPLES_SET)(cron.set_)
crons.command(help=help_of(cron.pause), epilog=cron.EXAMPLES_PAUSE)(cron.pause)
crons.command(help=help_of(cron.resume), epilog=cron.EXAMPLES_RESUME)(cron.resume)
crons.command(help=help_of(cron.trigger), epilog=cron.EXAMPLES_TRIGGER)(cron.trigger)
crons.command(help=help_of(cron.drop), epilog=cron.EXAMPLES_DROP)(cron.drop)
tenants = typer.Typer(name="zones", help="The tenants of a queue.", no_args_is_help=True, rich_markup_mode="rich")
tenants.command(help=help_of(zones.ls), epilog=zones.EXAMPLES_LS)(zones.ls)
tenants.command("show", help=help_of(zones.show_), epilog=zones.EXAMPLES_SHOW)(zones.show_)
tenants.command(help=help_of(zones_peek.peek), epilog=zones_peek.EXAMPLES_PEEK)(zones_peek.peek)
tenants.command(help=help_of(zones_consume.consume), epilog=zones_consume.EXAMPLES_CONSUME)(zones_consume.consume)
tenants.command("set", help=help_of(zones.set_), epilog=zones.EXAMPLES_SET)(zones.set_)
tenants.command(help=help_of(zones.pause), epilog=zones.EXAMPLES_PAUSE)(zones.pause)
tenants.command(help=help_of(zones.resume), epilog=zones.EXAMPLES_RESUME)(zones.resume)
tenants.command(help=help_of(zones_data.purge), epilog=zones_data.EXAMPLES_PURGE)(zones_data.purge)
tenants.command(help=help_of(zones_data.export), epilog=zones_data.EXAMPLES_EXPORT)(zones_data.export)
tokens = typer.Typer(name="token", help="Who may call a broker.", no_args_is_help=True, rich_markup_mode="rich")
tokens.command(help=help_of(token.new), epilog=token.EXAMPLES_NEW)(token.new)
tokens.command("list", help=help_of(token.list_))(token.list_)
tokens.command(help=help_of(token.revoke))(token.revoke)
sparks = typer.Typer(name="spark", help="Queues and Spark.", no_args_is_help=True, rich_markup_mode="rich")
sparks.command(help=help_of(spark_doctor.doctor), epilog=spark_doctor.EXAMPLES)(spark_doctor.doctor)
sparks.command(help=help_of(spark_replay.replay), epilog=spark_replay.EXAMPLES)(spark_replay.replay)
sparks.command(help=help_of(spark_work.work), epilog=spark_work.EXAMPLES)(spark_work.work)
pipelines = typer.Typer(
    name="pipeline", help="A queue's history as tables.", no_args_is_help=True, rich_markup_mode="rich"
)
pipelines.command(help=help_of(pipeline.run), epilog=pipeline.EXAMPLES)(pipeline.run)
archives = typer.Typer(
    name="archive",
    cls=archive.CatUnlessNamed,
    help="Finished jobs. Without a verb: cat.",
    rich_markup_mode="rich",
)
archives.command(help=help_of(archive.cat), epilog=archive.EXAMPLES_CAT)(archive.cat)
archives.command(help=help_of(archive.ls), epilog=archive.EXAMPLES_LS)(archive.ls)
app.command(help=help_of(demo))(demo)
app.command()(doctor)
app.command(help=help_of(enqueue.enqueue), epilog=enqueue.EXAMPLES)(enqueue.enqueue)
app.command(help=help_of(dequeue.dequeue), epilog=dequeue.EXAMPLES)(dequeue.dequeue)
app.command(help=help_of(settle.ack), epilog=settle.EXAMPLES_ACK)(settle.ack)
app.command(help=help_of(settle.nack), epilog=settle.EXAMPLES_NACK)(settle.nack)
app.command(help=help_of(tail.tail), epilog=tail.EXAMPLES)(tail.tail)
app.command(help=help_of(top.top), epilog=top.EXAMPLES)(top.top)
app.command(help=help_of(bench.bench), epilog=bench.EXAMPLES)(bench.bench)
app.command(help=help_of(cost.cost), epilog=cost.EXAMPLES)(cost.cost)
app.command(help=help_of(convert.convert), epilog=convert.EXAMPLES)(convert.convert)
app.command(help=help_of(serve.serve), epilog=serve.EXAMPLES)(serve.serve)
app.command(help=help_of(worker.worker), epilog=worker.EXAMPLES)(worker.worker)
app.command(help=help_of(report.report), epilog=report.EXAMPLES)(report.report)
app.add_typer(job)
app.add_typer(queue)
app.add_typer(archives)
app.add_typer(crons)
app.add_typer(tenants)
app.add_typer(tokens)
app.add_typer(pipelines)
app.add_typer(sparks)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"casque {__version__}")
        raise typer.Exit


@app.callback()
def casque(
    version: Annotated[
        bool, typer.Option("--version", help="Say which release this is.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A durable job queue whose only infrastructure is a bucket."""


def main() -> None:
    app()
