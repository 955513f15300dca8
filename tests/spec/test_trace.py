"""Request traces in the formats that people have."""

import json
import math
from pathlib import Path

import pytest

from afd_dse.errors import InputError
from afd_dse.spec.trace import Statistics, read_trace


def test_a_plain_csv_gives_means_and_variation(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("timestamp_s,input_tokens,output_tokens\n0,100,10\n1,300,10\n4,200,10\n")
    trace = read_trace(path)
    assert trace.requests == 3
    assert trace.input_tokens is not None
    assert trace.input_tokens.mean == 200
    assert trace.input_tokens.cv == pytest.approx(math.sqrt(20000 / 3) / 200)
    assert trace.output_tokens == Statistics(10.0, 0.0)
    assert trace.interarrival_s == Statistics(2.0, 0.5)


def test_azure_columns_and_dates_with_seven_digits_are_read(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 23:59:59.5000000,374,44"]
    path.write_text("\n".join([*rows, "2023-11-17 00:00:00.7500000,396,109"]) + "\n", encoding="utf-8-sig")
    trace = read_trace(path)
    assert trace.input_tokens is not None
    assert trace.input_tokens.mean == 385
    assert trace.interarrival_s is not None
    assert trace.interarrival_s.mean == pytest.approx(1.25, rel=1e-6)


def test_mooncake_lines_are_read_with_timestamps_in_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    rows = [
        {"timestamp": stamp, "input_length": 6755, "output_length": 500, "hash_ids": [1, 2]}
        for stamp in (3000, 0, 1000)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    trace = read_trace(path)
    assert trace.input_tokens == Statistics(6755.0, 0.0)
    assert trace.interarrival_s is not None
    assert trace.interarrival_s.mean == 1.5  # order of the lines does not matter


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("input_tokens\n10\n")
    first = read_trace(path)
    path.write_text("input_tokens\n10\n30\n")
    assert first.requests == 1
    assert read_trace(path).requests == 2


def test_columns_that_are_absent_are_none(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("input_tokens\n10\n")
    assert read_trace(path).output_tokens is None
    assert read_trace(path).interarrival_s is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no requests"),
        ("input_tokens,output_tokens\n", "no requests"),
        ("a,b\n1,2\n", "no known column among a, b"),
        ("input_tokens\n10\nmany\n", "request 2: input_tokens is 'many'"),
        ("input_tokens,output_tokens\n10,5\n10\n", "request 2: output_tokens is None"),
        ("input_tokens\nnan\n", "request 1"),
        ("input_tokens\n-5\n20\n", "negative"),
        ("input_tokens\n0\n0\n", "zero tokens"),
        ("timestamp,input_tokens\n5,1\n5,1\n", "arrive at once"),
        ("timestamp,input_tokens\n2023-13-45 00:00:00,1\n", "request 1: timestamp"),
        ('{"input_length": 5}\n{"input_length": \n', "line 2: malformed JSON"),
        ('{"input_length": 5}\n[1]\n', "line 2: not an object"),
        ('{"input_length": true}\n', "request 1: input_length is True"),
    ],
)
def test_a_broken_trace_is_an_error_that_says_where(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_trace(path, "workload.input_tokens.trace")
    (problem,) = caught.value.problems
    assert problem.field == "workload.input_tokens.trace"
    assert problem.value == str(path)
    assert message in problem.message


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe\x00", "not UTF-8"), (None, "does not exist"), ("folder", "unreadable")],
)
def test_a_trace_that_is_no_text_file_is_an_error(
    content: bytes | str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    if content == "folder":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_trace(path)
