from afd_dse.report.configuration import hover_texts, phase_words, policy_of, short_texts
from tests.results.examples import answer


def test_a_hover_says_the_whole_configuration_of_its_candidate() -> None:
    candidates = answer().candidates
    best = candidates[candidates["rank"] == 1]
    (text,) = hover_texts(best)
    row = best.iloc[0]
    assert text.startswith(f"<b>{row['label'].replace('&', '&amp;')}</b>")
    for phase in ("prefill", "decode"):
        assert f"{phase}: {row[f'{phase}_replicas']} × TP{row[f'{phase}_tp']}" in text
    assert "batch " in text
    assert len(hover_texts(candidates)) == len(candidates)
    assert hover_texts(candidates.iloc[:0]) == ()


def test_a_policy_is_told_only_where_phases_share_steps() -> None:
    rows = {mode: group.iloc[0].to_dict() for mode, group in answer().candidates.groupby("mode")}
    assert policy_of(rows["colocated"]) in ("chunked", "prioritized")
    assert policy_of(rows["pd"]) == ""
    assert policy_of({}) == ""


def test_pools_are_named_where_attention_and_ffn_lie_in_different_ones() -> None:
    row = answer().candidates.iloc[0].to_dict() | {"decode_attention_pool": "a", "decode_ffn_pool": "f"}
    assert phase_words(row, "decode").endswith(", attention on a, FFN on f")
    assert "attention on" not in phase_words(row, "prefill")


def test_text_of_a_job_cannot_become_markup_in_a_hover() -> None:
    rows = answer().candidates.iloc[:1].assign(label="<img src=x>")
    assert "<img" not in hover_texts(rows)[0]
    assert "<img" not in short_texts(rows, rows.index.to_numpy())[0]
