"""The tests: a folder for each of the package's, and a file for each file; others hold what tests share."""
