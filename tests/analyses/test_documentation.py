"""The example in docs/analyses.md works as it is printed."""

import re


def test_the_printed_example_analysis_passes_its_printed_test_and_draws_its_panel(repository, tmp_path):
    blocks = re.findall(r"```python\n(# (?:src|tests)/.*?)```", (repository / "docs" / "analyses.md").read_text(), re.S)
    assert [block.splitlines()[0].split("/")[-1] for block in blocks] == ["residual_norm.py", "test_residual_norm.py"]
    exec(compile(blocks[0], "docs/analyses.md", "exec"), analysis := {"__name__": "residual_norm"})
    exec(compile(blocks[1], "docs/analyses.md", "exec"), test := {})
    test["test_norms_are_those_of_a_plain_cache"]()

    from vitscope.analyses import analyze

    model = test["open_model"](
        "vit_tiny_patch16_224", "random", img_size=28, patch_size=7, in_chans=1, depth=2, num_classes=10
    )
    data = test["load_data"]("mnist5k", "test", images=10)
    run = analyze(model, data, ["residual_norm"], tmp_path / "run", progress=False)
    assert run.summary["residual_norm.last"]["n"] == 10
    assert "How long does the residual stream get?" in (tmp_path / "run" / "report.html").read_text()
    assert analysis["residual_norm_panel"]({run.label: run}).findings
