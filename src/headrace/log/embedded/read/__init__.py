"""From the files to records: ranges of offsets, and following what comes."""
