"""How costs grow with the work: each module prints ratios of processor time within one run."""
