"""Hardware as papers count it."""

import pytest

from afd_dse.errors import InputError
from afd_dse.spec.profiles import load_profile, profile_names


def test_every_profile_states_its_source_and_positive_figures() -> None:
    assert profile_names() == ("baidu", "step3")
    for name in profile_names():
        profile = load_profile(name)
        assert "arXiv" in profile.source
        for part in profile.hardware.values():
            assert part.peak_flops > 1e14
            assert part.node_gpus > 0


def test_a_part_is_found_with_or_without_its_form_factor() -> None:
    profile = load_profile("Baidu")
    assert profile.part("H100") == profile.part("h100_sxm")
    assert profile.part("gb200-nvl72").name == "gb200"


def test_what_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(InputError, match="baidu, step3"):
        load_profile("beidu")
    with pytest.raises(InputError, match="910b"):
        load_profile("step3").part("b200")
