"""Contrast as WCAG 2.2 defines it; colour vision deficiencies as Machado, Oliveira and Fernandes (2009) model them."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from afd_dse.report.figures import theme
from afd_dse.report.figures.theme import DARK, DIM, GRID, INK, LIGHT, PAGE, TO_DARK, mode_styles

Array = npt.NDArray[np.float64]
# Severity 1.0, linear RGB: https://www.inf.ufrgs.br/~oliveira/pubs_files/CVD_Simulation/CVD_Simulation.html
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> Array:
    channels = np.array([int(colour[i : i + 2], 16) / 255.0 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def lab(rgb: Array) -> Array:
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = matrix @ np.clip(rgb, 0.0, 1.0) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16.0 / 116.0)
    return np.array([116.0 * f[1] - 16.0, 500.0 * (f[0] - f[1]), 200.0 * (f[1] - f[2])])


PALETTES = {"light": (LIGHT, 0), "dark": (DARK, 1)}


@pytest.mark.parametrize("name", PALETTES)
@pytest.mark.parametrize("vision", VISION)
def test_any_two_colours_differ_with_any_colour_vision(name: str, vision: str) -> None:
    palette, _ = PALETTES[name]
    seen = {key: lab(VISION[vision] @ linear(colour)) for key, colour in palette.items()}
    distances = {
        (one, other): float(np.linalg.norm(seen[one] - seen[other])) for one, other in combinations(seen, 2)
    }
    assert min(distances.values()) >= 24.0, min(distances, key=distances.__getitem__)


@pytest.mark.parametrize("name", PALETTES)
def test_every_colour_stands_out_from_the_page_and_text_can_be_read(name: str) -> None:
    palette, side = PALETTES[name]
    assert min(contrast(colour, PAGE[side]) for colour in palette.values()) >= 3.0
    assert contrast(INK[side], PAGE[side]) >= 7.0
    assert contrast(DIM[side], PAGE[side]) >= 4.5


def test_every_colour_of_a_chart_has_a_partner_in_the_dark() -> None:
    assert set(TO_DARK) == {*LIGHT.values(), PAGE[0], INK[0], DIM[0], GRID[0]}
    for group in (theme.STATION_COLOURS, theme.MEMORY_COLOURS, theme.TRUST_COLOURS):
        assert set(group.values()) <= set(TO_DARK)
        assert len(set(group.values())) == len(group)


def test_no_two_of_all_partitions_share_colour_and_symbol() -> None:
    styles = mode_styles([f"mode {number}" for number in range(23)])
    assert len(set(styles.values())) == 23
