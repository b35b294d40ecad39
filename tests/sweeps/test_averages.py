from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from vitscope.sweeps.averages import averaged_tables, mean_with_interval, over_seeds
from vitscope.sweeps.separation import shape


def test_the_interval_is_students():
    values = [0.83, 0.86, 0.84, 0.9]
    expected = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert mean_with_interval(values) == pytest.approx((np.mean(values), *expected))


def test_ratios_are_averaged_as_logarithms():
    mean, low, high = mean_with_interval([2.0, 4.0, 8.0], geometric=True)
    assert mean == pytest.approx(4)
    assert low * high == pytest.approx(16), "symmetric on a log axis"


@pytest.mark.parametrize("values", [[3.0], [0.01, 25.0]])
@pytest.mark.parametrize("geometric", [False, True])
def test_fewer_than_three_runs_have_no_interval(values, geometric):
    mean, low, high = mean_with_interval(values, geometric=geometric)
    assert math.isfinite(mean)
    assert math.isnan(low)
    assert math.isnan(high)


def test_no_interval_spans_more_decades_than_runs_can_tell():
    _, low, high = mean_with_interval([1e-9, 1.0, 25.0], geometric=True)  # Student's would be 3e-16 to 4e+9
    assert math.isnan(low)
    assert math.isnan(high)
    _, low, high = mean_with_interval([1.0, 3.0, 10.0], geometric=True)
    assert high / low == pytest.approx(math.exp(2 * 4.3027 * np.log([1, 3, 10]).std(ddof=1) / math.sqrt(3)), rel=1e-4)


def test_the_smallest_and_the_largest_run_stand_beside_the_mean():
    table = pd.DataFrame({"key": ["a"] * 3 + ["b"], "value": [2.0, 8.0, 4.0, 5.0]})
    found = over_seeds(table, ["key"], "value", "log").set_index("key")
    assert found.loc["a", ["smallest", "largest", "runs"]].tolist() == pytest.approx([2, 8, 3])
    assert found.loc["b", ["mean", "runs"]].tolist() == pytest.approx([5, 1])


def probe(seed: int, blocks: int = 2, heads: int = 3) -> pd.DataFrame:
    """A table as `attention` writes it."""
    rng = np.random.default_rng(seed)
    rows = [
        (epoch, "test", block, head, "entropy", rng.normal(2, 0.3), 1.6, "nats", rng.random(), 60)
        for epoch in (0, 1) for block in range(blocks) for head in range(heads)
    ]  # fmt: skip
    return pd.DataFrame(
        rows, columns=["epoch", "split", "block", "head", "metric", "mean", "uniform", "unit", "p_holm", "n"]
    )


def test_every_row_is_averaged_over_the_runs_and_heads_within_each_run_first():
    tables = [probe(seed).assign(setting="a") for seed in range(4)]
    found = averaged_tables("probe_attention", tables, ["setting"])
    assert len(found) == 2 * 2
    assert set(found["images"]) == {60}
    for row in found.to_dict("records"):
        assert (row["figure"], row["unit"], row["runs"], row["scale"]) == ("mean", "nats", 4, "own")
        runs = [np.mean([r.mean for r in t.rename(columns={"mean": "m"}).assign(mean=t["mean"]).itertuples()
                         if (r.epoch, r.block) == (row["epoch"], row["block"])]) for t in tables]  # fmt: skip
        expected = stats.t.interval(0.95, 3, loc=np.mean(runs), scale=stats.sem(runs))
        assert (row["mean"], row["low"], row["high"]) == pytest.approx((np.mean(runs), *expected))


def test_what_has_no_mean_and_what_never_differs_is_left_out():
    found = averaged_tables("probe_attention", [probe(seed).assign(setting="a") for seed in range(3)], ["setting"])
    assert set(found["figure"]) == {"mean"}, "a chance level is the same in all runs, and p-values have no mean"


def test_fuzziness_is_averaged_as_logarithms_and_undefined_values_are_not_counted():
    values = [[4.0, 1.0], [9.0, math.nan], [6.0, 2.0]]
    tables = [
        pd.DataFrame({"epoch": 0, "split": "test", "layer": [1, 2], "fuzziness": v}).assign(setting="a") for v in values
    ]
    found = averaged_tables("probe_separation", tables, ["setting"]).set_index("layer")
    assert found["mean"].tolist() == pytest.approx([stats.gmean([4, 9, 6]), stats.gmean([1, 2])])
    assert found["runs"].tolist() == [3, 2]
    assert math.isnan(found.loc[2, "low"])


def test_shares_stay_between_their_ends():
    tables = [
        pd.DataFrame({"epoch": [0, 1], "split": "test", "metric": "top5", "value": [v, 97.0], "unit": "%"}).assign(
            setting="a"
        )
        for v in (2.0, 99.0, 98.0)
    ]
    found = averaged_tables("probe_accuracy", tables, ["setting"])
    assert found.loc[0, ["low", "high"]].tolist() == [0, 100]


def test_a_decay_at_the_edge_of_its_search_is_no_estimate():
    layers = range(1, 8)
    profiles = {"bent": [100 * math.exp(-0.7 * x) + 3 for x in layers], "a step": [100.0] + [5.0] * 6}
    tables = {
        name: pd.DataFrame(
            {"epoch": 1, "split": "test", "point": "block", "token": "class", "layer": layers, "fuzziness": values}
        )
        for name, values in profiles.items()
    }
    assert shape(tables["bent"])["decay"] == pytest.approx(0.7, rel=1e-3)
    assert math.isnan(shape(tables["a step"])["decay"])
    assert math.isfinite(shape(tables["a step"])["rate"])
