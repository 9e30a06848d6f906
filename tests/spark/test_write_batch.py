"""DataFrames become jobs: which columns, which types, and that a batch is all or nothing, once, on files and on S3."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.types import StructType

from casque.errors import InvalidInputError
from casque.ring.numbers import inner
from casque.spark.sink import batch_writer
from casque.spark.write_options import WriteOptions
from casque.state.ring import home
from tests.spark.faulty import Faults
from tests.spark.histories import resized, ring_of
from tests.spark.places import Place

pytestmark = pytest.mark.xdist_group("spark")


def rows(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    """`count` rows whose payloads are their numbers."""
    numbers = spark.range(0, count, 1, partitions)
    return numbers.select(F.lit("send").alias("entrypoint"), F.col("id").cast("string").alias("payload"))


def numbered(count: int) -> list[bytes]:
    return sorted(b"%d" % n for n in range(count))


# --- All or nothing, once ---


def test_every_row_is_a_job_once_in_one_commit_and_a_repeated_transaction_is_none(
    spark: SparkSession, place: Place
) -> None:
    df = rows(spark, 50, partitions=4)
    for _ in range(2):
        place.write(df, txnId="nightly", txnVersion=7, rowsPerObject=5)
    place.write(rows(spark, 3), txnId="nightly", txnVersion=6)
    assert place.payloads() == numbered(50)
    assert place.kinds().count("admitted") == 1
    # The next version is new.
    place.write(rows(spark, 1), txnId="nightly", txnVersion=8)
    assert len(place.payloads()) == 51


def test_every_row_becomes_a_job_of_a_ring_once_each_zone_in_its_shard(spark: SparkSession, files: Place) -> None:
    asyncio.run(ring_of(files.url, 3))
    df = rows(spark, 40, partitions=4).withColumn("zone", F.concat(F.lit("zone-"), F.col("payload").cast("int") % 6))
    for _ in range(2):
        files.write(df, txnId="nightly", txnVersion=7, rowsPerObject=5)
    asyncio.run(resized(files.url, 5))
    files.write(rows(spark, 3), txnId="nightly", txnVersion=6)
    files.write(rows(spark, 3), txnId="nightly", txnVersion=8)
    jobs = files.jobs()
    assert sorted(job.payload for job in jobs) == sorted([*numbered(40), *numbered(3)])
    for job in jobs:
        if job.zone is not None:
            assert inner(job.record.sequence)[1] == home(job.zone, 3), "where a zone is it stays"


def test_a_task_that_fails_after_it_has_staged_is_tried_again_and_its_jobs_are_there_once(
    spark: SparkSession, place: Place, faults: Faults
) -> None:
    faults.fail("staged")
    place.write(rows(spark, 20, partitions=3), "casque_faulty", faults=str(faults.directory))
    assert faults.happened("staged") == 4, "three tasks, one of them twice"
    assert place.payloads() == numbered(20)
    assert len(place.keys("staged/")) == 4, "what the failed attempt had staged is left to the sweeper"


def test_a_stage_that_runs_again_because_its_input_was_lost_enqueues_each_row_once(
    spark: SparkSession, files: Place, tmp_path: Path
) -> None:
    marker = tmp_path / "lost"

    def lose_input(batches: Any) -> Any:
        """The first task to get here deletes what all others were to fetch: Spark runs both stages again."""
        import os
        from pathlib import Path

        yield from batches
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return
        for found in Path(os.environ["SPARK_LOCAL_DIRS"]).rglob("shuffle_*"):
            found.unlink(missing_ok=True)

    df = rows(spark, 40).repartition(6, "payload").mapInArrow(lose_input, "entrypoint string, payload string")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        files.write(df)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "true")
    assert marker.exists()
    assert files.payloads() == numbered(40)
    assert len(files.keys("staged/")) >= 6


def test_a_commit_that_fails_after_it_has_landed_loses_nothing_although_spark_aborts(
    spark: SparkSession, place: Place, faults: Faults
) -> None:
    faults.fail("committed")
    df = rows(spark, 10)
    options = {"faults": str(faults.directory), "txnId": "import", "txnVersion": 1}
    with pytest.raises(PySparkException, match="a fault that was wanted"):
        place.write(df, "casque_faulty", **options)
    assert faults.happened("aborted") == 1
    assert place.payloads() == numbered(10), "the log names what was staged, and it is still there"
    place.write(df, "casque_faulty", **options)
    assert place.payloads() == numbered(10)


def test_a_write_that_fails_enqueues_nothing(spark: SparkSession, files: Place) -> None:
    def fail(batches: Any) -> Any:
        yield from batches
        raise ValueError("a row that cannot be made")

    df = rows(spark, 10).mapInArrow(fail, "entrypoint string, payload string")
    with pytest.raises(PySparkException, match="a row that cannot be made"):
        files.write(df)
    assert files.payloads() == []


def test_no_rows_make_no_commit(spark: SparkSession, files: Place) -> None:
    files.write(rows(spark, 0))
    assert files.keys() == []


def test_explaining_limiting_and_caching_writes_nothing(
    spark: SparkSession, files: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(rows(spark, 5), txnId="one", txnVersion=1)
    before = files.keys()
    jobs = spark.read.format("casque").option("table", "jobs").load(files.url)
    again = jobs.select("entrypoint", F.col("payload").cast("string").alias("payload"))
    again.explain(True)
    assert again.limit(2).count() == 2
    assert again.cache().count() == 5
    files.writer(again, token="HUSH")  # nobody has said save
    again.unpersist()
    assert files.keys() == before
    assert "HUSH" not in capsys.readouterr().out


# --- Columns ---


def test_columns_become_the_fields_of_jobs_whatever_the_session_time_zone(spark: SparkSession, files: Place) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        at = F.lit("2030-01-01 07:00:00").cast("timestamp")  # that is noon in UTC
        df = spark.range(1).select(
            F.lit("job-1").alias("id"),
            F.lit("send").alias("entrypoint"),
            F.struct(
                F.lit("Ada").alias("to"),
                at.alias("at"),
                F.create_map(F.lit("when"), F.array(at)).alias("nested"),
                F.lit(1.5).alias("share"),
                F.lit("1.50").cast("decimal(5,2)").alias("price"),
                F.lit(None).cast("string").alias("nothing"),
                F.lit(b"\0\1").alias("raw"),
                F.lit("2030-01-01").cast("date").alias("day"),
            ).alias("payload"),
            F.lit(-3).alias("priority"),
            F.lit("eu").alias("zone"),
            at.alias("run_at"),
            F.lit("only-one").alias("key"),
            F.create_map(F.lit("trace"), F.lit("abc")).alias("headers"),
            F.lit(3).cast("short").alias("max_attempts"),
            F.lit(2).alias("max_crashes"),
        )
        files.write(df)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    [job] = files.jobs()
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert (job.id, job.entrypoint, job.priority, job.zone) == ("job-1", "send", -3, "eu")
    assert (job.due_at, job.key, job.headers, job.max_attempts) == (noon, "only-one", {"trace": "abc"}, 3)
    assert job.record.spec.max_crashes == 2
    assert json.loads(job.payload) == {
        "to": "Ada",
        "at": "2030-01-01T12:00:00Z",
        "nested": {"when": ["2030-01-01T12:00:00Z"]},
        "share": 1.5,
        "price": "1.50",
        "nothing": None,
        "raw": "AAE=",
        "day": "2030-01-01",
    }


def test_options_stand_for_columns_and_all_other_columns_can_be_packed(spark: SparkSession, files: Place) -> None:
    df = spark.range(0, 3, 1, 1).select("id", F.lit("x").alias("note")).withColumnRenamed("id", "n")
    files.write(
        df,
        entrypoint="send",
        payload="json",
        priority=5,
        zone="eu",
        run_at="2030-01-01T00:00:00+01:00",
        headers='{"a":"b"}',
        max_attempts=2,
        max_crashes=4,
    )
    jobs = files.jobs()
    assert sorted(job.payload for job in jobs) == [b'{"n":%d,"note":"x"}' % n for n in range(3)]
    run_at = datetime(2029, 12, 31, 23, tzinfo=UTC)
    for job in jobs:
        fields = (job.entrypoint, job.priority, job.zone, job.due_at, job.headers, job.max_attempts)
        assert fields == ("send", 5, "eu", run_at, {"a": "b"}, 2)
        assert job.record.spec.max_crashes == 4


def test_ids_that_are_derived_make_the_same_row_the_same_job(spark: SparkSession, files: Place) -> None:
    df = spark.createDataFrame([(1, "a"), (2, "b"), (1, "a"), (None, "c")], "n int, name string")
    for _ in range(2):
        files.write(df, entrypoint="send", payload="json", idFrom="n,name")
    assert len(files.jobs()) == 3
    files.write(df.limit(1), entrypoint="other", payload="json", idFrom="n,name")
    assert len(files.jobs()) == 4, "another entrypoint is another job"


def test_ids_that_are_given_must_be_new_unless_it_is_said_otherwise(spark: SparkSession, files: Place) -> None:
    def named(*names: str) -> DataFrame:
        return spark.createDataFrame([(name, b"x") for name in names], "id string, payload binary").coalesce(1)

    files.write(named("a", "b"), entrypoint="send")
    with pytest.raises(PySparkException, match=r"a job with the id 'b' is already in the queue; nothing was"):
        files.write(named("b", "c"), entrypoint="send")
    assert [job.id for job in files.jobs()] == ["a", "b"]
    files.write(named("b", "c", "c"), entrypoint="send", onKnown="skip")
    assert [job.id for job in files.jobs()] == ["a", "b", "c"]


def test_a_large_payload_gets_an_object_of_its_own(spark: SparkSession, files: Place) -> None:
    df = spark.range(2).select(F.lit("send").alias("entrypoint"), F.repeat(F.lit("x"), 400_000).alias("payload"))
    files.write(df)
    assert [len(job.payload) for job in files.jobs()] == [400_000, 400_000]
    assert len(files.keys("blobs/")) == 2


# --- What is refused, before anything is staged ---


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"payload": "'x'"}, {}, r"jobs need an entrypoint: a column of that name, or .option\(.entrypoint"),
        ({"entrypoint": "'send'"}, {}, "jobs need a payload, and there is no column payload"),
        ({"entrypoint": "'send'", "n": "1"}, {}, 'pack n with .option."payload", "json"'),
        ({"entrypoint": "'send'", "payload": "'x'", "priorty": "1"}, {}, "no field of a job is called priorty"),
        ({"entrypoint": "1", "payload": "'x'"}, {}, "column entrypoint must be a string, not int"),
        ({"entrypoint": "'send'", "payload": "'x'", "priority": "'1'"}, {}, "priority must be a whole number"),
        ({"entrypoint": "'s'", "payload": "'x'", "run_at": "timestamp_ntz'2030-01-01'"}, {}, "must be a timestamp"),
        ({"entrypoint": "'s'", "payload": "'x'", "headers": "map('a', 1)"}, {}, "headers must be a map<string,string>"),
        (
            {"entrypoint": "'s'", "payload": "parse_json('1')"},
            {},
            r"payload is a VARIANT: make the column JSON text, with to_json\(payload\)",
        ),
        (
            {"entrypoint": "'s'", "payload": "struct(array(parse_json('1')) AS a)"},
            {},
            r"payload.a\[\] is a VARIANT: make the column JSON text, with to_json\(payload\)",
        ),
        (
            {"entrypoint": "'s'", "n": "map('a', parse_json('1'))"},
            {"payload": "json"},
            r"n{} is a VARIANT: .*to_json\(n",
        ),
        ({"entrypoint": "'s'", "payload": "'x'", "n": "parse_json('1')"}, {"idFrom": "n"}, "n is a VARIANT"),
        ({"entrypoint": "'s'", "payload": "'x'", "key": "parse_json('1')"}, {}, "key must be a string, not variant"),
        ({"entrypoint": "'s'", "payload": "INTERVAL '1' YEAR"}, {}, "payload is of type interval year, which has no"),
        (
            {"entrypoint": "'s'", "payload": "map(date'2030-01-01', 1)"},
            {},
            "the keys of payload are date, .*transform_k",
        ),
        (
            {"entrypoint": "'s'", "payload": "'x'", "tags": "array(1)"},
            {},
            "tags must be an array<string>, not array<int>",
        ),
        ({"ENTRYPOINT": "'s'", "payload": "'x'"}, {}, "the column ENTRYPOINT must be written entrypoint"),
        ({"entrypoint": "'s'", "payload": "'x'", "Payload": "'x'"}, {}, "the column Payload must be written payload"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"table": "jobs"}, "is for reading.*CREATE TEMPORARY VIEW name"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"colour": "red"}, r"no option 'colour' for writing\. Options"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"option.path": "x"}, "this cannot be a table of the catalogue"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"entrypoint": "t"}, "entrypoint is given twice"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"payload": "json"}, "there is a column payload"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"idFrom": "n"}, "idFrom names 'n', and there is no such column"),
        ({"entrypoint": "'s'", "payload": "'x'", "id": "'1'"}, {"idFrom": "payload"}, "there is a column id as well"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"txnID": "a"}, "txnId and txnVersion go together"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"txnVerson": "a"}, "did you mean txnVersion?"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"writerId": "a"}, "writerId is for streams"),
        (
            {"entrypoint": "'s'", "payload": "'x'"},
            {"via": "pigeon"},
            "via must be one of auto, embedded, broker",
        ),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"broker": "localhost"}, "broker must be an address"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"headers": "HUSH"}, "headers must be a JSON object of texts"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"store.secret_access_key": "HUSH"}, "file:// takes no options"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"path": "memory://here"}, "memory:// lives in one process"),
        ({"entrypoint": "'s'", "payload": "'x'"}, {"path": "grpc://localhost:1"}, "tasks stage jobs in the bucket"),
    ],
)
def test_what_cannot_be_a_job_is_refused_with_its_fix_before_anything_runs(
    spark: SparkSession, columns: dict[str, str], options: dict[str, str], said: str
) -> None:
    df = spark.range(1).selectExpr(*[f"{expression} as {name}" for name, expression in columns.items()])
    with pytest.raises(InvalidInputError, match=said) as caught:
        batch_writer({"path": "file:///nowhere", **options}, df.schema, False)
    assert "HUSH" not in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "enqueued"),
    [
        ("to_json(parse_json('{\"a\": [1, null]}'))", b'{"a":[1,null]}'),
        ("to_json(struct(parse_json('{\"a\": 1}') AS v, 2 AS n))", b'{"v":{"a":1},"n":2}'),
        ("array(1, NULL)", b"[1,null]"),
        ("map(1, array(true))", b'{"1":[true]}'),
        ("struct(NULL AS a, X'00ff' AS b, 1.50BD AS c)", b'{"a":null,"b":"AP8=","c":"1.50"}'),
        ("X'00ff'", b"\x00\xff"),
        ("timestamp'2030-01-01 00:00:00'", b'"2030-01-01T00:00:00Z"'),
    ],
)
def test_payloads_of_any_other_type_become_json(
    spark: SparkSession, files: Place, payload: str, enqueued: bytes
) -> None:
    files.write(spark.sql(f"SELECT 'send' AS entrypoint, {payload} AS payload"))
    assert files.payloads() == [enqueued]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("map('a', CAST(NULL AS STRING)) AS headers", "row 0: headers must map str to str"),
        ("array('a', CAST(NULL AS STRING)) AS tags", "row 0: a tag must be a str, not NoneType"),
        ("'' AS key", "row 0: key must be 1 to 1024 printable characters"),
        ("timestamp'+20000-01-01 00:00:00' AS run_at", "run_at_ms must be a whole number from"),
        ("CAST(NULL AS INT) AS priority", "the column priority holds null in 1 of 1 rows"),
        ("0 AS max_attempts", "max_attempts must be a whole number from 1 to"),
    ],
)
def test_a_value_that_no_job_may_have_is_refused_by_the_name_of_its_column(
    spark: SparkSession, files: Place, column: str, said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        files.write(spark.sql(f"SELECT 'send' AS entrypoint, 'x' AS payload, {column}"))
    assert files.payloads() == []


def test_spark_says_why_a_write_is_refused_and_nothing_is_staged(spark: SparkSession, files: Place) -> None:
    with pytest.raises(PySparkException, match="a queue is never overwritten"):
        rows(spark, 1).write.format("casque").mode("overwrite").save(files.url)
    with pytest.raises(PySparkException, match="did you mean txnVersion"):
        files.write(rows(spark, 1), txnVerson=1)
    assert files.keys() == []


def test_values_that_no_job_may_have_are_named_and_nothing_is_enqueued(spark: SparkSession, files: Place) -> None:
    nulls = spark.createDataFrame([("send", None), ("send", "x")], "entrypoint string, payload string")
    with pytest.raises(PySparkException, match="the column payload holds null in 1 of"):
        files.write(nulls)
    with pytest.raises(PySparkException, match="entrypoint must be 1 to 256 printable characters"):
        files.write(spark.range(1).selectExpr("'' as entrypoint", "'x' as payload"))
    assert files.payloads() == []


def staged(place: Place, ddl: str, values: list[dict[str, Any]], **options: Any) -> Any:
    """What a task does with one batch of rows: in this process, and without a commit."""
    given = {"path": place.url, "entrypoint": "send", **{name: str(value) for name, value in options.items()}}
    if "entrypoint" in ddl:
        del given["entrypoint"]
    writer = batch_writer(given, cast("StructType", StructType.fromDDL(ddl)), False)
    return writer, writer.write(iter([pa.RecordBatch.from_pylist(values)]))


@pytest.mark.parametrize("column", ["id", "entrypoint", "payload", "priority", "fifo"])
def test_a_null_is_named_by_its_row(files: Place, column: str) -> None:
    row = {"id": "a", "entrypoint": "send", "payload": "x", "priority": 1, "fifo": True}
    ddl = "id string, entrypoint string, payload string, priority bigint, fifo boolean"
    rows = [row | {"id": f"{n}", column: None} if n == 2 else row | {"id": f"{n}"} for n in range(4)]
    name, entrypoint = ("None" if column == one else f"'{row}'" for one, row in (("id", "2"), ("entrypoint", "send")))
    said = (
        rf"^row 2: the column {column} holds null in 1 of 4 rows.*\(partition 0: id {name}, entrypoint {entrypoint}\)$"
    )
    with pytest.raises(InvalidInputError, match=said):
        staged(files, ddl, rows)
    assert files.keys() == []


@pytest.mark.parametrize(
    ("ddl", "rows", "options", "said"),
    [
        (
            "id string, payload string",
            [{"id": "a", "payload": "x"}, {"id": "b", "payload": "x"}, {"id": "a", "payload": "x"}],
            {},
            r"^row 2: the id 'a' is also that of an earlier row \(partition 0: id 'a'\)$",
        ),
        (
            "max_attempts bigint, payload string, key string",
            [{"max_attempts": 7 - n, "payload": "secret", "key": f"k{n}"} for n in range(9)],
            {"rowsPerObject": 2},
            r"^row 7: max_attempts must be .*, not 0 \(partition 0: key 'k7'\)$",
        ),
        (
            "n bigint, priority bigint, payload string, max_crashes bigint",
            [{"n": n // 2, "priority": n // 2, "payload": "secret", "max_crashes": 3 - n // 2} for n in range(8)],
            {"idFrom": "n"},
            r"^row 6: max_crashes must be .*, not 0 \(partition 0: n 3\)$",
        ),
        (
            "day date, id string",
            [{"day": pa.scalar(n * 2_900_000, pa.date32()), "id": f"i{n}"} for n in range(3)],
            {"payload": "json"},
            r"^row 2: the column day holds a date or time outside of the years 1 to 9999.*id 'i2'\)$",
        ),
        ("entrypoint string, payload string", [{"entrypoint": "", "payload": "x"}] * 2, {}, "^entrypoint must be 1 to"),
    ],
)
def test_a_value_that_no_job_may_have_is_named_by_its_row_of_the_partition_and_what_identifies_it(
    files: Place, ddl: str, rows: list[dict[str, Any]], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said) as caught:
        staged(files, ddl, rows, **options)
    assert "secret" not in str(caught.value)


def test_columns_of_any_name_are_packed(files: Place) -> None:
    names = ['with "quotes"', "back\\slash", "line\nfeed", "a.b", "Priority", "grün"]
    ddl = ", ".join(f"`{name}` bigint" for name in names)
    writer, message = staged(files, ddl, [dict(zip(names, range(6), strict=True))], payload="json")
    writer.commit([message])
    [job] = files.jobs()
    assert json.loads(job.payload) == dict(zip(names, range(6), strict=True))


def test_rows_that_are_left_out_for_their_unique_key_are_counted(
    files: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    ddl, rows = "key string, payload string", [{"key": key, "payload": "x"} for key in ("a", "b", "a")]
    for said in ("1 of 3 rows were not enqueued: their unique key", "3 of 3 rows were not enqueued: their unique key"):
        writer, message = staged(files, ddl, rows)
        writer.commit([message])
        assert said in capsys.readouterr().err
    assert len(files.jobs()) == 2


def test_insert_into_a_view_of_columns_enqueues_and_into_one_of_a_table_is_refused(
    spark: SparkSession, files: Place
) -> None:
    spark.sql(
        f"CREATE TEMPORARY VIEW mail (entrypoint STRING, payload STRING) USING casque OPTIONS (path '{files.url}')"
    )
    try:
        spark.sql("INSERT INTO mail VALUES ('send', 'x'), ('send', 'y')")
        assert files.payloads() == [b"x", b"y"]
        spark.sql(f"CREATE TEMPORARY VIEW waiting USING casque OPTIONS (path '{files.url}', table 'jobs')")
        with pytest.raises(PySparkException, match=r"the table 'jobs' is for reading.*\(entrypoint STRING, payload"):
            spark.sql("INSERT INTO waiting (entrypoint, payload) VALUES ('send', X'00')")
        assert spark.table("waiting").count() == 2
    finally:
        spark.catalog.dropTempView("mail")
        spark.catalog.dropTempView("waiting")


def test_options_with_secrets_show_none_of_them() -> None:
    options = WriteOptions.parse({"path": "file:///queue", "token": "HUSH", "tlsKey": "HUSH"})
    assert repr(options) == "WriteOptions('file:///queue')"


@pytest.mark.parametrize("way", ["a column", "an option"])
def test_a_fifo_zone_can_be_filled(spark: SparkSession, files: Place, way: str) -> None:
    df = spark.createDataFrame(
        [("a", "send", "1", "eu"), ("b", "send", "2", "eu")],
        "id string, entrypoint string, payload string, zone string",
    )
    if way == "a column":
        files.write(df.withColumn("fifo", F.lit(True)))
    else:
        files.write(df, fifo="true")
    assert [(job.id, job.record.spec.fifo) for job in files.jobs()] == [("a", True), ("b", True)]
    with pytest.raises(Exception, match="fifo must be true or false"):
        files.write(df.withColumn("id", F.lit("c")), fifo="perhaps")


def test_tags_are_written_from_arrays_or_an_option_and_found_with_array_contains(
    spark: SparkSession, files: Place
) -> None:
    jobs = [("a", ["urgent", "billing"]), ("b", None), ("c", ["billing"])]
    df = spark.createDataFrame(jobs, "id string, tags array<string>").select(
        "*", F.lit("send").alias("entrypoint"), F.lit("x").alias("payload")
    )
    files.write(df)
    files.write(df.select(F.lit("d").alias("id"), "entrypoint", "payload").limit(1), tags="urgent, nightly")
    assert [job.tags for job in files.jobs()] == [("urgent", "billing"), (), ("billing",), ("urgent", "nightly")]
    for table, name in (("jobs", "id"), ("events", "job_id")):
        read = spark.read.format("casque").option("table", table).options(**files.for_spark).load(files.url)
        found = read.where(F.array_contains("tags", "urgent")).orderBy(name).select(name, "tags").collect()
        assert [tuple(row) for row in found] == [("a", ["urgent", "billing"]), ("d", ["urgent", "nightly"])]
    with pytest.raises(Exception, match="tags must be an array<string>, not string"):
        files.write(df.withColumn("tags", F.lit("urgent")))
    with pytest.raises(Exception, match="a tag must be 1 to 64 printable characters"):
        files.write(df.select("id", "entrypoint", "payload"), tags="urgent,")
