"""Calls about tables with tablets: each is divided into calls about tablets, whose answers are joined."""
