"""Running a scan: opening its source, producing its messages, explaining its plan."""
