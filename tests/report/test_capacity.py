import csv
import io
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from afd_dse.report.capacity import capacity_page, executive, schedule_csv, write_plan
from afd_dse.report.capacity_cards import MOST_ROWS, evidence
from tests.browser import needs_browser
from tests.results.plans import plan_of


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    return plan_of()


def at(path: str) -> Any:
    """What ``plan.json`` holds at a path like ``totals.usd`` or ``periods[].gpus`` (of the first one)."""
    found: Any = document()
    for name in path.split("."):
        found = found[name.removesuffix("[]")]
        found = found[0] if name.endswith("[]") else found
    return found


def test_the_first_page_says_what_to_get_when_for_how_much_and_at_what_risk() -> None:
    answer = executive(document())
    assert answer.tiles[0] == (f"${document()['totals']['usd']:,.0f}", "for 48 hours")
    for row in document()["hardware"]:
        assert f"{row['peak_gpus']} × {row['hardware']}" in answer.title
    assert [question for question, _ in answer.facts] == ["Get", "When", "Cost"]
    assert any("any one copy" in words and good for good, words in answer.risks)
    assert any("Demand × 1.5" in words for _, words in answer.risks)
    assert any("20 % less than estimated" in words for _, words in answer.risks)


def test_every_number_of_the_first_page_names_its_place_in_the_document() -> None:
    cards = {card.key: card for card in evidence(document())}
    table = cards["numbers"].table
    assert table is not None
    places = {place for row in table.rows for place in re.findall(r"[a-z_]+(?:\[\]|\.[a-z_]+)*", row[3].text)}
    places -= {"by", "hardware", "class"}  # words
    assert {"totals.usd", "totals.usd_per_mtok", "most_load", "inverse", "hardware[].usd"} <= places
    for place in places:
        at(place)
    values = {row[0].text: row[1].text for row in table.rows}
    assert values["cost"] == f"${at('totals.usd'):,.2f}"
    assert values["GPUs at the peak"] == str(max(row["gpus"] for row in document()["periods"]))


def test_the_parts_of_the_bill_and_the_periods_add_up_to_the_cost() -> None:
    usd = document()["totals"]["usd"]
    assert sum(row["usd"] for row in document()["hardware"]) == pytest.approx(usd)
    assert sum(row["usd"] for row in document()["periods"]) == pytest.approx(usd)
    for row in document()["hardware"]:
        parts = row["usd_running"] + row["usd_starts"] + row["usd_reserved"]
        assert row["usd"] == pytest.approx(parts)
        paid = row["paid_gpu_hours"] * row["usd_per_gpu_hour"]
        assert row["usd_running"] + row["usd_reserved"] == pytest.approx(paid)


def test_less_throughput_than_estimated_costs_more_and_more_costs_less() -> None:
    low, high = document()["estimates"]
    assert (low["throughput"], high["throughput"]) == pytest.approx((0.8, 1.3))
    assert low["usd"] > document()["totals"]["usd"] > high["usd"]
    assert low["peak_gpus"] >= high["peak_gpus"]


def test_names_from_the_demand_are_text_and_not_markup() -> None:
    page = capacity_page(document())
    assert "&lt;code&gt;" in page
    assert "<code>" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)


def test_the_schedule_as_csv_holds_what_runs_in_every_period() -> None:
    rows = list(csv.DictReader(io.StringIO(schedule_csv(document()).decode())))
    for t, period in enumerate(document()["periods"]):
        assert sum(int(row["gpus"]) for row in rows if int(row["period"]) == t) == period["gpus"]


def test_a_plan_that_cannot_be_had_has_a_page_that_says_why() -> None:
    much = plan_of(demand={"requests_per_s": 2000.0})
    answer = executive(much)
    assert answer.title == "This demand cannot be served"
    assert answer.warnings == (much["reason"],)
    (question, reply), rate = answer.facts[0], much["inverse"]["chat"]
    assert question == "At most"
    assert f"{rate:.1f} requests/s of chat" in reply
    page = capacity_page(much)
    assert much["reason"] in page
    assert "chart-plan" not in page
    assert schedule_csv(much).startswith(b"period,")


def test_a_year_is_cut_where_nobody_reads_on_and_says_so() -> None:
    long = document() | {"periods": document()["periods"] * MOST_ROWS}
    card = next(card for card in evidence(long) if card.key == "schedule")
    assert card.table is not None
    assert len(card.table.rows) == MOST_ROWS
    assert "all of them are in plan.json" in card.lead


@needs_browser
def test_the_page_prints_with_its_answer_on_the_first_sheet(tmp_path: Path) -> None:
    written = write_plan(document(), tmp_path, pdf=True)
    assert [path.name for path in written] == ["plan.json", "plan.html", "plan.pdf"]
    content = written[-1].read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(content) > 40_000  # charts and all
    assert json.loads(written[0].read_text()) == document()
