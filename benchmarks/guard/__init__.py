"""A guard against regressions: compares ratios of processor time with committed values."""
