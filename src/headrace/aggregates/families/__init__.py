"""The families of aggregates, one file each; `headrace.aggregates.table` names what is in them."""
