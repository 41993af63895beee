"""Merge engines: what becomes of rows that stand when rows with the same keys are written. Pure; Arrow in and out."""
