"""Files and directories: checksums, atomic replacement, free space, and the limit of open files."""
