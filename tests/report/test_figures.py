"""The house style: colours mean one thing, the caller's matplotlib is left alone, labels do not overlap."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from vitscope.report import figures as f


def test_the_caller_s_settings_come_back_even_after_an_error() -> None:
    def draw_and_fail() -> None:
        with f.house_style():
            assert mpl.rcParams["axes.spines.top"] is False
            raise ZeroDivisionError

    before = dict(mpl.rcParams)
    with pytest.raises(ZeroDivisionError):
        draw_and_fail()
    assert dict(mpl.rcParams) == before


def test_a_user_s_settings_do_not_change_the_style() -> None:
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}), f.house_style():
        assert mpl.rcParams["font.size"] == 8.5
        assert mpl.rcParams["axes.facecolor"] == "none"


def test_every_model_looks_different_and_no_token_has_a_model_s_colour() -> None:
    styles = f.model_styles([f"m{i}" for i in range(16)])
    assert len(set(styles.values())) == 16
    assert f.model_styles(["m0", "m1"])["m1"] == styles["m1"]
    assert not {s.colour for s in styles.values()} & set(f.TOKEN_COLOURS.values())


def test_the_first_colours_and_the_token_colours_differ_also_in_grey_or_in_marker() -> None:
    def grey(colour: str) -> float:
        return float(np.dot(to_rgb(colour), (0.299, 0.587, 0.114)))

    for looks in (list(f.model_styles("abcd").values()), [f.token_style(k) for k in f.TOKEN_COLOURS]):
        for i, a in enumerate(looks):
            for b in looks[:i]:
                assert a.marker != b.marker
                assert a.colour != b.colour
    assert abs(grey(f.BLUE) - grey(f.ORANGE)) > 0.2


def test_null_line_and_lines_are_named_at_their_right_end_without_overlap() -> None:
    with f.house_style():
        fig, (ax,) = f.new_figure()
        for i, (label, style) in enumerate(f.model_styles(["a", "b", "c"]).items()):
            f.line_per_block(ax, range(12), np.full(12, 0.5 + 0.001 * i), style=style, label=label)
        f.null_line(ax, 0.1, "chance")
        ax.set_ylim(0, 1)
        f.direct_labels(ax, least=0.08)
        fig.draw_without_rendering()
    places = {text.get_text(): text.xy for text in ax.texts}
    assert set(places) == {"a", "b", "c", "chance"}
    assert {x for x, _ in places.values()} == {1.0}
    heights = sorted(y for _, y in places.values())
    assert min(np.diff(heights)) >= 0.08 - 1e-9
    assert places["chance"][1] == pytest.approx(0.1)
    assert places["a"][1] < places["b"][1] < places["c"][1]


def test_labels_stand_at_the_end_also_where_the_limits_were_left_to_matplotlib() -> None:
    with f.house_style():
        _, (ax,) = f.new_figure()
        f.line_per_block(ax, range(6), [0, 10, 20, 30, 40, 50], style=f.LineStyle(f.BLUE), label="a")
        f.direct_labels(ax)
    (label,) = ax.texts
    assert label.xy[1] == pytest.approx((50 - ax.get_ylim()[0]) / np.ptp(ax.get_ylim()))


def test_a_line_that_ends_early_is_named_where_it_ends() -> None:
    with f.house_style():
        _, (ax,) = f.new_figure()
        styles = f.model_styles(["long", "short"])
        f.line_per_block(ax, range(12), range(12), style=styles["long"], label="long")
        f.line_per_block(ax, range(4), range(4), style=styles["short"], label="short")
        ax.set_xlim(0, 11)
        f.direct_labels(ax)
    assert {t.get_text(): round(t.xy[0], 3) for t in ax.texts} == {"long": 1.0, "short": round(3 / 11, 3)}


def test_the_interval_is_drawn_from_low_to_high() -> None:
    with f.house_style():
        _, (ax,) = f.new_figure()
        f.line_per_block(ax, [0, 1], [1, 2], low=[0.5, 1.5], high=[1.5, 3.0], style=f.LineStyle(f.BLUE))
    (band,) = ax.collections
    vertices = band.get_paths()[0].vertices
    assert (vertices[:, 1].min(), vertices[:, 1].max()) == (0.5, 3.0)


def test_heat_map_leaves_missing_cells_empty_and_puts_row_0_on_top() -> None:
    with f.house_style():
        fig, (ax,) = f.new_figure()
        mesh = f.heat_map(fig, ax, np.array([[0.0, np.nan], [1.0, 2.0]]), label="nats")
    assert np.ma.getmaskarray(mesh.get_array()).ravel().tolist() == [False, True, False, False]
    assert ax.get_ylim() == (1.5, -0.5)


def test_small_multiples_share_their_axes_and_leave_no_empty_frames() -> None:
    with f.house_style():
        fig, axes = f.small_multiples(5, columns=3)
        axes[0].set_ylim(0, 7)
    assert len(axes) == len(fig.axes) == 5
    assert axes[4].get_ylim() == (0, 7)


def test_names_with_dollar_signs_are_names_and_log_ticks_are_numbers() -> None:
    with f.house_style():
        fig, (ax,) = f.new_figure()
        f.line_per_block(ax, [0, 1], [1e-6, 1e3], style=f.LineStyle(f.BLUE), label="$x^{")
        f.log_axis(ax)
        f.direct_labels(ax)
        fig.draw_without_rendering()
    ticks = [t.get_text() for t in ax.get_yticklabels()]
    assert "1" in ticks
    assert not any("$" in t for t in ticks)


def test_long_labels_keep_both_ends() -> None:
    assert f.ellipsis("short") == "short"
    long = f.ellipsis("vit_tiny_patch16_224.augreg_in21k_ft_in1k", 20)
    assert len(long) == 20
    assert long.startswith("vit_tiny_p")
    assert long.endswith("_ft_in1k")
