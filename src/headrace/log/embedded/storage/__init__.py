"""What a log in a directory is made of: the index, the data files, and the one committer that writes both."""
