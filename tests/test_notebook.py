"""Results as HTML: pytest tests/test_notebook.py"""

from __future__ import annotations

from specdec.common import notebook

CELL = 'style="text-align:left"'


def test_a_table_has_a_row_of_cells_for_each_row():
    assert notebook.table([("a", "<b>c</b>"), ("d",)], ("x", "y")) == (
        f"<table><tr><th {CELL}>x</th><th {CELL}>y</th></tr>"
        f"<tr><td {CELL}>a</td><td {CELL}><b>c</b></td></tr><tr><td {CELL}>d</td></tr></table>"
    )
    assert notebook.table([]) == "<table></table>"


def test_texts_are_no_html():
    assert notebook.lines("a < b", ["c & d", "e"]) == "<b>a &lt; b</b><pre>c &amp; d\ne</pre>"
    assert notebook.coloured("<", "red") == '<span style="color:red">&lt;</span>'
    struck = '<span style="color:red;text-decoration:line-through">a</span>'
    assert notebook.coloured("a", "red", struck=True) == struck
    assert notebook.markdown('a "b" <c>\n[d](e)') == r'a "b" &lt;c&gt; [d]\(e)'
