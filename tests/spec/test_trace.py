"""Request traces in the formats that people have."""

import gzip
import json
import math
from pathlib import Path

import pytest

from afd_dse.errors import InputError
from afd_dse.spec.trace import Statistics, read_requests, read_trace


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


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01.5,20,5\n2024-05-10 00:00:00,10,0\n"


@pytest.mark.parametrize(
    "content",
    [
        AZURE.encode(),
        AZURE.encode("utf-8-sig"),
        gzip.compress(AZURE.encode(), mtime=0),
        ("\n" + AZURE.replace("\n", "\r\n\r\n") + " ,,\n").encode(),
        AZURE.replace(",", ";").encode(),
        AZURE.replace(",", " \t ").encode(),
        AZURE.replace("ContextTokens", "context_tokens").replace("TIMESTAMP", "Timestamp ").encode(),
        AZURE.replace("Tokens\n", "Tokens,user\n").replace("5\n", "5,someone\n").encode(),
        AZURE.replace(" 00", "T00").replace(".5,", ".5Z,").replace("0:00,", "0:00+00:00,").encode(),
        AZURE.replace(" 00:00:01.5", " 02:00:01.5000000+02:00").replace("00:00:00,", "00:00:00Z,").encode(),
        b"timestamp,input_length,output_length\n1500,20,5\n0,10,0\n",
        b"timestamp,input_length,output_length\n1715299201.5,20,5\n1715299200,10,0\n",
        b"arrival_s,prompt_tokens,completion_tokens\n1.5,20.0,5\n0,9.6,0.2\n",
        b'{"timestamp": 1500, "input_length": 20, "output_length": 5, "hash_ids": []}\n\n'
        b'{"timestamp": 0, "input_length": 10, "output_length": 0, "type": "text", "hash_ids": null}\n',
        b'[{"timestamp": 1500, "input_length": 20, "output_length": 5},'
        b' {"timestamp": 0, "input_length": 10, "output_length": 0}]',
    ],
)
def test_requests_are_the_same_however_people_write_them(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    found = read_requests(path)
    assert found.arrival_s is not None
    assert found.arrival_s.tolist() == pytest.approx([0.0, 1.5], abs=1e-6)
    assert found.input_tokens.tolist() == [10, 20]
    assert found.output_tokens.tolist() == [1, 5]  # an answer of no tokens costs a step too
    assert found.blocks is None


def test_requests_that_arrive_at_once_can_be_simulated_but_have_no_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,input_tokens,output_tokens\n5,10,1\n5,20,2\n")
    found = read_requests(path)
    assert found.arrival_s is not None
    assert found.arrival_s.tolist() == [0.0, 0.0]
    with pytest.raises(InputError, match="arrive at once"):
        read_trace(path)


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
        ("input_tokens\n5\n5e30\n", "request 2: input_tokens is '5e30', more than"),
        (
            "timestamp,input_tokens\n12,1\n2023-11-16 18:17:06,1\n",
            "request 1: timestamp is '12', others are dates",
        ),
        ("timestamp,input_tokens\n11/16/2023 18:17,1\n", "request 1: timestamp is '11/16/2023 18:17'"),
        ('{"input_length": 5}\n{"input_length": 6, "timestamp": 1}\n', "request 1: timestamp is None"),
        ("[{]", "malformed JSON"),
        ("[3]", "request 1: not an object"),
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
