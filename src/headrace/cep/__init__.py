"""Patterns of events: what a user writes, parsed and checked, and the matcher that runs it. Knows no Spark, no store
and no log; keeps nothing. What it says of some rows is a function of these rows alone.

    shape (text → tree) ─ program (tree → instructions) ─ matcher (instructions, rows → matches)
    expressions (text → tree) ─ evaluate (tree → functions over rows)
    definition (hr.pattern) ─ recognize (hr.match_recognize, the same from SQL)"""
