"""Tables in the page."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vitscope.report.html_table import breakable, html_table


def test_numbers_are_short_with_the_full_value_on_hover_and_text_is_escaped() -> None:
    html = html_table(pd.DataFrame({"class_name": ["<script>"], "top1": [73.456789], "n": [1000]}))
    assert "<td>&lt;script&gt;</td>" in html
    assert '<td class="n" title="73.456789">73.5</td>' in html
    assert '<td class="n" title="1000">1,000</td>' in html
    assert ">class name</button>" in html


def test_hostile_column_names_are_escaped() -> None:
    assert "<b>" not in html_table(pd.DataFrame({"<b>": [1]}))


def test_long_tables_are_cut_and_say_so() -> None:
    html = html_table(pd.DataFrame({"x": np.arange(1000)}), rows=50)
    assert html.count("<tr>") == 51
    assert "the first 50 of 1,000 rows" in html


def test_an_empty_table_has_its_head() -> None:
    assert html_table(pd.DataFrame({"a": [], "b": []})).count("<th ") == 2


def test_long_names_may_break_and_are_escaped() -> None:
    assert breakable("vit_tiny.a<b> 0.5") == "vit_<wbr>tiny.<wbr>a&lt;b&gt; 0.5"
